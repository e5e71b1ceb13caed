"""postbus audit"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from postbus.admin import Admin
from postbus.cli._command import Cli
from postbus.cli._inputs import as_past_moment
from postbus.cli._render import printable, write_json, write_table
from postbus.cli._say import say
from postbus.errors import DatabaseUnavailable
from postbus.results import AuditEntry

_EVERY = 1.0  # seconds
_AGAIN = 1000  # the newest ids, which are read again: an entry appears when its transaction commits


async def audit(
    cli: Cli,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Entries since this time, or of the last 2h, 7d.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Entries before this time, or more than 2h, 7d ago.")
    ] = None,
    actor: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Entries with this text in their login, role or actor."),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(metavar="ACTION", help="Entries with this action: topic.set, or topic for all of that kind."),
    ] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Entries about this topic.")] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Entries about this group.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many entries, the newest ones.")] = 50,
    before_id: Annotated[
        int | None, typer.Option(min=1, max=2**62, help="Only ids below this one: older entries.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new entries until Ctrl-C.")] = False,
) -> None:
    """Show who did what: administrative actions from the command line, HTTP, Python and SQL.

    Actions that were refused or changed nothing have no entry.
    """
    filters: dict[str, Any] = {
        "since": as_past_moment(since, name="--since"), "until": as_past_moment(until, name="--until"),
        "actor": actor, "action": action, "topic": topic, "group": group,
    }  # fmt: skip
    async with cli.open_bus() as bus:
        found = await bus.admin.audit(**filters, before_id=before_id, limit=limit)
        found.reverse()
        if follow:
            await _follow(cli, bus.admin, filters, found)
        elif cli.as_json:
            write_json(found)
        elif not found:
            cli.note("no entries")
        else:
            write_table(_COLUMNS, [_cells(one) for one in found], right=("count",), whole=("when",))
            if len(found) >= limit:
                cli.note(f"there may be older entries: --before-id {found[0].id}")


async def _follow(cli: Cli, admin: Admin, filters: Mapping[str, Any], found: list[AuditEntry]) -> None:
    """Write each entry once, as soon as it appears."""
    seen: set[int] = set()
    first = found[0].id - 1 if found else 0
    while True:
        for one in found:
            if one.id not in seen:
                write_json(one) if cli.as_json else say(_line(one))
                seen.add(one.id)
        last = max(seen, default=0)
        seen = {one for one in seen if one > last - _AGAIN}
        await asyncio.sleep(_EVERY)
        try:
            found = await admin.audit(**filters, after_id=max(first, last - _AGAIN), limit=2 * _AGAIN, newest=False)
        except DatabaseUnavailable as error:
            cli.note(f"{error.message}; trying again")
            found = []


_COLUMNS = ("when", "who", "action", "on", "count", "change")


def _cells(entry: AuditEntry) -> list[Any]:
    group = None if entry.group_name is None else f"group {entry.group_name}"
    on = ", ".join(one for one in (entry.topic, group, entry.target) if one)
    return [entry.at, _who(entry), entry.action, on, entry.affected, _change(entry)]


def _line(entry: AuditEntry) -> str:
    return "  ".join(printable(one) for one in _cells(entry) if one not in (None, ""))


def _who(entry: AuditEntry) -> str:
    """The login, and the actor that it acted for."""
    login = entry.login if entry.role is None else f"{entry.login} as {entry.role}"
    return login if entry.actor is None else f"{entry.actor} ({login})"


def _change(entry: AuditEntry) -> str:
    before, after = entry.before or {}, entry.after or {}
    told = [f"{name} {_short(value)}" for name, value in (entry.given or {}).items()]
    told += [f"{name} was {_short(value)}" for name, value in before.items() if name not in after]
    told += [
        f"{name} {_short(before[name])} -> {_short(value)}" if name in before else f"{name} {_short(value)}"
        for name, value in after.items()
    ]
    return ", ".join(told)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
