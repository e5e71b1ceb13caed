"""Publishing in bulk, one by one, and by many callers at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import asyncpg

from bench import peer
from bench.lab import Lab, connection
from bench.load import Payload, batches, encode, payloads
from bench.plan import Plan
from bench.report import Report
from bench.rounds import Measure, alternate
from postbus import Bus

_TOPIC = "bench.publish"
_CONNECTIONS = 16
_CALLERS = 100

_Send = Callable[[asyncpg.Connection, Any], Awaitable[None]]


class _Queues:
    """A database with both queues, and the ways to publish to them."""

    def __init__(self, bus: Bus, conn: asyncpg.Connection) -> None:
        self.bus = bus
        self.conn = conn

    async def empty(self) -> None:
        """Empty the tables, so that each round begins without dead rows."""
        await self.conn.execute("truncate postbus.queued, handwritten, plain")

    async def many(self, conn: asyncpg.Connection, batch: Sequence[Any]) -> None:
        async with conn.transaction():
            await self.bus.publish_many(conn, _TOPIC, batch)

    async def many_handwritten(self, conn: asyncpg.Connection, batch: Sequence[Payload]) -> None:
        async with conn.transaction():
            await conn.execute(peer.INSERT, [encode(one) for one in batch])

    async def many_copied(self, conn: asyncpg.Connection, batch: Sequence[bytes]) -> None:
        async with conn.transaction():
            await peer.copy(conn, batch)

    async def one(self, conn: asyncpg.Connection, payload: Payload) -> None:
        async with conn.transaction():
            await self.bus.publish(conn, _TOPIC, payload)

    async def one_handwritten(self, conn: asyncpg.Connection, payload: Payload) -> None:
        async with conn.transaction():
            await conn.execute(peer.INSERT_ONE, encode(payload))

    async def one_sent(self, conn: asyncpg.Connection, payload: Payload) -> None:
        await self.bus.send(_TOPIC, payload)


async def measure_bulk(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure batches of 1000, each in a transaction of its own."""
    given = batches(payloads(min(plan.per_round, 50_000)), plan.per_round)
    encoded = [[encode(one) for one in batch] for batch in given]
    async with _queues(lab) as queues:

        async def rate(send: _Send, batches: Sequence[Sequence[Any]]) -> float:
            await queues.empty()
            began = time.perf_counter()
            for batch in batches:
                await send(queues.conn, batch)
            return plan.per_round / (time.perf_counter() - began)

        measures: dict[str, Measure] = {
            "publish_bulk_per_s": partial(rate, queues.many, given),
            "publish_bulk_bytes_per_s": partial(rate, queues.many, encoded),
            "publish_bulk_handwritten_per_s": partial(rate, queues.many_handwritten, given),
            "publish_bulk_raw_copy_per_s": partial(rate, queues.many_copied, encoded),
        }
        rates = await alternate(measures, rounds=plan.more_rounds(3))
    report.add(**rates.medians())
    ours = "publish_bulk_per_s"
    report.add(publish_bulk_to_raw_copy_ratio=rates.ratio(ours, "publish_bulk_raw_copy_per_s"))
    ratio = rates.ratio(ours, "publish_bulk_handwritten_per_s")
    report.check("publish_bulk_to_handwritten_ratio", ratio, ">=", 0.7)


async def measure_single(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure one message per transaction by one connection and by 16, and send() by 100 callers."""
    given = payloads(plan.singles)
    async with _queues(lab) as queues, contextlib.AsyncExitStack() as stack:
        sixteen = [await stack.enter_async_context(connection(queues.bus.dsn)) for _ in range(_CONNECTIONS)]

        async def rate(send: _Send, connections: Sequence[asyncpg.Connection]) -> float:
            await queues.empty()
            left = iter(given)

            async def caller(conn: asyncpg.Connection) -> None:
                for payload in left:
                    await send(conn, payload)

            began = time.perf_counter()
            await asyncio.gather(*map(caller, connections))
            return plan.singles / (time.perf_counter() - began)

        measures: dict[str, Measure] = {
            "publish_single_1_connection_per_s": partial(rate, queues.one, sixteen[:1]),
            "publish_single_1_connection_handwritten_per_s": partial(rate, queues.one_handwritten, sixteen[:1]),
            "publish_single_16_connections_per_s": partial(rate, queues.one, sixteen),
            "publish_single_16_connections_handwritten_per_s": partial(rate, queues.one_handwritten, sixteen),
            "send_100_callers_per_s": partial(rate, queues.one_sent, [queues.conn] * _CALLERS),
        }
        rates = await alternate(measures, rounds=plan.rounds)
    report.add(**rates.medians())
    for who in ("publish_single_1_connection", "publish_single_16_connections"):
        ratio = rates.ratio(f"{who}_per_s", f"{who}_handwritten_per_s")
        report.add(**{f"{who}_to_handwritten_ratio": ratio})


@contextlib.asynccontextmanager
async def _queues(lab: Lab) -> AsyncIterator[_Queues]:
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(_TOPIC)
        await peer.create(conn)
        yield _Queues(bus, conn)
