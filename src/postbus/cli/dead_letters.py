"""postbus dead-letters …"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from postbus._runtime.visible_text import counted, last_line, visible_lines
from postbus.admin import Admin
from postbus.cli._arguments import MAX_ID, DryRun, MessageId, OnlyTopic, Topic
from postbus.cli._command import Cli, command, group
from postbus.cli._exits import usage_error
from postbus.cli._inputs import as_past_moment
from postbus.cli._render import message_json, payload_lines, write_facts, write_json, write_table
from postbus.cli._say import say, say_block
from postbus.results import DeadLetterInfo

app = group("dead-letters", "List, show, redrive and delete dead letters.")

Ids = Annotated[
    list[int] | None,
    typer.Argument(metavar="ID", help="Only those with these ids.", min=0, max=MAX_ID, show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="All of the topic; needed if neither ids nor filters are given.")]
Before = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="Only those that died before this time, or more than 2h, 7d ago."),
]
After = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="Only those that died after this time, or within the last 2h, 7d."),
]
Group = Annotated[
    str | None, typer.Option("--group", metavar="NAME", help="Only those of this group of a PUB_SUB topic.")
]


@command(app, "list")
async def list_dead_letters(
    cli: Cli,
    topic: OnlyTopic = None,
    group: Group = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 100,
    after_id: Annotated[int, typer.Option(min=0, max=MAX_ID, help="Only ids above this one: the next page.")] = 0,
) -> None:
    """Show dead letters, the oldest first."""
    async with cli.open_bus() as bus:
        if topic is not None:
            await bus.admin.semantics(topic)  # refuses a topic that does not exist
            if group is not None:
                await _check_group(bus.admin, topic, group)
        found = await bus.admin.dead_letters(topic, group=group, after_id=after_id, limit=limit)
    if cli.as_json:
        write_json([message_json(row) for row in found])
        return
    if not found:
        cli.note("no dead letters")
        return
    columns = ["id", "topic", "group_name", "died_at", "attempts", "key"]
    if all(one.group_name is None for one in found):
        columns.remove("group_name")
    write_table(
        [*(_HEADINGS.get(column, column) for column in columns), "reason"],
        [[*(getattr(one, column) for column in columns), _why(one)] for one in found],
        right=("id", "attempts"),
        whole=("id", "died"),
    )
    if len(found) >= limit:
        cli.note(f"there may be more: --after-id {found[-1].id}")


_HEADINGS = {"group_name": "group", "died_at": "died"}


async def _check_group(admin: Admin, topic: str, group: str) -> None:
    """Refuse a group that never existed. One that was cancelled may have left dead letters."""
    if not await admin.groups(topic, group, cancelled=True):
        await admin.group(topic, group)


def _why(row: DeadLetterInfo) -> str:
    """The reason, and the last line of the error, shortened."""
    return ": ".join(filter(None, (row.reason, last_line(row.last_error)[:200])))


@command(app, "show")
async def show(
    cli: Cli,
    message_id: MessageId,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The topic of the message.")] = None,
    group: Group = None,
) -> None:
    """Show one dead letter: payload, headers, reason and last error.

    If several groups gave the message up, choose one with --group.
    """
    async with cli.open_bus() as bus:
        row = await bus.admin.dead_letter(message_id, topic=topic, group=group)
    if cli.as_json:
        write_json(message_json(row))
        return
    names = (
        "event_id",
        "died_at",
        "reason",
        "attempts",
        "published_at",
        "key",
        "priority",
        "correlation_id",
        "content_type",
    )
    facts: dict[str, Any] = {"id": row.id, "topic": row.topic, "group": row.group_name}
    facts |= {name: getattr(row, name) for name in names}
    if row.group_name is not None:
        del facts["priority"]  # groups have none
    facts |= {f"header {name}": value for name, value in row.headers.items()}
    write_facts({name: value for name, value in facts.items() if value is not None})
    say()
    say("payload")
    say_block(payload_lines(row.payload, row.content_type))
    if row.last_error:
        say()
        say("last error")
        say_block([*visible_lines(row.last_error)])


@command(app, "redrive")
async def redrive(
    cli: Cli,
    *,
    topic: Topic,
    ids: Ids = None,
    all_of_them: All = False,
    reason_like: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only those whose reason or error matches; % stands for any text."),
    ] = None,
    before: Before = None,
    after: After = None,
    key: Annotated[str | None, typer.Option(help="Only those with this key.")] = None,
    group: Group = None,
    max_count: Annotated[
        int | None, typer.Option("--max", min=1, max=2**31 - 1, help="At most this many, the oldest first.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Redrive this many per second.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Put dead letters back into their QUEUE, or give them to one group again (--group). Attempts restart at zero."""
    filters: dict[str, Any] = {
        "ids": ids or None,
        "reason_like": reason_like,
        "died_before": as_past_moment(before, name="--before"),
        "died_after": as_past_moment(after, name="--after"),
        "key": key,
    }
    _check_choice(all_of_them, filters)
    async with cli.open_bus() as bus:
        count = await bus.admin.redrive(topic, **filters, max_count=max_count, rate=rate, dry_run=dry_run, group=group)
    _tell(cli, topic, count, "redrive", past="redrove", dry_run=dry_run, group=group)


@command(app, "purge")
async def purge(
    cli: Cli,
    *,
    topic: Topic,
    ids: Ids = None,
    all_of_them: All = False,
    before: Before = None,
    group: Group = None,
    dry_run: DryRun = False,
) -> None:
    """Delete dead letters for good. In a PUB_SUB topic, this deletes those of all groups, or of one (--group)."""
    filters: dict[str, Any] = {"ids": ids or None, "died_before": as_past_moment(before, name="--before")}
    _check_choice(all_of_them, filters)
    async with cli.open_bus() as bus:
        count = await bus.admin.purge_dead_letters(topic, **filters, dry_run=dry_run, group=group)
    _tell(cli, topic, count, "delete", past="deleted", dry_run=dry_run, group=group)


def _check_choice(all_of_them: bool, filters: dict[str, Any]) -> None:
    is_narrowed = any(value is not None for value in filters.values())
    if not all_of_them and not is_narrowed:
        raise usage_error("which dead letters?", remedy="give ids, a filter, or --all")
    if all_of_them and is_narrowed:
        raise usage_error("--all is given together with ids or a filter", remedy="omit one of them")


def _tell(cli: Cli, topic: str, count: int, verb: str, *, past: str, dry_run: bool, group: str | None) -> None:
    if cli.as_json:
        of_group = {} if group is None else {"group": group}
        write_json({"topic": topic, **of_group, "count": count, "dry_run": dry_run})
    else:
        whose = topic if group is None else f"{group} on {topic}"
        say(f"{f'would {verb}' if dry_run else past} {counted(count, 'dead letter')} of {whose}")
