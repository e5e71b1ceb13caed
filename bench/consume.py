"""Draining a topic with the real worker, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from bench.load import Order
from postbus import Bus, CatchUp, Start
from postbus.errors import PostbusError

_WARM = "bench.warm"
_FIRST = Order(number=0, customer="", cents=0, note="the worker is warm when this has passed")
_LONGEST = 600.0  # seconds

Fill = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Handling:
    """How messages are handled: options of the subscription."""

    concurrency: int
    batch: int | None = None


BATCHES = Handling(concurrency=2, batch=500)
SINGLES = Handling(concurrency=500)


class DrainFailed(PostbusError):
    """The worker did not handle all messages, so there is no figure."""


class Counter:
    """Counts handled messages, and tells when there were enough. Its times are time.monotonic()."""

    def __init__(self, wanted: int) -> None:
        self.expect(wanted)

    def expect(self, wanted: int) -> None:
        """Count from zero again."""
        self.wanted = wanted
        self.handled = 0
        self.first_at = 0.0
        self.first = 0
        """Messages of the first call. They are not counted, since nobody knows when they were claimed."""
        self.reached_at = 0.0
        self.reached = asyncio.Event()

    def add(self, count: int) -> None:
        if not self.handled:
            self.first_at, self.first = time.monotonic(), count
        self.handled += count
        if self.handled >= self.wanted and not self.reached_at:
            self.reached_at = time.monotonic()
            self.reached.set()


AT_FULL_SPEED = CatchUp(beside_from=1 << 40)
"""For a group whose backlog is measured: it reads in order, and is not throttled."""


def subscribe(bus: Bus, topic: str, handling: Handling, counter: Counter, *, group: str | None = None) -> None:
    """Register a handler that decodes orders and counts them. A group starts at the beginning."""
    options = bus.subscribe(
        topic,
        concurrency=handling.concurrency,
        batch=handling.batch,
        group=group,
        start=Start.BEGINNING if group else Start.NOW,
        catch_up=AT_FULL_SPEED if group else None,
    )
    if handling.batch is None:

        @options
        async def one(order: Order) -> None:
            counter.add(1)

    else:

        @options
        async def many(orders: list[Order]) -> None:
            counter.add(len(orders))


async def drain(dsn: str, topic: str, handling: Handling, *, count: int, fill: Fill) -> float:
    """Fill an empty topic with `count` messages and drain it. Returns messages per second.

    The worker has handled messages of the topic before, like one that runs all day. The clock runs from the
    moment when the topic, paused while it is filled, is resumed until all messages are settled and the worker ends.
    """
    counter = Counter(1)
    async with Bus.open(dsn) as bus:
        subscribe(bus, topic, handling, counter)
        async with running(bus) as worker:
            await bus.admin.resume_topic(topic)
            await bus.send(topic, _FIRST)
            await reached(counter, worker)
            await bus.admin.pause_topic(topic)
            await fill()
            counter.expect(count)
            began = time.perf_counter()
            await bus.admin.resume_topic(topic)
            await reached(counter, worker)
        seconds = time.perf_counter() - began
        left = await bus.admin.topic(topic)
    if counter.handled != count or left.waiting or left.leased:
        raise DrainFailed(f"{counter.handled} of {count} messages were handled, {left.waiting} are waiting")
    return count / seconds


async def drain_some(dsn: str, topic: str, handling: Handling, *, count: int) -> float:
    """Drain the first `count` messages of a paused topic. Returns messages per second.

    The worker is new to the topic, but warmed up on another one. The clock runs from the resumption of the topic until
    the handler has received `count` messages.
    """
    counter = Counter(count)
    warm = Counter(1)
    async with Bus.open(dsn) as bus:
        subscribe(bus, _WARM, SINGLES, warm)
        subscribe(bus, topic, handling, counter)
        async with running(bus) as worker:
            await bus.send(_WARM, _FIRST)
            await reached(warm, worker)
            began = time.monotonic()
            await bus.admin.resume_topic(topic)
            await reached(counter, worker)
        await bus.admin.pause_topic(topic)
    return count / (counter.reached_at - began)


@contextlib.asynccontextmanager
async def running(bus: Bus) -> AsyncIterator[asyncio.Task[bool]]:
    """A worker for all subscriptions. At the end of the block it has drained and ended."""
    worker = asyncio.create_task(bus.run(), name="bench-worker")
    try:
        yield worker
    finally:
        bus.stop()
        await worker


async def reached(counter: Counter, worker: asyncio.Task[bool]) -> None:
    """Wait until the handler has received enough messages, or the worker has ended."""
    waiting = asyncio.create_task(counter.reached.wait())
    await asyncio.wait([waiting, worker], timeout=_LONGEST, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not counter.reached.is_set():
        raise DrainFailed(f"only {counter.handled} of {counter.wanted} messages came")
