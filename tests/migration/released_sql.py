"""Functions of the log as earlier versions had them, short to call from tests: they believed what the caller said."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from support.log_sql import Lane, Piece, read, take


async def advance(
    conn: Any, lanes: list[Lane], cursor: str, passed: int = 0, done: tuple[int, int] | None = None
) -> list[int]:
    """Move lanes on; the answer names those that are lost, by their place from 1 on."""
    count = len(lanes)
    lost: list[int] = await conn.fetchval(
        "select postbus.advance($1, $2, $3, $4, $5, $6, $7)",
        [lane.subscription for lane in lanes],
        [lane.lane for lane in lanes],
        [lane.number for lane in lanes],
        [cursor] * count,
        [done[0] if done else None] * count,
        [done[1] if done else None] * count,
        [passed] * count,
    )
    for place, lane in enumerate(lanes, 1):
        lane.number += place not in lost
    return lost


async def put_off(conn: Any, lane: Lane, piece: Piece, *kinds: str) -> list[str] | None:
    """Put off the first messages of a piece, one for each of `kinds`."""
    count = len(kinds)
    now = await conn.fetchval("select clock_timestamp()")
    told: list[str] | None = await conn.fetchval(
        "select postbus.put_off($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
        lane.subscription,
        lane.lane,
        lane.token,
        list(kinds),
        piece.ids[:count],
        [position for position, _ in piece.places[:count]],
        [now] * count,
        piece.keys[:count],
        [None] * count,
        ["text/plain"] * count,
        [None] * count,
        [message.encode() for message in piece.messages[:count]],
        [timedelta(0)] * count,
        ["it failed"] * count,
        [None] * count,
    )
    return told


async def pass_all(conn: Any, group: int, worker: str = "w", *, topic: str = "t") -> int:
    """Let a group be done with all that there is."""
    count = 0
    for lane in await take(conn, worker, group):
        piece = await read(conn, lane.cursor, 100000, topic=topic, lanes=(lane.lane,))
        await advance(conn, [lane], piece.next, len(piece.messages))
        count += len(piece.messages)
    await conn.execute("select postbus.leave_groups($1, array[$2::bigint])", worker, group)
    return count
