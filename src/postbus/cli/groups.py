"""postbus groups …"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from postbus._runtime.visible_text import counted
from postbus.bus import Bus
from postbus.cli._arguments import DryRun, Group, OnlyTopic, To, Topic, Yes
from postbus.cli._command import Cli, command, group
from postbus.cli._exits import FAILED, OK
from postbus.cli._inputs import as_duration, as_start, confirm
from postbus.cli._render import as_dict, duration, printable, write_facts, write_json, write_table
from postbus.cli._say import say
from postbus.results import GroupInfo, MemberInfo
from postbus.start import Start

app = group("groups", "Show and check groups of PUB_SUB topics; pause, resume, move, resurrect and remove them.")

_COUNTS = ("lag", "retrying", "parked", "dead", "lost")
_NOT_COUNTED = "no process consumes, so groups may lag more than shown; to count again: postbus sweep run"


@command(app, "list")
async def list_groups(
    cli: Cli,
    topic: OnlyTopic = None,
    with_cancelled: Annotated[bool, typer.Option("--all", help="Include cancelled groups.")] = False,
) -> None:
    """Show groups: state, health, lag, and the age of the oldest message before them."""
    async with cli.open_bus() as bus:
        semantics = None if topic is None else await bus.admin.semantics(topic)
        found = await bus.admin.groups(topic, cancelled=with_cancelled)
        is_counted = await _is_counted(bus, found)
    if cli.as_json:
        write_json(found)
    elif not found:
        cli.note(_why_none(topic, semantics))
    else:
        write_table(
            ["topic", "group", "state", "lag", "oldest", *_COUNTS[1:], "workers", "health"],
            [
                [
                    one.topic,
                    one.group_name,
                    one.state,
                    one.lag,
                    _oldest(one),
                    *(getattr(one, count) for count in _COUNTS[1:]),
                    len(one.workers),
                    _health(one),
                ]
                for one in found
            ],
            right=(*_COUNTS, "oldest", "workers"),
        )
        if not is_counted:
            cli.note(_NOT_COUNTED)


async def _is_counted(bus: Bus, groups: list[GroupInfo]) -> bool:
    """Whether the lag of groups is current: a live process counts what is published. Without lag it does not matter."""
    workers = await bus.admin.workers()
    return any(one.is_alive for one in workers) or not any(one.lag for one in groups)


def _why_none(topic: str | None, semantics: str | None) -> str:
    if topic is None:
        return "no groups yet: a group begins with its first consumer"
    if semantics == "QUEUE":
        return f"no groups: {topic} is a QUEUE, which gives each message to one consumer"
    return f"no groups of {topic} yet: a group begins with its first consumer"


def _health(row: GroupInfo) -> str:
    if row.waits_for_queue and row.healthy:
        return "waits for the queue"
    if row.stopped_at is not None and row.healthy:
        return f"stopped by {row.stopped_by} at {printable(row.stopped_at)}"
    return "" if row.healthy is None else "ok" if row.healthy else row.problem or ""


def _oldest(row: GroupInfo) -> str:
    return "" if row.lag_seconds is None else duration(timedelta(seconds=row.lag_seconds))


@command(app, "show")
async def show(cli: Cli, topic: Topic, name: Group) -> None:
    """Show one group: how far it has come, how fast it is, and its members."""
    async with cli.open_bus() as bus:
        row = await bus.admin.group(topic, name)
        members = await bus.admin.members(topic, name)
        metrics = await bus.admin.group_metrics(topic, name)
        is_counted = await _is_counted(bus, [row])
    if cli.as_json:
        write_json(as_dict(row) | {"members": members, "rate": metrics.rate, "handling_ms": metrics.handling_ms})
        return
    names = (
        "state", "lag", "pending", "passed", "processed", "failed", "filtered", "in_flight", "retrying",
        "parked", "dead", "lost",
    )  # fmt: skip
    facts = {"topic": topic, "group": name} | {count: getattr(row, count) for count in names}
    facts |= {
        "health": _health(row),
        "rate": f"{metrics.rate:.1f} messages per second in the last minute",
        "handling": None if metrics.handling_ms is None else f"{metrics.handling_ms:.1f} ms per message",
        "oldest": _oldest(row),
        "on_failure": row.on_failure,
        "started": told_start(Start(row.start, row.start_at, row.start_id)),
        "subscribed": row.subscribed_at,
        "last heartbeat": row.seen_at,
        "last progress": row.progressed_at,
        "stopped": row.stopped_at and f"{printable(row.stopped_at)}, as planned, by {row.stopped_by}",
        "sink": row.sink and f"{row.sink} has been away since {printable(row.sink_away_since)}: {row.sink_error}",
        "lanes": f"{row.lanes_held} of {row.lanes} held",
        "workers": ", ".join(row.workers),
    }
    write_facts({fact: value for fact, value in facts.items() if value is not None and value != ""})
    if members:
        say()
        counts = ("processed", "failed", "filtered", "in_flight")
        write_table(
            ["member", *counts, "handling", "seen"],
            [[one.name, *(getattr(one, count) for count in counts), _told_ms(one), one.seen_at] for one in members],
            right=(*counts, "handling"),
        )
    if not is_counted:
        cli.note(_NOT_COUNTED)


def _told_ms(member: MemberInfo) -> str:
    return "" if member.handling_ms is None else f"{member.handling_ms:.1f} ms"


def told_start(start: Start) -> str:
    """A position in a log, in words."""
    match start:
        case Start(timestamp=moment) if moment is not None:
            return f"at {printable(moment)}"
        case Start(message_id=message_id) if message_id is not None:
            return f"from message {message_id}"
        case _:
            return "from now" if start == Start.NOW else "from the beginning"


@command(app, "pause")
async def pause(cli: Cli, topic: Topic, name: Group) -> None:
    """Stop delivery to a group. It keeps its position, and the messages that are published meanwhile."""
    async with cli.open_bus() as bus:
        await bus.admin.pause_group(topic, name)
        row = await bus.admin.group(topic, name)
    _tell(cli, row, f"paused {name} on {topic}")


@command(app, "resume")
async def resume(cli: Cli, topic: Topic, name: Group) -> None:
    """Resume delivery to a paused group."""
    async with cli.open_bus() as bus:
        await bus.admin.resume_group(topic, name)
        row = await bus.admin.group(topic, name)
    _tell(cli, row, f"resumed {name} on {topic}")


@command(app, "cancel")
async def cancel(cli: Cli, topic: Topic, name: Group, yes: Yes = False) -> None:
    """End a group's subscription for good. Its position is forgotten, and so are messages that it would try again."""
    async with cli.open_bus() as bus:
        row = await bus.admin.group(topic, name)
        if not yes:
            confirm(f"Cancel group {name} on {topic}, which has {counted(row.pending or 0, 'message')} to do?")
        await bus.admin.cancel_group(topic, name)
        ended = (await bus.admin.groups(topic, name, cancelled=True))[-1]
    _tell(cli, ended, f"cancelled {name} on {topic}")


