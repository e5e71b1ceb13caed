"""Groups that read a topic, and their rates."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from bench.consume import Counter, DrainFailed, Handling, reached, running, subscribe
from bench.processes import until
from postbus import Bus

BATCHES = Handling(batch=1000, concurrency=1)
SINGLES = Handling(concurrency=10)


class Consumed(NamedTuple):
    """Deliveries between two times by time.monotonic(), which all processes of a machine share."""

    deliveries: int
    began: float
    ended: float

    @property
    def per_s(self) -> float:
        return self.deliveries / (self.ended - self.began)


async def consume_all(dsn: str, topic: str, names: list[str], handling: Handling, *, count: int) -> Consumed:
    """Let groups read `count` messages each. The clock runs from the first delivery to the last."""
    counter = Counter(count * len(names))
    async with Bus.open(dsn) as bus:
        for name in names:
            subscribe(bus, topic, handling, counter, group=name)
        async with running(bus) as worker:
            await reached(counter, worker)
    if counter.handled != counter.wanted:
        raise DrainFailed(f"{counter.handled} messages were handled instead of {counter.wanted}")
    return Consumed(counter.handled - counter.first, counter.first_at, counter.reached_at)


async def all_hold_their_lane(dsn: str, groups: int, worker: asyncio.Task[Any]) -> None:
    """Wait until this many groups, on topics with one lane, have begun to read."""
    await until(dsn, "select count(holder) >= $1 from postbus.lane", groups, worker=worker)
