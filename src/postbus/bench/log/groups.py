"""Groups that read a topic from its beginning, and how fast they are."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import NamedTuple

from postbus import Bus, Start
from postbus.bench.consume import Counter, DrainFailed
from postbus.bench.load import Order

_LONGEST = 300.0


@dataclass(frozen=True)
class Reading:
    """How groups read: batches, or one message at a time."""

    batch: int | None
    concurrency: int


BATCHES = Reading(batch=1000, concurrency=1)
SINGLES = Reading(batch=None, concurrency=10)


def subscribe(bus: Bus, topic: str, group: str, reading: Reading, counter: Counter) -> None:
    """Register a handler that looks at every message."""
    if reading.batch is not None:

        @bus.subscribe(topic, group=group, start=Start.BEGINNING, batch=reading.batch)
        async def handle_batch(orders: list[Order]) -> None:
            counter.add(len(orders))

    else:

        @bus.subscribe(topic, group=group, start=Start.BEGINNING, concurrency=reading.concurrency)
        async def handle(order: Order) -> None:
            counter.add(1)


class Consumed(NamedTuple):
    """Deliveries between two points in time, by time.time()."""

    deliveries: int
    began: float
    ended: float

    @property
    def per_s(self) -> float:
        return self.deliveries / (self.ended - self.began)


async def consume_all(dsn: str, topic: str, names: list[str], reading: Reading, *, count: int) -> Consumed:
    """Let some groups read `count` messages each. What counts is from the first delivery to the last."""
    counter = Counter(count * len(names))
    async with Bus.open(dsn) as bus:
        for name in names:
            subscribe(bus, topic, name, reading, counter)
        worker = asyncio.create_task(bus.run(), name="bench-worker")
        while counter.handled == 0 and not worker.done():  # noqa: ASYNC110 — the first of many
            await asyncio.sleep(0.0005)
        began, first = time.time(), counter.handled
        waiting = asyncio.create_task(counter.reached.wait())
        await asyncio.wait([waiting, worker], timeout=_LONGEST, return_when=asyncio.FIRST_COMPLETED)
        ended = time.time()
        waiting.cancel()
        bus.stop()
        await worker
    if counter.handled != count * len(names):
        raise DrainFailed(f"{counter.handled} messages were handled instead of {count * len(names)}")
    return Consumed(counter.handled - first, began, ended)
