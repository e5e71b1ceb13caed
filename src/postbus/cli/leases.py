"""postbus leases …"""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import typer

from postbus._pull.lease import lease_lost
from postbus._runtime.visible_text import counted
from postbus.cli._arguments import MAX_ID
from postbus.cli._command import Cli, command, group
from postbus.cli._inputs import as_duration
from postbus.cli._render import write_json
from postbus.cli._say import say
from postbus.errors import LeaseLost
from postbus.pull import check_lease

app = group("leases", "Settle messages that postbus pop took, by the token that it printed.")

Token = Annotated[UUID, typer.Argument(metavar="TOKEN", help="The token of the lease.", show_default=False)]
Ids = Annotated[
    list[int],
    typer.Argument(metavar="ID...", help="The messages of the lease.", min=1, max=MAX_ID, show_default=False),
]
SomeIds = Annotated[
    list[int] | None,
    typer.Argument(metavar="[ID]...", help="Only these messages of the lease.", min=1, max=MAX_ID, show_default=False),
]
Error = Annotated[str | None, typer.Option("--error", metavar="TEXT", help="The error to keep with the message.")]


@command(app, "ack")
async def ack(cli: Cli, token: Token, ids: SomeIds = None) -> None:
    """Acknowledge all messages of a lease, or the given ones."""
    async with cli.open_bus() as bus:
        store = await bus.connect()
        if ids:
            _tell(cli, "acked", token, ids, await store.ack(token, ids))
        elif await store.ack_leases([token]):
            raise _lost(token)
        else:
            write_json({"token": str(token), "outcome": "acked"}) if cli.as_json else cli.note("acked the lease")


@command(app, "retry")
async def retry(
    cli: Cli,
    token: Token,
    ids: Ids,
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Wait this long before the next attempt; by default as long as the topic says."
        ),
    ] = None,
    error: Error = None,
) -> None:
    """Have messages tried again. After their last attempt they become dead letters."""
    wait = as_duration(delay, name="--delay")
    async with cli.open_bus() as bus:
        outcomes = await (await bus.connect()).retry(token, ids, delay=wait, error=error)
    for message_id, outcome in outcomes.items():
        if outcome != "lost":
            write_json({"id": message_id, "outcome": outcome}) if cli.as_json else say(f"{message_id} {outcome}")
    if lost := [message_id for message_id, outcome in outcomes.items() if outcome == "lost"]:
        raise lease_lost(lost)


@command(app, "dead-letter")
async def dead_letter(
    cli: Cli,
    token: Token,
    ids: Ids,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason to keep with the messages.")],
    error: Error = None,
) -> None:
    """Make messages dead letters at once."""
    async with cli.open_bus() as bus:
        lost = await (await bus.connect()).dead_letter(token, ids, reason, error)
    _tell(cli, "dead", token, ids, lost)


@command(app, "release")
async def release(cli: Cli, token: Token, ids: Ids) -> None:
    """Give messages back as if they had not been popped."""
    async with cli.open_bus() as bus:
        lost = await (await bus.connect()).release(token, ids)
    _tell(cli, "released", token, ids, lost)


@command(app, "extend")
async def extend(
    cli: Cli,
    token: Token,
    lease: Annotated[str, typer.Option("--lease", metavar="DURATION", help="Hold the lease for this long from now.")],
) -> None:
    """Hold all messages of a lease for longer."""
    length = check_lease(lease)
    async with cli.open_bus() as bus:
        if await (await bus.connect()).extend([token], length):
            raise _lost(token)
    write_json({"token": str(token), "outcome": "extended"}) if cli.as_json else cli.note("extended the lease")


def _tell(cli: Cli, outcome: str, token: UUID, ids: list[int], lost: set[int]) -> None:
    settled = [one for one in ids if one not in lost]
    if cli.as_json:
        told: dict[str, Any] = {"token": str(token), "outcome": outcome, "ids": settled}
        write_json(told)
    elif settled:
        cli.note(f"{outcome}: {counted(len(settled), 'message')}")
    if lost:
        raise lease_lost(lost)


def _lost(token: UUID) -> LeaseLost:
    return LeaseLost(
        f"the lease {token} is lost: another consumer has its messages, or they are done",
        remedy="pop again, with a longer lease",
    )
