"""postbus groups check, limits and force-complete"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from postbus._runtime.visible_text import counted
from postbus.cli._arguments import DryRun, Topic, Yes
from postbus.cli._command import Cli, command, option
from postbus.cli._exits import FAILED, OK
from postbus.cli._inputs import as_duration, confirm, flag_of
from postbus.cli._render import as_dict, printable, write_facts, write_json, write_table
from postbus.cli._say import say
from postbus.cli.groups import app
from postbus.health import is_well
from postbus.results import GroupInfo

_LIMITS = (
    option("failed_share", str, "The share of calls that failed in the last five minutes: 0.2."),
    option("lag", str, "The number of messages before a group: 10000."),
    option("lag_age", str, "The age of the oldest message before a group: 10m."),
    option("stopped_for", str, "How long a group may be without consumers after a planned stop: 24h."),
)


@command(app, "check")
async def check(
    cli: Cli,
    stuck_after: Annotated[
        str,
        typer.Option(
            "--stuck-after", metavar="DURATION", help="Messages that have not been settled for this long are stuck."
        ),
    ] = "1h",
) -> int:
    """Look for groups in trouble, stuck messages and inconsistencies. The exit code is 0 if there are none."""
    longest = as_duration(stuck_after, name="--stuck-after")
    assert longest is not None
    async with cli.open_bus() as bus:
        findings = await bus.admin.group_findings(longest)
        if cli.as_json:
            details = {
                "unhealthy": [_of(one) for one in await bus.admin.groups() if not one.healthy],
                "near_timeout": await bus.admin.groups_near_timeout(),
                "stuck": await bus.admin.stuck_messages(longest),
                "inconsistent": await bus.admin.inconsistencies(),
                "zero_subscriptions": await bus.admin.zero_subscription_messages(),
            }
    all_well = is_well(findings)
    if cli.as_json:
        write_json({"ok": all_well, "findings": findings, **details})
    else:
        if all_well:
            say("all is well with the groups")
        if findings:
            columns = ["level", "topic", "group", "finding", "what to do"]
            write_table(columns, [[one.level, one.topic, one.group, one.text, one.remedy] for one in findings])
    return OK if all_well else FAILED


def _of(group: GroupInfo) -> dict[str, Any]:
    return {name: getattr(group, name) for name in ("topic", "group_name", "state", "problem")}


@command(app, "limits", options=_LIMITS)
async def limits(
    cli: Cli,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="For the groups of this topic.")] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="For groups of this name.")] = None,
    **options: Any,
) -> None:
    """Show or set the limits beyond which a group is in trouble: for all groups, those of a topic, or one.

    The most specific limit applies. "off" means no limit; "default" removes a limit, and a less specific one applies.
    """
    given = {name: value for name, value in options.items() if value is not None}
    async with cli.open_bus() as bus:
        if given:
            chosen: Any = {name: _limit(name, value) for name, value in given.items()}
            found = await bus.admin.set_health_limits(topic, group, **chosen)
        else:
            found = await bus.admin.health_limits(topic, group)
    if cli.as_json:
        write_json({"topic": topic, "group": group, **as_dict(found)})
    else:
        shown = {name: "off" if value is None else value for name, value in as_dict(found).items()}
        write_facts({name.replace("_", " "): value for name, value in shown.items()})


def _limit(name: str, value: str) -> Any:
    if value in ("off", "default"):
        return None if value == "default" else value
    if name in ("lag_age", "stopped_for"):
        return as_duration(value, name=flag_of(name))
    return value


@command(app, "force-complete")
async def force_complete(
    cli: Cli,
    topic: Topic,
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="DURATION", help="Skip messages older than this: 7d.", show_default=False),
    ],
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Only this group.", show_default=False)] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Move groups past messages that are older than a duration and that they have not settled, so they never get them.

    Messages that failed and will be tried again stay.
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
            say(f"{name} on {topic} {'would skip' if dry_run else 'skipped'} {counted(count, 'message')}")
    else:
        say(f"no group on {topic} has messages before it that are older than {printable(oldest)}")
