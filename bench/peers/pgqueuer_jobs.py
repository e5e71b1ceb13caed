"""pgqueuer: jobs in a table, by asyncpg."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import asyncpg

from bench.lab import connection
from bench.load import Payload, encode
from bench.peers.system import Handle, InTables, Publisher, Style, decode

_BATCH = {Style.BULK: 500, Style.PROMPT: 10}


class Pgqueuer(InTables):
    """Durable tables with the recommended autovacuum settings, enqueue() in a transaction, and a QueueManager."""

    client = "pgqueuer"
    share = 0.2
    tables = ("pgqueuer", "pgqueuer_log")

    async def install(self) -> None:
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        async with connection(self.address) as conn:
            queries = Queries(AsyncpgDriver(conn))
            await queries.install()
            await queries.optimize_autovacuum()

    @contextlib.asynccontextmanager
    async def publisher(self, shared: Any, style: Style) -> AsyncIterator[Publisher]:
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        async with connection(self.address) as conn:
            queries = Queries(AsyncpgDriver(conn))

            async def one(payload: Payload) -> None:
                async with conn.transaction():
                    await queries.enqueue(self.topic, encode(payload))

            async def many(batch: Sequence[Payload]) -> None:
                size = len(batch)
                async with conn.transaction():
                    await queries.enqueue([self.topic] * size, [encode(each) for each in batch], [0] * size)

            yield Publisher(one, many)

    async def consume(self, group: str, count: int, handle: Handle, style: Style) -> None:
        from pgqueuer.db import AsyncpgPoolDriver
        from pgqueuer.qm import QueueManager
        from pgqueuer.queries import Queries

        left = count
        # A pool, since jobs are claimed and logged at the same time.
        async with asyncpg.create_pool(self.address, min_size=4, max_size=4) as pool:
            manager = QueueManager(Queries(AsyncpgPoolDriver(pool)))

            async def run(job: Any) -> None:
                nonlocal left
                handle([decode(job.payload)])
                left -= 1
                if left == 0:
                    manager.shutdown.set()

            manager.entrypoint(self.topic)(run)
            await manager.run(batch_size=_BATCH[style], dequeue_timeout=timedelta(seconds=1))
