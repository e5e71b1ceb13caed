"""postbus dead-letters …"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from postbus.cli._command import Cli, command, group
from postbus.cli._exits import usage_error
from postbus.cli._inputs import as_past_moment
from postbus.cli._render import (
    counted,
    message_json,
    payload_text,
    printable,
    write_facts,
    write_json,
    write_table,
)

app = group("dead-letters", "Look at dead letters, put them back, delete them.")

_BIGINT = 2**63 - 1
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)]
Ids = Annotated[
    list[int] | None,
    typer.Argument(metavar="ID", help="Only these.", min=0, max=_BIGINT, show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="All of the topic's: needed where nothing else narrows it.")]
Before = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="Those that died before this time, or longer ago than 2h, 7d."),
]
After = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="Those that died after this time, or less long ago than 2h, 7d."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]


@command(app, "list")
async def list_dead_letters(
    cli: Cli,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Only of this topic.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 100,
    after_id: Annotated[int, typer.Option(min=0, max=_BIGINT, help="Those after this id: the next page.")] = 0,
) -> None:
    """Show dead letters, the oldest first."""
    async with cli.open_bus() as bus:
        if topic is not None:
            await bus.admin.topic(topic)
        found = await bus.admin.dead_letters(topic, after_id=after_id, limit=limit)
    if cli.as_json:
        write_json([message_json(row) for row in found])
        return
    if not found:
        cli.note("no dead letters")
        return
    write_table(
        ["id", "topic", "died", "attempts", "key", "reason"],
        [[one["id"], one["topic"], one["died_at"], one["attempts"], one["key"], _why(one)] for one in found],
        right=("id", "attempts"),
        whole=("id", "died"),
    )
    if len(found) == limit:
        cli.note(f"there may be more: --after-id {found[-1]['id']}")


def _why(row: dict[str, Any]) -> str:
    """The reason, and what went wrong last, in short."""
    last = (row["last_error"] or "").strip().rpartition("\n")[2]
    return ": ".join(filter(None, (row["reason"], last[:200])))


@command(app, "show")
async def show(
    cli: Cli,
    message_id: Annotated[
        int, typer.Argument(metavar="ID", min=0, max=_BIGINT, help="The message's id.", show_default=False)
    ],
) -> None:
    """Show one dead letter: payload, headers, reason and last error."""
    async with cli.open_bus() as bus:
        row = await bus.admin.dead_letter(message_id)
    shown = message_json(row)
    if cli.as_json:
        write_json(shown)
        return
    names = ("id", "topic", "died_at", "reason", "attempts", "published_at", "key", "priority")
    facts = {name: row[name] for name in (*names, "correlation_id", "content_type")}
    facts |= {f"header {name}": value for name, value in shown["headers"].items()}
    write_facts({name: value for name, value in facts.items() if value is not None})
    print(f"\npayload\n{_indented(payload_text(row['payload'], row['content_type']))}")
    if row["last_error"]:
        lines = (printable(line) for line in row["last_error"].rstrip().splitlines())
        print("\nlast error\n" + _indented("\n".join(lines)))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


@command(app, "redrive")
async def redrive(
    cli: Cli,
    *,
    topic: Topic,
    ids: Ids = None,
    all_of_them: All = False,
    reason_like: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Those whose reason or error is like this; % stands for anything."),
    ] = None,
    before: Before = None,
    after: After = None,
    key: Annotated[str | None, typer.Option(help="Those with this key.")] = None,
    max_count: Annotated[
        int | None, typer.Option("--max", min=1, max=2**31 - 1, help="At most this many, the oldest first.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Spread them: this many per second.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Put dead letters back into their topic, with their attempts at zero."""
    filters: dict[str, Any] = {
        "ids": ids or None,
        "reason_like": reason_like,
        "died_before": as_past_moment(before, name="--before"),
        "died_after": as_past_moment(after, name="--after"),
        "key": key,
    }
    _check_choice(all_of_them, filters)
    async with cli.open_bus() as bus:
        count = await bus.admin.redrive(topic, **filters, max_count=max_count, rate=rate, dry_run=dry_run)
    _tell(cli, topic, count, "redrive", past="redrove", dry_run=dry_run)


@command(app, "purge")
async def purge(
    cli: Cli,
    *,
    topic: Topic,
    ids: Ids = None,
    all_of_them: All = False,
    before: Before = None,
    dry_run: DryRun = False,
) -> None:
    """Delete dead letters for good."""
    filters: dict[str, Any] = {"ids": ids or None, "died_before": as_past_moment(before, name="--before")}
    _check_choice(all_of_them, filters)
    async with cli.open_bus() as bus:
        count = await bus.admin.purge_dead_letters(topic, **filters, dry_run=dry_run)
    _tell(cli, topic, count, "delete", past="deleted", dry_run=dry_run)


def _check_choice(all_of_them: bool, filters: dict[str, Any]) -> None:
    is_narrowed = any(value is not None for value in filters.values())
    if not all_of_them and not is_narrowed:
        raise usage_error("which dead letters?", remedy="give ids, a filter, or --all")
    if all_of_them and is_narrowed:
        raise usage_error("--all together with ids or a filter", remedy="leave one of them out")


def _tell(cli: Cli, topic: str, count: int, verb: str, *, past: str, dry_run: bool) -> None:
    if cli.as_json:
        write_json({"topic": topic, "count": count, "dry_run": dry_run})
    else:
        print(f"{f'would {verb}' if dry_run else past} {counted(count, 'dead letter')} of {topic}")
