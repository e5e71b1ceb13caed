"""Popping in tests: leased messages, and leases that end."""

from __future__ import annotations

from typing import Any

from postbus import Bus, Popped


async def leased(conn: Any, topic: str) -> int:
    """Return how many messages of a topic are leased."""
    return int(
        await conn.fetchval("select count(*) from postbus.messages where topic = $1 and state = 'leased'", topic)
    )


async def states_of(conn: Any, topic: str) -> dict[str, int]:
    """Return how many messages of a topic are in each state."""
    rows = await conn.fetch("select state, count(*)::int from postbus.messages where topic = $1 group by state", topic)
    return dict(rows)


async def let_end(conn: Any, popped: Popped) -> None:
    """Let the leases end, as if time had passed."""
    tokens = {one.token for one in popped}
    await conn.execute(
        "update postbus.lease set ends_at = clock_timestamp() - interval '1 ms' where token = any ($1)", tokens
    )


async def lose(conn: Any, popped: Popped) -> None:
    """Let the leases end, and return their messages."""
    await let_end(conn, popped)
    await conn.execute("select postbus.return_expired()")


async def send_numbers(bus: Bus, topic: str, count: int, **options: Any) -> list[int]:
    """Send 0, 1, 2, … Returns their ids."""
    return [await bus.send(topic, number, **options) for number in range(count)]