@command(app, "remove")
async def remove(
    cli: Cli,
    topic: Topic,
    name: Group,
    wait: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for messages in hand.")] = "30s",
    yes: Yes = False,
) -> int:
    """Remove a group with all its data, dead letters included, once messages in hand are settled."""
    longest = as_duration(wait, name="--wait")
    assert longest is not None
    async with cli.open_bus() as bus:
        if not yes:
            await _confirm_removal(bus, topic, name)
        told = await bus.admin.remove_group(topic, name, wait=longest)
    if cli.as_json:
        write_json({"topic": topic, "group": name, **as_dict(told)})
    elif not told.removed:
        say(f"{name} on {topic} is paused, but not removed: one of its lanes has an open transaction; try again later")
    else:
        say(f"removed {name} from {topic}")
        if told.held:
            cli.note(f"{counted(told.held, 'lane')} of it had messages in hand, which are handled and not settled")
    return OK if told.removed else FAILED


async def _confirm_removal(bus: Bus, topic: str, name: str) -> None:
    known = await bus.admin.groups(topic, name, cancelled=True)
    if not known:
        await bus.admin.group(topic, name)  # this raises an error that says what is missing
    dead = sum(one.dead for one in known)
    confirm(
        f"Remove group {name} from {topic}, which has {counted(known[-1].pending or 0, 'message')} to do "
        f"and {counted(dead, 'dead letter')}?"
    )


@command(app, "resurrect")
async def resurrect(
    cli: Cli,
    topic: Topic,
    name: Group,
    no_catch_up: Annotated[
        bool, typer.Option("--no-catch-up", help="Continue with messages published from now on; skip the missed ones.")
    ] = False,
) -> None:
    """Resurrect a DEAD group. It continues at its position, with the messages that are still retained."""
    async with cli.open_bus() as bus:
        told = await bus.admin.resurrect_group(topic, name, catch_up=not no_catch_up)
        catching_up = (await bus.admin.group(topic, name)).catch_up == "IN_PROGRESS"
    if cli.as_json:
        write_json({"topic": topic, "group": name, **as_dict(told), "catching_up": catching_up})
        return
    say(f"resurrected {name} on {topic}: it missed {counted(told.missed, 'message')}, {told.skipped} are skipped")
    if catching_up:
        cli.note(f"it works through the missed messages beside new ones: postbus groups catch-up {topic} {name}")


@command(app, "seek")
async def seek(
    cli: Cli,
    topic: Topic,
    name: Group,
    to: To,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Move a group to another position. It goes on from there, and gets all messages after it, even again.

    Messages that failed and will be tried again stay.
    """
    start = as_start(to, name="--to")
    position = told_start(start)
    async with cli.open_bus() as bus:
        if not (dry_run or yes):
            count = await bus.admin.seek(topic, name, start, dry_run=True)
            before = (await bus.admin.group(topic, name)).lag
            confirm(
                f"Let group {name} go on {position}? "
                f"It has {counted(before or 0, 'message')} before it, and would have {count}."
            )
        count = await bus.admin.seek(topic, name, start, dry_run=dry_run)
    if cli.as_json:
        write_json({"topic": topic, "group": name, "to": to, "count": count, "dry_run": dry_run})
    else:
        does = "would go" if dry_run else "goes"
        say(f"{name} on {topic} {does} on {position}, with {counted(count, 'message')} before it")


def _tell(cli: Cli, row: GroupInfo, done: str) -> None:
    if cli.as_json:
        write_json(row)
    else:
        say(done)
