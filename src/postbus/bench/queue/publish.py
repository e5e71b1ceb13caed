"""Publishing: in bulk, one by one, and by many callers at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import asyncpg
import msgspec

from postbus import Bus
from postbus.bench import peer
from postbus.bench.lab import Lab, connection
from postbus.bench.load import Payload, batches, payloads
from postbus.bench.plan import Plan
from postbus.bench.report import Report
from postbus.bench.rounds import Measure, alternate

_TOPIC = "bench.publish"
_CONNECTIONS = 16
_CALLERS = 100
_EMPTY = "truncate postbus.queued, handwritten, plain"

_Send = Callable[[asyncpg.Connection, Payload], Awaitable[None]]


async def measure_bulk(lab: Lab, plan: Plan, report: Report) -> None:
    """Batches of 1000, each in a transaction of its own."""
    given = batches(payloads(min(plan.per_round, 50_000)), plan.per_round)
    encoded = [[msgspec.json.encode(one) for one in batch] for batch in given]
    async with _place(lab) as (bus, conn):

        async def ours(batch: Sequence[Any]) -> None:
            async with conn.transaction():
                await bus.publish_many(conn, _TOPIC, batch)

        async def handwritten(batch: Sequence[Payload]) -> None:
            async with conn.transaction():
                await conn.execute(peer.INSERT, [msgspec.json.encode(one) for one in batch])

        async def copy(batch: Sequence[bytes]) -> None:
            async with conn.transaction():
                await conn.copy_records_to_table(
                    "plain", records=[(one,) for one in batch], columns=["payload"]
                )

        async def rate(send: Callable[[Any], Awaitable[None]], batches: Sequence[Any]) -> float:
            await conn.execute(_EMPTY)
            began = time.perf_counter()
            for batch in batches:
                await send(batch)
            return sum(map(len, batches)) / (time.perf_counter() - began)

        measures: dict[str, Measure] = {
            "ours": partial(rate, ours, given),
            "bytes": partial(rate, ours, encoded),
            "handwritten": partial(rate, handwritten, given),
            "copy": partial(rate, copy, encoded),
        }
        rates = await alternate(measures, rounds=plan.rounds)
    report.add(
        publish_bulk_per_s=rates.median("ours"),
        publish_bulk_bytes_per_s=rates.median("bytes"),
        publish_bulk_handwritten_per_s=rates.median("handwritten"),
        publish_bulk_raw_copy_per_s=rates.median("copy"),
        publish_bulk_to_raw_copy_ratio=rates.ratio("ours", "copy"),
    )
    report.check("publish_bulk_to_handwritten_ratio", rates.ratio("ours", "handwritten"), ">=", 0.7)


async def measure_single(lab: Lab, plan: Plan, report: Report) -> None:
    """One message per transaction, by one connection and by 16; and send() by 100 callers."""
    given = payloads(plan.singles)
    async with _place(lab) as (bus, conn), contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connection(bus.dsn)) for _ in range(_CONNECTIONS)]

        async def ours(one: asyncpg.Connection, payload: Payload) -> None:
            async with one.transaction():
                await bus.publish(one, _TOPIC, payload)

        async def handwritten(one: asyncpg.Connection, payload: Payload) -> None:
            async with one.transaction():
                await one.execute(peer.INSERT_ONE, msgspec.json.encode(payload))

        async def send(_: asyncpg.Connection, payload: Payload) -> None:
            await bus.send(_TOPIC, payload)

        async def rate(publish: _Send, callers: Sequence[asyncpg.Connection]) -> float:
            await conn.execute(_EMPTY)
            left = iter(given)

            async def caller(one: asyncpg.Connection) -> None:
                for payload in left:
                    await publish(one, payload)

            began = time.perf_counter()
            await asyncio.gather(*(caller(one) for one in callers))
            return len(given) / (time.perf_counter() - began)

        measures: dict[str, Measure] = {
            "publish_single_1_connection_per_s": partial(rate, ours, connections[:1]),
            "publish_single_1_connection_handwritten_per_s": partial(rate, handwritten, connections[:1]),
            "publish_single_16_connections_per_s": partial(rate, ours, connections),
            "publish_single_16_connections_handwritten_per_s": partial(rate, handwritten, connections),
            "send_100_callers_per_s": partial(rate, send, [conn] * _CALLERS),
        }
        rates = await alternate(measures, rounds=plan.rounds)
    report.add(**rates.medians())
    for connections_word in ("1_connection", "16_connections"):
        ours_name = f"publish_single_{connections_word}_per_s"
        ratio = rates.ratio(ours_name, f"publish_single_{connections_word}_handwritten_per_s")
        report.add(**{f"publish_single_{connections_word}_to_handwritten_ratio": ratio})


@contextlib.asynccontextmanager
async def _place(lab: Lab) -> AsyncIterator[tuple[Bus, asyncpg.Connection]]:
    """A database with the tables of both, a bus on it, and a connection that is warm."""
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(_TOPIC)
        await peer.create(conn)
        yield bus, conn
