"""The measurements, which are the same for each system."""

from __future__ import annotations

import asyncio
import gc
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bench import load
from bench.consume import Counter, DrainFailed
from bench.latency import Started, sleep_until
from bench.load import Order
from bench.log.groups import Consumed
from bench.peers.system import GROUP, Publisher, Style, System
from postbus._runtime.event_loop import run

BATCH = 100
CONNECTIONS = 16
GROUPS = 10
RATE = 500
_WARM_SECONDS = 1.0
_LONGEST = 120.0

_numbers = itertools.count(1)
T = TypeVar("T")


def fresh(system: System) -> System:
    """The system with a new topic."""
    return system.on(f"bench{next(_numbers)}")


async def publish_singles(system: System, connections: int, seconds: float) -> float:
    """Messages per second, with one message per commit."""
    given = itertools.cycle(load.payloads(1000))
    return await _publish(system, connections, seconds, 1, lambda publisher: publisher.one(next(given)))


async def publish_batches(system: System, seconds: float) -> float:
    """Messages per second, with BATCH messages per commit, by one connection."""
    given = load.payloads(10 * BATCH)
    batches = itertools.cycle([given[at : at + BATCH] for at in range(0, len(given), BATCH)])
    return await _publish(system, 1, seconds, BATCH, lambda publisher: publisher.many(next(batches)))


async def _publish(
    system: System, connections: int, seconds: float, size: int, step: Callable[[Publisher], Any]
) -> float:
    sent = 0
    async with fresh(system).created([GROUP]) as topic, topic.publishers(connections) as publishers:
        await asyncio.gather(*map(step, publishers))  # so that statements are prepared
        began = time.perf_counter()

        async def caller(publisher: Publisher) -> None:
            nonlocal sent
            is_over = False
            while not is_over:
                await step(publisher)
                sent += size
                is_over = time.perf_counter() - began >= seconds

        await asyncio.gather(*map(caller, publishers))
        return sent / (time.perf_counter() - began)


async def drain(system: System, given: Sequence[load.Payload], count: int) -> float:
    """Messages per second, from the first delivery until all are settled and the consumer has ended."""
    async with fresh(system).created([GROUP]) as topic:
        await topic.fill(given, count)
        taken = await _take(topic, count, partial(topic.consume, GROUP, count, style=Style.BULK))
    return taken.per_s


async def _take(system: System, wanted: int, consume: Callable[..., Coroutine[Any, Any, None]]) -> Consumed:
    """Messages of the first delivery are not counted, since nobody knows when they were claimed."""
    counter, called_at = Counter(wanted), time.monotonic()
    async with asyncio.timeout(_LONGEST):
        await consume(handle=lambda orders: counter.add(len(orders)))
    ended = time.monotonic()
    if counter.handled != wanted:
        raise DrainFailed(f"{system.name}: {counter.handled} messages were handled instead of {wanted}")
    if counter.first == wanted:  # one delivery brought all messages: then the time of starting is included
        return Consumed(wanted, called_at, ended)
    return Consumed(wanted - counter.first, counter.first_at, ended)


async def fan_out(
    system: System, given: Sequence[load.Payload], count: int, processes: int, helpers: Executor
) -> float:
    """Deliveries per second to GROUPS groups, each of which gets all messages, in one or several processes."""
    names = [f"group{number}" for number in range(GROUPS)]
    each = GROUPS // processes
    shares = [names[at : at + each] for at in range(0, GROUPS, each)]
    async with fresh(system).created(names) as topic:
        await topic.fill(given, count)
        if processes == 1:
            parts = [await _read(topic, names, count)]
        else:
            parts = await asyncio.gather(*(_elsewhere(helpers, _read, topic, mine, count) for mine in shares))
    return sum(one.deliveries for one in parts) / (max(one.ended for one in parts) - min(one.began for one in parts))


async def _read(system: System, groups: list[str], count: int) -> Consumed:
    return await _take(system, count * len(groups), partial(system.consume_all, groups, count))


async def latencies(system: System, seconds: float, helpers: Executor) -> list[int]:
    """Nanoseconds from the publishing call in this process to the handler in another one, without the first second."""
    warm = int(RATE * min(_WARM_SECONDS, seconds))
    count = 1 + warm + int(RATE * seconds)
    async with fresh(system).created([GROUP]) as topic, asyncio.timeout(_LONGEST):
        with tempfile.TemporaryDirectory(prefix="postbus-bench-ready-") as folder:
            ready = Path(folder, "ready")
            consumer = asyncio.create_task(_elsewhere(helpers, _follow, topic, count, ready))
            try:
                sent = await _publish_at_pace(topic, count, partial(_until, ready, consumer))
                started = await consumer
            finally:
                consumer.cancel()
                await asyncio.wait([consumer])
    return [at - published for published, at in zip(sent, started, strict=True)][1 + warm :]


async def _until(ready: Path, consumer: asyncio.Task[Any]) -> None:
    """Wait until the consumer has handled its first message, or failed."""
    while not await asyncio.to_thread(ready.exists):
        await asyncio.wait([consumer], timeout=0.01)
        if consumer.done():
            raise DrainFailed(f"the consumer ended early, with {consumer.result()!r:.200}")


async def _follow(system: System, count: int, ready: Path) -> list[int]:
    started = Started(count)

    def handle(orders: Sequence[Order]) -> None:
        for order in orders:
            started.note(order)
        if orders[0].number == 0:
            ready.touch()

    async with asyncio.timeout(_LONGEST):
        await system.consume(GROUP, count, handle, Style.PROMPT)
    return started.all_of_them()


async def _publish_at_pace(system: System, count: int, is_followed: Callable[[], Awaitable[None]]) -> list[int]:
    """When the call that published each message began. The first message shows that the consumer runs."""
    given = load.payloads(count, seed=2)
    async with system.publishers(1, Style.PROMPT) as (publisher,):
        sent = [time.monotonic_ns()]
        await publisher.one(given[0])
        await is_followed()
        gc.collect()
        began = time.monotonic_ns() + 10_000_000
        for number in range(1, count):
            await sleep_until(began + number * 1_000_000_000 // RATE)
            sent.append(time.monotonic_ns())
            await publisher.one(given[number])
        return sent


async def _elsewhere(helpers: Executor, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(helpers, _run, work, *args)


def _run(work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    gc.collect()
    return run(work(*args))
