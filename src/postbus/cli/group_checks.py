"""postbus groups check, and what is done about messages that are stuck"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any

import typer

from postbus.cli._command import Cli, command
from postbus.cli._exits import FAILED, OK
from postbus.cli._inputs import as_duration, confirm
from postbus.cli._render import age, counted, printable, write_json, write_table
from postbus.cli.groups import Topic, Yes, app

_Row = dict[str, Any]


@command(app, "check")
async def check(
    cli: Cli,
    stuck_after: Annotated[
        str,
        typer.Option("--stuck-after", metavar="DURATION", help="Messages that are not settled for longer are stuck."),
    ] = "1h",
) -> int:
    """Look for groups in trouble, messages that are stuck, and what should never be. Exit code 0 if all is well."""
    longest = as_duration(stuck_after, name="--stuck-after")
    assert longest is not None
    async with cli.open_bus() as bus:
        found = {
            "unhealthy": [one for one in await bus.admin.groups() if not one["healthy"]],
            "near_timeout": await bus.admin.groups_near_timeout(),
            "stuck": await bus.admin.stuck_messages(longest),
            "inconsistent": await bus.admin.inconsistencies(),
            "zero_subscriptions": await bus.admin.zero_subscription_messages(),
        }
    is_well = not any(found.values())
    if cli.as_json:
        unhealthy = [_of(one, "topic", "group_name", "state", "problem") for one in found["unhealthy"]]
        write_json({"ok": is_well, **found, "unhealthy": unhealthy})
    elif is_well:
        print("all is well with the groups")
    else:
        write_table(["topic", "group", "finding"], _findings(found))
    return OK if is_well else FAILED


def _of(row: _Row, *names: str) -> _Row:
    return {name: row[name] for name in names}


def _findings(found: dict[str, list[_Row]]) -> Iterator[tuple[str, str, str]]:
    for one in found["unhealthy"]:  # also has those that are near their timeout
        yield one["topic"], one["group_name"], one["problem"]
    for one in found["stuck"]:
        count = counted(one["messages"], "message")
        yield (
            one["topic"],
            ", ".join(one["groups"]),
            f"up to {count} not settled, the oldest for {age(one['oldest_at'])}",
        )
    for one in found["inconsistent"]:
        yield one["topic"] or "", one["group_name"] or f"(subscription {one['subscription_id']})", one["explanation"]
    for one in found["zero_subscriptions"]:
        count = counted(one["messages"], "message")
        yield one["topic"], "", f"{count} for nobody, the oldest since {printable(one['oldest_at'])}: no live group"


@command(app, "force-complete")
async def force_complete(
    cli: Cli,
    topic: Topic,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Such as 7d.", show_default=False)
    ],
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Only this group.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: Yes = False,
) -> None:
    """Move groups past messages that were published longer ago and that they have not settled: they will not get them.

    What a group tries again after a failure stays.
    """
    oldest = as_duration(older_than, name="--older-than")
    assert isinstance(oldest, timedelta)
    async with cli.open_bus() as bus:
        told = await bus.admin.force_complete(topic, oldest, group=group, dry_run=True)
        if told and not dry_run:
            if not yes:
                listed = ", ".join(f"{name} {count}" for name, count in told.items())
                confirm(f"Let groups on {topic} skip messages: {listed}?")
            told = await bus.admin.force_complete(topic, oldest, group=group)
    if cli.as_json:
        write_json({"topic": topic, "older_than": oldest, "skipped": told, "dry_run": dry_run})
    elif told:
        for name, count in told.items():
            print(f"{name} on {topic} {'would skip' if dry_run else 'skips'} {counted(count, 'message')}")
    else:
        print(f"no group on {topic} has messages before it that are older than {printable(oldest)}")
