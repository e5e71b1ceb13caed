"""The publisher and groups of different speed, each in a process of its own."""

from __future__ import annotations

import asyncio
import random
import time
from typing import NamedTuple

import asyncpg

from bench import load
from bench.consume import running
from bench.lab import connection
from bench.processes import until_over, until_over_or_ended
from bench.reads import Read, read_times
from postbus import Bus, Start
from postbus.errors import PostbusError

TOPIC = "orders.events"
ENOUGH = "enough"
"""The word that ends publishing."""
_BATCHES = 100  # per second


class Published(NamedTuple):
    """The result of the publisher."""

    messages: int
    failures: int
    calls: list[Read]
    """The duration of publishing and committing each batch."""


class PacedGroupRun(NamedTuple):
    """The result of a group's process."""

    first: int
    """The number of the first message that it handled."""
    last: int
    missing: int
    """Messages between the first and the last that it did not handle."""
    reads: list[Read]


async def publish(dsn: str, rate: int) -> Published:
    """Publish batches with rising numbers at a pace, until told to end. Failed batches are counted and sent again."""
    rng = random.Random(8)
    size = max(rate // _BATCHES, 1)
    given = [load.payload(rng, 0) for _ in range(size)]
    calls: list[Read] = []
    number = failures = 0
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        enough = asyncio.create_task(until_over(dsn, ENOUGH))
        start = time.monotonic()
        while not enough.done():
            await asyncio.sleep(max(start + number / rate - time.monotonic(), 0))
            began = time.monotonic()
            batch = [{**one, "number": number + n, "sent_at": int(began * 1e9)} for n, one in enumerate(given)]
            try:
                async with conn.transaction():
                    await bus.publish_many(conn, TOPIC, batch)
            except (PostbusError, asyncpg.PostgresError):
                failures += 1
                continue
            calls.append(Read(began, time.monotonic() - began))
            number += size
    return Published(number, failures, calls)


async def work(dsn: str, group: str, pause: float) -> PacedGroupRun:
    """Consume for a group until the run is over, with a pause after each hundred messages."""
    times = bytearray()
    async with Bus.open(dsn) as bus:

        @bus.subscribe(TOPIC, group=group, start=Start.NOW, batch=100)
        async def handle(orders: list[load.Order]) -> None:
            highest = max(order.number for order in orders)
            times.extend(bytes(max(highest + 1 - len(times), 0)))
            for order in orders:
                times[order.number] = 1
            if pause:
                await asyncio.sleep(pause)

        with read_times(TOPIC) as reads:
            async with running(bus) as worker:
                await until_over_or_ended(dsn, worker)
    first = times.find(1)
    return PacedGroupRun(first, len(times) - 1, times.count(0, first), reads)
