"""postbus tokens …"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from postbus.cli._command import Cli, command, group
from postbus.cli._inputs import as_duration
from postbus.cli._render import write_facts, write_json, write_table
from postbus.cli._say import say

app = group("tokens", "Make, list and revoke tokens for the HTTP server.")


@command(app, "create")
async def create(
    cli: Cli,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name that says what the token is for.", show_default=False)
    ],
    roles: Annotated[
        list[str],
        typer.Option(
            "--role",
            help="A role: producer, consumer, observer, operator or admin; may be repeated.",
            show_default=False,
        ),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", help="Limit it to these topics: names, in which * stands for any text; by default all."
        ),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--group", help="Limit it to these groups: names, in which * stands for any text; by default all."
        ),
    ] = None,
    no_payloads: Annotated[
        bool,
        typer.Option("--no-payloads", help="Withhold payloads, headers, keys and errors; not for consumer and admin."),
    ] = False,
    expires_in: Annotated[
        str | None, typer.Option("--expires-in", help="How long it is valid: 90d, 12h; by default forever.")
    ] = None,
) -> None:
    """Make a token. It is shown here, once: the database keeps only a hash of it."""
    lifetime = as_duration(expires_in, name="--expires-in")
    given: list[Any] = [*roles]  # the database checks them
    async with cli.open_bus() as bus:
        made = await bus.admin.create_token(
            name, given, topics=topics or ["*"], groups=groups or ["*"], payloads=not no_payloads, expires_in=lifetime
        )
    if cli.as_json:
        write_json({"id": made.id, "token": made.token, "expires_at": made.expires_at})
        return
    write_facts({"id": made.id, "token": made.token, "expires": made.expires_at or "never"})
    cli.note("keep the token: it cannot be shown again")


@command(app, "list")
async def list_tokens(cli: Cli) -> None:
    """Show all tokens, including revoked and expired ones, without their secrets."""
    async with cli.open_bus() as bus:
        tokens = await bus.admin.tokens()
    if cli.as_json:
        write_json(tokens)
    elif not tokens:
        cli.note("no tokens yet: postbus tokens create NAME --role producer")
    else:
        write_table(
            ["id", "name", "roles", "topics", "groups", "created", "by", "last used", "expires", "state"],
            [
                [
                    one.id,
                    one.name,
                    ", ".join(one.roles) + ("" if one.payloads else " without payloads"),
                    ", ".join(one.topics),
                    ", ".join(one.groups),
                    one.created_at,
                    one.created_by,
                    one.last_used_at or "never",
                    one.expires_at,
                    one.state,
                ]
                for one in tokens
            ],
        )


@command(app, "revoke")
async def revoke(
    cli: Cli, token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id.", show_default=False)]
) -> None:
    """Revoke a token for good. Servers refuse it within seconds."""
    async with cli.open_bus() as bus:
        await bus.admin.revoke_token(token_id)
    if cli.as_json:
        write_json({"revoked": token_id})
    else:
        say(f"revoked {token_id}")
