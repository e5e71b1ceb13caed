"""The publisher and the groups, each in a process of its own."""

from __future__ import annotations

import asyncio
import random
import time
from typing import NamedTuple

from bench import load
from bench.consume import running
from bench.lab import connection
from bench.processes import until_over
from postbus import Bus, CatchUp, Start

TOPIC = "orders.events"
_LOOK = 0.1  # seconds
_BATCH = 10


class GroupRun(NamedTuple):
    """The result of a group's process."""

    numbers: list[int]
    """The numbers of the messages that it handled."""
    lags: list[float]
    """The age of the last handled message, sampled many times a second."""


async def publish(dsn: str, rate: int) -> None:
    """Publish messages with rising numbers, until this process is terminated."""
    rng = random.Random(5)
    given = [load.payload(rng, 0) for _ in range(_BATCH)]
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        began, number = time.monotonic(), 0
        while True:
            await asyncio.sleep(max(began + number / rate - time.monotonic(), 0))
            now = time.monotonic_ns()
            async with conn.transaction():
                await bus.publish_many(
                    conn, TOPIC, [{**one, "number": number + n, "sent_at": now} for n, one in enumerate(given)]
                )
            number += _BATCH


async def work(dsn: str, group: str, catch_up: CatchUp | None = None) -> GroupRun:
    """Consume for a group until the run is over."""
    numbers: list[int] = []
    lags: list[float] = []
    last = 0
    async with Bus.open(dsn) as bus:

        @bus.subscribe(TOPIC, group=group, start=Start.NOW, batch=100, catch_up=catch_up)
        async def handle(orders: list[load.Order]) -> None:
            nonlocal last
            for order in orders:
                numbers.append(order.number)
                last = max(last, order.sent_at)

        async with running(bus) as worker:
            over = asyncio.create_task(until_over(dsn))
            while not over.done() and not worker.done():
                await asyncio.wait([over, worker], timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                if last and not over.done():
                    lags.append(time.monotonic() - last / 1e9)
            over.cancel()
    return GroupRun(numbers, lags)
