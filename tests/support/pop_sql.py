"""Popping by SQL, short to call from tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID


@dataclass
class Pop:
    """The result of one pop."""

    topic: str | None = None
    token: UUID | None = None
    ids: list[int] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    ends_at: datetime | None = None
    more: bool = False
    next_due: timedelta | None = None
    scan_floor: str | None = None


async def pop(conn: Any, count: int = 1, *, topic: str = "t", group: str | None = "g", **options: Any) -> Pop:
    """Call `pop` once; with `as_of`, as if it were then."""
    if "as_of" in options:
        return await _pop_as_of(conn, count, topic, group, options)
    named = "".join(f", {name} => ${place}" for place, name in enumerate(options, 4))
    return as_pop(
        await conn.fetch(
            f"select * from postbus.pop($1, $2, max_count => $3{named})", topic, group, count, *options.values()
        )
    )


async def _pop_as_of(conn: Any, count: int, topic: str, group: str | None, options: dict[str, Any]) -> Pop:
    """Call the internal part of pop that takes the time: see pop_group."""
    given = {
        "member": "somebody",
        "lease": None,
        "key": None,
        "auto_ack": False,
        "scan_floor": None,
        "max_bytes": 1 << 24,
    }
    given |= {"topic": topic, "group_name": group, "max_count": count, **options}
    named = ", ".join(f"{name} => ${place}" for place, name in enumerate(given, 1))
    return as_pop(await conn.fetch(f"select * from postbus.pop_group({named})", *given.values()))


def as_pop(rows: list[Any]) -> Pop:
    """Return the rows of a pop as one result."""
    *found, last = rows
    popped = Pop(more=last["more"], next_due=last["next_due"], scan_floor=last["next_scan_floor"])
    for row in found:
        popped.topic = row["topic"]
        popped.token = row["token"]
        popped.ids = row["ids"]
        popped.messages = [payload.decode() for payload in row["payloads"]]
        popped.keys = row["keys"]
        popped.attempts = row["attempts"]
        popped.ends_at = row["ends_at"]
    return popped


async def ack(conn: Any, popped: Pop, *ids: int) -> list[int]:
    """Acknowledge what was popped, or some of it. Returns the ids of lost messages."""
    lost: list[int] = await conn.fetchval("select postbus.ack($1, $2)", popped.token, list(ids) or popped.ids)
    return lost


async def retry(conn: Any, popped: Pop, *ids: int, delay: timedelta | None = timedelta(0)) -> dict[int, str]:
    rows = await conn.fetch(
        "select * from postbus.retry($1, $2, $3, 'it failed')", popped.token, list(ids) or popped.ids, delay
    )
    return {row["message_id"]: row["outcome"] for row in rows}
