"""Latency from publisher to handler, in two processes, at a steady pace."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import asyncpg

from postbus import Bus
from postbus.bench import load
from postbus.bench.consume import DrainFailed
from postbus.bench.lab import Lab, connection
from postbus.bench.load import Order
from postbus.bench.plan import Plan
from postbus.bench.processes import elsewhere
from postbus.bench.report import Report

_TOPIC = "bench.latency"
_RATE = 500
_WARM_SECONDS = 1.0
_LONGEST = 60.0
_CONCURRENCY = 10


class Sent(NamedTuple):
    """When a message was published. All clocks are CLOCK_MONOTONIC, which the processes share."""

    due_ns: int
    publish_ns: int
    """Before publish() was called, in a transaction that had begun."""
    commit_ns: int
    """Before COMMIT was sent."""
    committed_ns: int
    """After COMMIT was answered."""


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """One message per transaction, one connection; the first second is not counted."""
    warm = int(_RATE * _WARM_SECONDS)
    count = warm + int(_RATE * plan.latency_seconds)
    async with lab.database() as dsn:
        async with Bus.open(dsn) as bus:
            await bus.admin.create_topic(_TOPIC)
        worker = asyncio.create_task(elsewhere(partial(_worker, dsn, count)))
        await _wait_for_worker(dsn, worker)
        sent = await elsewhere(partial(_publisher, dsn, count))
        started = await worker
    rows = [(one, started[number]) for number, one in enumerate(sent)][warm:]
    for name, times in (
        ("latency_publish_to_handler", [at - one.publish_ns for one, at in rows]),
        ("latency_commit_to_handler", [at - one.commit_ns for one, at in rows]),
        ("latency_committed_to_handler", [at - one.committed_ns for one, at in rows]),
        ("latency_publish_and_commit", [one.committed_ns - one.publish_ns for one, _ in rows]),
        ("latency_publisher_behind_schedule", [one.publish_ns - one.due_ns for one, _ in rows]),
    ):
        report.add(**_percentiles(name, times))
    seconds = (rows[-1][0].publish_ns - rows[0][0].publish_ns) / 1e9
    report.add(latency_rate_per_s=(len(rows) - 1) / seconds)
    report.check("latency_p50_ms", report.figures["latency_publish_to_handler_p50_ms"], "<", 2)
    report.check("latency_p99_ms", report.figures["latency_publish_to_handler_p99_ms"], "<", 6)


def _percentiles(name: str, nanoseconds: Sequence[int]) -> dict[str, float]:
    ordered = sorted(nanoseconds)
    places = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {
        f"{name}_{word}_ms": ordered[min(int(len(ordered) * part), len(ordered) - 1)] / 1e6
        for word, part in places.items()
    }


async def _wait_for_worker(dsn: str, worker: asyncio.Task[list[int]]) -> None:
    async with Bus.open(dsn) as bus:
        while not worker.done() and not await bus.admin.workers():
            await asyncio.wait([worker], timeout=0.05)


def _publisher(dsn: str, count: int) -> list[Sent]:
    return asyncio.run(_publish(dsn, count))


async def _publish(dsn: str, count: int) -> list[Sent]:
    rng = random.Random(2)
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        began = time.monotonic_ns() + 10_000_000
        sent = []
        for number in range(count):
            due = began + number * 1_000_000_000 // _RATE
            await _sleep_until(due)
            sent.append(await _publish_one(bus, conn, load.payload(rng, number), due))
        return sent


async def _publish_one(bus: Bus, conn: asyncpg.Connection, payload: load.Payload, due: int) -> Sent:
    transaction = conn.transaction()
    await transaction.start()
    publish = time.monotonic_ns()
    await bus.publish(conn, _TOPIC, payload)
    commit = time.monotonic_ns()
    await transaction.commit()
    return Sent(due, publish, commit, time.monotonic_ns())


async def _sleep_until(due: int) -> None:
    """Sleep, by a schedule that does not drift. The event loop goes on: ringing for consumers needs it."""
    while (left := due - time.monotonic_ns()) > 0:  # noqa: ASYNC110 — a point in time is no event
        await asyncio.sleep(left / 1e9)


def _worker(dsn: str, count: int) -> list[int]:
    return asyncio.run(_handle(dsn, count))


async def _handle(dsn: str, count: int) -> list[int]:
    """When the handler of each message started, by the message's number."""
    started = [0] * count
    left = count
    async with Bus.open(dsn) as bus:

        @bus.subscribe(_TOPIC, concurrency=_CONCURRENCY)
        async def handler(order: Order) -> None:
            nonlocal left
            started[order.number] = time.monotonic_ns()
            left -= 1
            if left == 0:
                bus.stop()

        async with asyncio.timeout(_LONGEST + count / _RATE):
            await bus.run()
    if left > 0:
        raise DrainFailed(f"{left} of {count} messages did not come")
    return started
