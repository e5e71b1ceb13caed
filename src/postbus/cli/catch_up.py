"""postbus groups catch-up"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn

from postbus._runtime.visible_text import counted
from postbus.bus import Bus
from postbus.cli._arguments import Group, Topic
from postbus.cli._command import Cli, command
from postbus.cli._inputs import only_one
from postbus.cli._render import console, duration, printable, write_json
from postbus.cli._say import say
from postbus.cli.groups import app
from postbus.errors import InvalidGroup
from postbus.results import CatchUpInfo

_LOOK = 1.0  # seconds


@command(app, "catch-up")
async def catch_up(
    cli: Cli,
    topic: Topic,
    name: Group,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the catch-up. The group itself continues.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume it where it was stopped.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and do not wait for its end.")] = False,
) -> None:
    """Watch the catch-up of a group until it ends. Ctrl-C ends only the watching."""
    only_one(cancel=cancel, resume=resume, once=once)
    async with cli.open_bus() as bus:
        if cancel or resume:
            await (bus.admin.cancel_catch_up if cancel else bus.admin.resume_catch_up)(topic, name)
        row = await _latest(bus, topic, name)
        if once or cancel or resume or row.status != "IN_PROGRESS":
            _write(cli, row)
        elif cli.as_json or not console().is_terminal:
            await _follow_in_lines(cli, bus, row)
        else:
            await _follow_with_bar(bus, row)


async def _latest(bus: Bus, topic: str, name: str) -> CatchUpInfo:
    await bus.admin.group(topic, name)
    found = await bus.admin.catch_ups(topic, name)
    if not found:
        raise InvalidGroup(
            f"group {name!r} of topic {topic!r} has no history to catch up with",
            remedy=f"see its lag: postbus groups show {topic} {name}",
        )
    return found[-1]


async def _follow_in_lines(cli: Cli, bus: Bus, row: CatchUpInfo) -> None:
    """Write a line for each change."""
    told = None
    while True:
        if told != (now := (row.status, row.processed, row.skipped)):
            _write(cli, row)
            told = now
        if row.status != "IN_PROGRESS":
            return
        await asyncio.sleep(_LOOK)
        row = await _latest(bus, row.topic, row.group_name)


async def _follow_with_bar(bus: Bus, row: CatchUpInfo) -> None:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[told]}", markup=False),
    )
    with Progress(*columns, console=console(), auto_refresh=False) as progress:
        bar = progress.add_task(printable(row.group_name), total=row.total, told="")
        while True:
            progress.update(bar, total=row.total, completed=row.processed, told=printable(told_state(row)))
            progress.refresh()
            if row.status != "IN_PROGRESS":
                return
            await asyncio.sleep(_LOOK)
            row = await _latest(bus, row.topic, row.group_name)


def _write(cli: Cli, row: CatchUpInfo) -> None:
    if cli.as_json:
        write_json(row)
    else:
        say(f"{row.group_name} on {row.topic}: {told_state(row)}")


def told_state(row: CatchUpInfo) -> str:
    """A catch-up in words: its progress, its rate, and the rate that is allowed."""
    parts = [row.status, f"{row.processed} of {counted(row.total, 'message')}"]
    if row.skipped:
        parts.append(f"{row.skipped} skipped")
    if row.rate is not None:
        parts.append(f"{row.rate:.0f}/s")
    if row.allowed_rate is not None:
        parts.append(f"allowed {row.allowed_rate:.0f}/s")
    if row.p95 is not None:
        parts.append(f"p95 {row.p95.total_seconds() * 1000:.1f} ms")
    if row.status == "IN_PROGRESS" and row.eta is not None:
        parts.append(f"ends in {duration(row.eta - datetime.now(UTC))}")
    return ", ".join(parts)
