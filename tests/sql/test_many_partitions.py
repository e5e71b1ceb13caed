"""Looking up one message among many partitions, while others publish and settle."""

from __future__ import annotations

import asyncio
import os
import re
import time
from contextlib import suppress
from typing import Any

import pytest

from support.fix_database import Connect
from support.log_sql import advance, create_topic, pass_all, publish_many, read, subscribe, sweep, take

PARTITIONS = int(os.environ.get("POSTBUS_TEST_PARTITIONS", "60"))
_ASKED = "select d.*, m.status as of_all from postbus.deliveries_of('t', $1) as d, postbus.message_state('t', $1) as m"


async def _fill(conn: Any, storage: int, group: int, partitions: int) -> list[int]:
    """Put one message into each of many partitions, settled by the group, with its ledger and receipts."""
    [lane] = await take(conn, "w", group)
    ids: list[int] = []
    for _ in range(partitions):
        ids += await publish_many(conn, "x")
        result = await read(conn, lane.cursor)
        await advance(conn, [lane], result.next, 1)
        # Begin the next partition as a sweep does; a real sweep would look at all partitions.
        await conn.execute("select postbus.add_partition($1, postbus.epoch($1)::integer + 1)", storage)
        await conn.execute("select setval(postbus.epoch_sequence($1), postbus.epoch($1) + 1)", storage)
        await conn.execute(
            "update postbus.log_partition set after_number = pg_sequence_last_value('postbus.segment_number') "
            "where storage_id = $1 and epoch = postbus.epoch($1)",
            storage,
        )
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", group)
    await conn.execute("update postbus.segment set published_at = published_at - interval '11 minutes'")
    await conn.execute("update postbus.cursor set fenced_at = null, at = at - interval '10 minutes'")
    await sweep(conn, storage)
    return ids


async def _publish(conn: Any) -> None:
    while True:
        await publish_many(conn, *["x"] * 20)


async def _settle(conn: Any, group: int, worker: str) -> None:
    while True:
        await pass_all(conn, group, worker)


async def _blocks(conn: Any, id: int) -> int:
    explained = await conn.fetch(f"explain (analyze, buffers, costs off, timing off, summary off) {_ASKED}", id)
    text = "\n".join(row[0] for row in explained).split("Planning")[0]
    return int(re.findall(r"shared hit=(\d+)", text)[0])


@pytest.mark.timeout(600)
async def test_state_of_one_message_is_found_at_once_under_load(conn: Any, connect: Connect) -> None:
    """It takes less than 200 ms with 500 partitions (POSTBUS_TEST_PARTITIONS), whatever is published and settled beside
    it."""
    storage = await create_topic(conn)
    done, lags = [await subscribe(conn, name) for name in ("done", "lags")]
    ids = await _fill(conn, storage, done, PARTITIONS)
    assert await conn.fetchval("select count(*) from postbus.receipt where number is not null") >= PARTITIONS - 1
    assert await conn.fetchval("select count(*) from postbus.log_partition where storage_id = $1", storage) > PARTITIONS
    load = [
        asyncio.create_task(act)
        for act in (
            _publish(await connect()),
            _publish(await connect()),
            _settle(await connect(), done, "settles"),
            _settle(await connect(), lags, "settles, too"),
        )
    ]
    try:
        for id in (ids[0], ids[len(ids) // 2], ids[-1]):
            took, blocks = [], []
            for _ in range(9):
                began = time.perf_counter()
                rows = await conn.fetch(_ASKED, id)
                took.append(time.perf_counter() - began)
                assert {row["group_name"]: row["status"] for row in rows}["done"] == "COMPLETED"
                blocks.append(await _blocks(conn, id))
            print(f"{PARTITIONS} partitions: {sorted(took)[4] * 1000:.0f} ms, {blocks} blocks")
            assert min(blocks) < 1000 + 5 * PARTITIONS, (
                blocks
            )  # it looks at one row of each partition, but does not search them
            assert sorted(took)[4] < 0.2, took
    finally:
        for task in load:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
