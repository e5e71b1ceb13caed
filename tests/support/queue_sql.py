"""The queue's SQL functions, short to call from tests."""

from __future__ import annotations

from typing import Any


async def publish(conn: Any, *payloads: str, topic: str = "t", **options: Any) -> list[int]:
    named = "".join(f", {name} => ${place}" for place, name in enumerate(options, 3))
    return [
        await conn.fetchval(f"select postbus.publish($1, $2::text{named})", topic, payload, *options.values())
        for payload in payloads
    ]


async def claim(conn: Any, count: int = 10, *, topic: str = "t", member: str = "a", **options: Any) -> Any:
    """Claim once; with `as_of`, as if it were then."""
    named = "".join(f", {name} => ${place}" for place, name in enumerate(options, 4))
    function = "claim_as_of" if "as_of" in options else "claim"
    return await conn.fetchrow(
        f"select * from postbus.{function}($1, $2, $3{named})", topic, member, count, *options.values()
    )


def payloads(claimed: Any) -> list[str]:
    return [payload.decode() for payload in claimed["payloads"] or []]


async def payloads_of(conn: Any, topic: str) -> list[str]:
    """Return the payloads of a topic, in the order of ids."""
    rows = await conn.fetch("select payload from postbus.messages where topic = $1 order by id", topic)
    return [row["payload"].decode() for row in rows]


async def count_of(conn: Any, topic: str) -> int:
    """Return how many messages a topic has."""
    return int(await conn.fetchval("select count(*) from postbus.messages where topic = $1", topic))


async def states(conn: Any) -> dict[str, int]:
    return dict(await conn.fetch("select state, count(*)::int from postbus.messages group by state"))


async def ack(conn: Any, claimed: Any) -> None:
    """Acknowledge everything that a claim returned."""
    lost = await conn.fetchval("select postbus.ack_leases(array[$1::uuid])", claimed["token"])
    assert lost == []


async def is_waiting(conn: Any, pid: int) -> bool:
    """Return whether a session waits for another one's lock."""
    return bool(await conn.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid))
