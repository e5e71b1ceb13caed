"""Draining a topic by the real worker, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from postbus import Bus
from postbus.bench.load import Order
from postbus.errors import PostbusError

_WARM = "bench.warm"
_LONGEST = 600.0


@dataclass(frozen=True)
class Handling:
    """How messages are handled: options of the subscription."""

    concurrency: int
    batch: int | None = None


BATCHES = Handling(concurrency=2, batch=500)
SINGLES = Handling(concurrency=500)


class DrainFailed(PostbusError):
    """The worker did not do what was to be measured, so there is no figure for it."""


class Counter:
    """Counts handled messages, and tells when there were enough."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.handled = 0
        self.reached_at = 0.0
        self.reached = asyncio.Event()

    def add(self, count: int) -> None:
        self.handled += count
        if self.handled >= self.wanted and not self.reached_at:
            self.reached_at = time.perf_counter()
            self.reached.set()


def subscribe(bus: Bus, topic: str, handling: Handling, counter: Counter) -> None:
    """Register a handler that gets decoded orders and does nothing but count them."""
    options = bus.subscribe(topic, concurrency=handling.concurrency, batch=handling.batch)
    if handling.batch is None:

        @options
        async def one(order: Order) -> None:
            counter.add(1)

    else:

        @options
        async def many(orders: list[Order]) -> None:
            counter.add(len(orders))


async def drain(dsn: str, topic: str, handling: Handling, *, count: int) -> float:
    """Drain all `count` waiting messages of a paused topic. Returns messages per second.

    The clock runs from the resumption of the topic until the worker has settled everything and ended.
    """
    counter = Counter(count)
    async with Bus.open(dsn) as bus:
        async with _resumed(bus, topic, handling, counter) as began:
            await _reached(counter, topic)
        seconds = time.perf_counter() - began
        left = await bus.admin.topic(topic)
    if counter.handled != count or left["waiting"] or left["leased"]:
        raise DrainFailed(f"{counter.handled} of {count} messages were handled, {left['waiting']} are waiting")
    return count / seconds


async def drain_some(dsn: str, topic: str, handling: Handling, *, count: int) -> float:
    """Drain the first `count` waiting messages of a paused topic. Returns messages per second.

    The clock runs from the resumption of the topic until the handler has had `count` messages.
    """
    counter = Counter(count)
    async with Bus.open(dsn) as bus, _resumed(bus, topic, handling, counter) as began:
        await _reached(counter, topic)
    return count / (counter.reached_at - began)


@contextlib.asynccontextmanager
async def _resumed(bus: Bus, topic: str, handling: Handling, counter: Counter) -> AsyncIterator[float]:
    """Run a worker that is warm when its topic is resumed; yields the time of that."""
    subscribe(bus, topic, handling, counter)
    is_warm = asyncio.Event()

    @bus.subscribe(_WARM)
    async def warm(order: Order) -> None:
        is_warm.set()

    await bus.send(_WARM, Order(0, "", 0, ""))
    worker = asyncio.create_task(bus.run(), name="bench-worker")
    try:
        await _first(is_warm, worker)
        began = time.perf_counter()
        await bus.admin.resume_topic(topic)
        yield began
    finally:
        bus.stop()
        await worker
    await bus.admin.pause_topic(topic)


async def _first(event: asyncio.Event, worker: asyncio.Task[bool]) -> None:
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait([waiting, worker], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if worker.done():
        raise DrainFailed("the worker ended before it had work")


async def _reached(counter: Counter, topic: str) -> None:
    try:
        async with asyncio.timeout(_LONGEST):
            await counter.reached.wait()
    except TimeoutError:
        raise DrainFailed(f"only {counter.handled} of {counter.wanted} messages of {topic} came") from None
