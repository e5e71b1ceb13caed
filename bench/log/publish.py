"""Publishing in bulk, beside a plain insert of segments and COPY of rows."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import asyncpg

from bench.lab import Lab, connection
from bench.load import Payload, batches, payloads
from bench.log import peer
from bench.plan import Plan
from bench.report import Report
from bench.rounds import Measure, alternate
from postbus import Bus

TOPIC = "bench.log"

_Send = Callable[[asyncpg.Connection, Sequence[Payload]], Awaitable[None]]


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure batches of 1000, each in a transaction of its own."""
    given = batches(payloads(min(plan.per_round, 50_000)), plan.per_round)
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(TOPIC, semantics="PUB_SUB")
        await peer.create(conn)

        async def many(conn: asyncpg.Connection, batch: Sequence[Payload]) -> None:
            async with conn.transaction():
                await bus.publish_many(conn, TOPIC, batch)

        async def rate(send: _Send) -> float:
            began = time.perf_counter()
            for batch in given:
                await send(conn, batch)
            return plan.per_round / (time.perf_counter() - began)

        await many(conn, given[0])  # so that statements are prepared
        measures: dict[str, Measure] = {
            "publish_bulk_per_s": partial(rate, many),
            "publish_bulk_raw_segments_per_s": partial(rate, peer.insert_segment),
            "publish_bulk_raw_copy_per_s": partial(rate, peer.copy_rows),
        }
        rates = await alternate(measures, rounds=plan.more_rounds(3))
    report.add(**rates.medians())
    report.check(
        "publish_bulk_to_raw_segments_ratio",
        rates.ratio("publish_bulk_per_s", "publish_bulk_raw_segments_per_s"),
        ">=",
        0.8,
    )
    report.check(
        "publish_bulk_to_raw_copy_ratio", rates.ratio("publish_bulk_per_s", "publish_bulk_raw_copy_per_s"), ">=", 1
    )
