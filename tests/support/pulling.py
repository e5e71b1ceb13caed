"""Popping in tests: what is leased, and leases that end."""

from __future__ import annotations

from typing import Any

from postbus import Bus, Popped


async def leased(conn: Any, topic: str) -> int:
    """How many messages of a topic somebody holds."""
    return int(
        await conn.fetchval("select count(*) from postbus.messages where topic = $1 and state = 'leased'", topic)
    )


async def states_of(conn: Any, topic: str) -> dict[str, int]:
    """How many messages of a topic are where."""
    rows = await conn.fetch("select state, count(*)::int from postbus.messages where topic = $1 group by state", topic)
    return dict(rows)


async def let_end(conn: Any, popped: Popped) -> None:
    """Let the leases be over, as if time had passed."""
    tokens = {one.token for one in popped}
    await conn.execute(
        "update postbus.lease set ends_at = clock_timestamp() - interval '1 ms' where token = any ($1)", tokens
    )


async def lose(conn: Any, popped: Popped) -> None:
    """Let the leases be over, and their messages go back."""
    await let_end(conn, popped)
    await conn.execute("select postbus.return_expired()")


async def send_numbers(bus: Bus, topic: str, count: int, **options: Any) -> list[int]:
    """Send 0, 1, 2, … Returns their ids."""
    return [await bus.send(topic, number, **options) for number in range(count)]
