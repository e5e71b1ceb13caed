"""The searches of a claim use their indexes, whatever the statistics say."""

from __future__ import annotations

import re
from typing import Any

import pytest

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
