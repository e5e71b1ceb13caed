"""The searches of a claim use their indexes, whatever the statistics say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fix_database import Connect
from log_sql import create_topic, cursor_of, publish_many, read, read_all, subscribe
from queue_sql import claim


@pytest.mark.parametrize("analyzed", ["empty", "full"])
async def test_a_claim_reads_what_it_takes(conn: Any, analyzed: str) -> None:
    """Claiming 10 of 20,000 waiting messages reads a few blocks, with statistics of an empty table as well."""
    if analyzed == "empty":
        await conn.execute("analyze postbus.queued")
    await conn.execute("select postbus.publish_many('t', array_fill('x'::bytea, array[20000]))")
    if analyzed == "full":
        await conn.execute("analyze postbus.queued")
    floor = (await claim(conn, 10))["next_floor"]  # caches the plans

    async with conn.transaction():
        await conn.execute("set local track_functions = 'none'")
        explained = await conn.fetch(
            "explain (analyze, buffers, costs off, timing off, summary off) "
            "select * from postbus.claim('t', 'm', 10, null, $1)",
            floor,
        )
    text = "\n".join(row[0] for row in explained)
    blocks = sum(int(count) for count in re.findall(r"shared hit=(\d+)", text.split("Planning")[0]))
    assert blocks < 600, text


@pytest.mark.parametrize("analyzed", ["empty", "full"])
@pytest.mark.parametrize("storage", ["shared", "own"])
async def test_a_read_beside_open_transactions_reads_what_is_new(connect: Connect, storage: str, analyzed: str) -> None:
    """Of 4000 segments that were read before none is looked at again, while publishers have transactions open."""
    conn = await connect()
    await create_topic(conn, storage=storage)
    group = await subscribe(conn)
    if analyzed == "empty":
        await conn.execute("analyze")
    await conn.execute(
        "do $$ begin for n in 1 .. 4000 loop perform postbus.publish('t', 'x'::bytea); commit; end loop; end $$"
    )
    for _ in range(3):
        other = await connect()
        await other.execute("begin; select postbus.publish('t', 'open'::bytea)")
    if analyzed == "full":
        await conn.execute("analyze")
    cursor = (await read_all(conn, await cursor_of(conn, group), 10_000))[1]
    await publish_many(conn, "new")
    await read(conn, cursor)  # caches the plans

    explained = await conn.fetch(
        "explain (analyze, buffers, costs off, timing off, summary off) select * from postbus.read_log('t', '{0}', $1)",
        cursor,
    )
    text = "\n".join(row[0] for row in explained)
    assert "rows=2" in text, text
    blocks = sum(int(count) for count in re.findall(r"shared hit=(\d+)", text.split("Planning")[0]))
    assert blocks < 60, text
