"""The groups: two run from the beginning, and one subscribes late. Each has a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import asyncpg

from bench import load
from bench.consume import running
from bench.lab import connection
from bench.plan import BATCH
from bench.processes import until_over, until_over_or_ended
from postbus import Bus, CatchUp, Start

TOPIC = "bench.history"
LATE = "inventory"
LIVE = ("email", "analytics")
_FIRST = 10_000_000  # number of the first message of the history, so that all numbers have the same length
_LOOK = 0.2  # seconds


class Lag(NamedTuple):
    at: float
    seconds: float
    """The age of the last message that the slowest group has handled."""


class LateGroupRun(NamedTuple):
    """The messages that the late group handled."""

    once: int
    """Messages of the history."""
    again: int
    """Of these, the ones that it handled more than once."""
    later: int
    """Messages that were published during the run."""


async def fill(dsn: str, count: int) -> None:
    given = [{**one, "number": _FIRST} for one in load.payloads(10_000)]
    for one in given:  # the payload keeps its length
        one["note"] = one["note"][: -(len(load.encode(one)) - load.PAYLOAD_BYTES)]
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        for start in range(0, count, BATCH):
            numbers = range(start, min(start + BATCH, count))
            async with conn.transaction():
                await bus.publish_many(conn, TOPIC, [{**given[n % len(given)], "number": _FIRST + n} for n in numbers])


async def follow(dsn: str) -> list[Lag]:
    """The live groups, until the run is over."""
    sent_at = [0] * len(LIVE)
    lags: list[Lag] = []
    async with Bus.open(dsn) as bus:
        for index, name in enumerate(LIVE):

            @bus.subscribe(TOPIC, group=name, start=Start.NOW, batch=100)
            async def handle(orders: list[load.Order], index: int = index) -> None:
                sent_at[index] = max(sent_at[index], *(order.sent_at for order in orders))

        async with running(bus) as worker:
            over = asyncio.create_task(until_over(dsn))
            while not over.done() and not worker.done():
                await asyncio.wait([over, worker], timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                if all(sent_at):
                    lags.append(Lag(time.monotonic(), time.monotonic() - min(sent_at) / 1e9))
            over.cancel()
    return lags


async def come_late(dsn: str, options: CatchUp, count: int) -> LateGroupRun:
    """The late group, until the run is over."""
    times = bytearray(count)
    later = 0
    async with Bus.open(dsn) as bus:

        @bus.subscribe(TOPIC, group=LATE, start=Start.BEGINNING, batch=1000, catch_up=options)
        async def handle(orders: list[load.Order]) -> None:
            nonlocal later
            for order in orders:
                if order.number >= _FIRST:
                    times[order.number - _FIRST] += 1
                else:
                    later += 1

        async with running(bus) as worker:
            await until_over_or_ended(dsn, worker)
    return LateGroupRun(count - times.count(0), sum(times) - (count - times.count(0)), later)


class CatchUpState(NamedTuple):
    """The state of the catch-up at one moment, as the database reports it."""

    at: float
    status: str
    processed: int
    rate: float
    allowed_rate: float | None
    p95_ms: float | None


async def progress(conn: asyncpg.Connection) -> CatchUpState:
    row = await conn.fetchrow(
        "select status, processed, coalesce(rate, 0) as rate, allowed_rate, 1000 * extract(epoch from p95) as p95_ms "
        "from postbus.catch_ups where group_name = $1",
        LATE,
    )
    assert row is not None
    p95 = None if row["p95_ms"] is None else float(row["p95_ms"])
    return CatchUpState(time.monotonic(), row["status"], row["processed"], row["rate"], row["allowed_rate"], p95)


def between(lags: Sequence[Lag], began: float, ended: float) -> list[float]:
    return [one.seconds for one in lags if began <= one.at < ended] or [0.0]
