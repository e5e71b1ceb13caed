"""Latency by load: from the time at which a message was due to be published to the first line of its handler."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from functools import partial
from typing import NamedTuple

import asyncpg

from bench import load
from bench.consume import running
from bench.curves.topics import LOG, QUEUE
from bench.lab import Lab, connection
from bench.latency import IS_LISTENING
from bench.plan import Plan
from bench.points import Points
from bench.processes import announce_end, elsewhere, until, until_over_or_ended, until_true
from bench.reads import percentile_ms
from bench.report import Report
from bench.series import point
from postbus import Bus, Start

_WARM_SECONDS = 1.0
_MOST_CONNECTIONS = 16
_PER_CONNECTION = 100  # messages per second
_CONCURRENCY = 10
_PATIENCE = 10.0  # seconds to work off a backlog before the next load
_IS_DONE = {
    QUEUE: "select $1::bigint > 0 and not exists (select from postbus.queued union all select from postbus.lease)",
    LOG: "select passed >= $1 from postbus.groups",
}


class _Load(NamedTuple):
    """The result of the publisher at one rate."""

    rate: int
    due_ns: dict[int, int]
    """When each message was due, by its number, without the warm-up."""
    seconds: float
    """How long publishing all messages took."""
    messages: int


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """One process publishes one message per transaction, with as many connections as the load needs; one handles them.

    A publisher behind its schedule adds to the latency, as a waiting user would see it.
    """
    for kind, topic in (("queue", QUEUE), ("log", LOG)):
        async with lab.database() as dsn:
            async with Bus.open(dsn) as bus:
                await bus.admin.create_topic(topic, semantics="PUB_SUB" if topic == LOG else "QUEUE")
            worker = asyncio.create_task(elsewhere(partial(_handle, dsn, topic)))
            await until(dsn, IS_LISTENING, worker=worker)
            loads = await elsewhere(partial(_publish, dsn, topic, plan.points))
            async with connection(dsn) as conn:
                await announce_end(conn)
            started = await worker
        for one in loads:
            # Messages that were not handled count as later than all others.
            seconds = [(started.get(number, time.monotonic_ns()) - due) / 1e9 for number, due in one.due_ns.items()]
            for word, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                name = point(f"latency_{kind}_{word}_ms", "rate_per_s", one.rate)
                report.add(**{name: percentile_ms(seconds, part)})
            report.add(**{point(f"achieved_rate_{kind}_per_s", "rate_per_s", one.rate): one.messages / one.seconds})
        lost = sum(1 for one in loads for number in one.due_ns if number not in started)
        report.check(f"latency_{kind}_lost_messages", lost, "<", 1)


async def _publish(dsn: str, topic: str, points: Points) -> list[_Load]:
    """Publish at one rate after the other. Before the next one, all published messages have to be handled."""
    loads: list[_Load] = []
    first = 0
    async with Bus.open(dsn) as bus, contextlib.AsyncExitStack() as stack:
        connections: list[asyncpg.Connection] = []
        for rate in points.rates:
            while len(connections) < max(min(rate // _PER_CONNECTION, _MOST_CONNECTIONS), 1):
                connections.append(await stack.enter_async_context(connection(dsn)))
            loads.append(await _publish_load(bus, topic, connections, rate, points.rate_seconds, first))
            first += loads[-1].messages
            await _calm(connections[0], topic, first)
    return loads


async def _calm(conn: asyncpg.Connection, topic: str, published: int) -> None:
    """Wait until all published messages are handled, or the time is up: the load may have been too high."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            await until_true(conn, _IS_DONE[topic], published, look=0.05)


async def _publish_load(
    bus: Bus, topic: str, connections: list[asyncpg.Connection], rate: int, seconds: float, first: int
) -> _Load:
    rng = random.Random(first)
    warm = int(rate * min(_WARM_SECONDS, seconds))
    count = warm + int(rate * seconds)
    given = [load.payload(rng, first + number) for number in range(count)]
    began = time.monotonic_ns() + 10_000_000
    due = {number: began + number * 1_000_000_000 // rate for number in range(count)}

    async def caller(index: int) -> None:
        for number in range(index, count, len(connections)):
            await asyncio.sleep(max(due[number] - time.monotonic_ns(), 0) / 1e9)
            async with connections[index].transaction():
                await bus.publish(connections[index], topic, given[number])

    await asyncio.gather(*map(caller, range(len(connections))))
    taken = (time.monotonic_ns() - began) / 1e9
    return _Load(rate, {first + number: due[number] for number in range(warm, count)}, taken, count)


async def _handle(dsn: str, topic: str) -> dict[int, int]:
    """Consume until the run is over. Returns when the handler of each message started, by the message's number."""
    started: dict[int, int] = {}
    group = "bench" if topic == LOG else None
    async with Bus.open(dsn) as bus:

        @bus.subscribe(topic, concurrency=_CONCURRENCY, group=group, start=Start.BEGINNING if group else Start.NOW)
        async def handler(order: load.Order) -> None:
            started.setdefault(order.number, time.monotonic_ns())

        async with running(bus) as worker:
            await until_over_or_ended(dsn, worker)
    return started
