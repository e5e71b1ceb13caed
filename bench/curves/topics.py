"""A database with a queue and a log to publish to and consume from."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence

import asyncpg

from bench.consume import Handling, drain
from bench.curves.at_once import deliver_at_once
from bench.lab import Lab, connection
from bench.load import Payload
from postbus import Bus

QUEUE = "bench.queue"
LOG = "bench.log"
_numbers = itertools.count(1)


class Topics:
    """Publishes to the queue and the log, and consumes from them."""

    def __init__(self, dsn: str, bus: Bus, conn: asyncpg.Connection) -> None:
        self.dsn = dsn
        self.bus = bus
        self.conn = conn

    async def publish(self, topic: str, given: Sequence[Payload], *, batch: int) -> float:
        """Publish in a transaction for each batch. Returns messages per second."""
        began = time.perf_counter()
        for start in range(0, len(given), batch):
            async with self.conn.transaction():
                await self.bus.publish_many(self.conn, topic, given[start : start + batch])
        return len(given) / (time.perf_counter() - began)

    async def drain_queue(self, given: Sequence[Payload], handling: Handling, *, batch: int = 1000) -> float:
        """Fill the queue and drain it. Returns messages per second."""

        async def fill() -> None:
            await self.publish(QUEUE, given, batch=batch)

        return await drain(self.dsn, QUEUE, handling, count=len(given), fill=fill)

    async def read_log(self, given: Sequence[Payload], handling: Handling, *, batch: int = 1000) -> float:
        """Let a new group read a new log. Returns messages per second."""
        topic = f"{LOG}.{next(_numbers)}"
        return await deliver_at_once(self.dsn, topic, 1, handling, given, batch=batch)

    async def empty_queue(self) -> None:
        await self.conn.execute("truncate postbus.queued")


@contextlib.asynccontextmanager
async def topics(lab: Lab) -> AsyncIterator[Topics]:
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(QUEUE)
        await bus.admin.create_topic(LOG, semantics="PUB_SUB", lanes=1)
        made = Topics(dsn, bus, conn)
        warm = [{"number": 0, "customer": "", "cents": 0, "note": "plans are made"}]
        for topic in (QUEUE, LOG):
            await made.publish(topic, warm, batch=1)
        await made.empty_queue()
        yield made
