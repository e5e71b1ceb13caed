"""procrastinate: jobs in a table, by psycopg."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from postbus.bench.lab import connection
from postbus.bench.load import Order, Payload
from postbus.bench.peers.system import Handle, InPostgres, Publisher, Style

_CONCURRENCY = {Style.BULK: 30, Style.PROMPT: 10}


class Procrastinate(InPostgres):
    """defer() in a transaction on the caller's connection; one worker, jobs deleted when they are done."""

    client = "procrastinate"
    share = 0.02

    async def install(self) -> None:
        app = self._app(1)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def create(self, groups: Sequence[str]) -> None:
        async with connection(self.address) as conn:
            await conn.execute("truncate procrastinate_jobs cascade")

    @contextlib.asynccontextmanager
    async def publishers(self, count: int, style: Style = Style.BULK) -> AsyncIterator[list[Publisher]]:
        import psycopg
        from psycopg.rows import dict_row

        app = self._app(1)
        async with app.open_async(), contextlib.AsyncExitStack() as stack:

            async def publisher() -> Publisher:
                conn = await stack.enter_async_context(
                    await psycopg.AsyncConnection.connect(self.address, autocommit=True, row_factory=dict_row)
                )
                task = app.configure_task(self.topic, connection=conn)

                async def one(payload: Payload) -> None:
                    async with conn.transaction():
                        await task.defer_async(**payload)

                async def many(batch: Sequence[Payload]) -> None:
                    async with conn.transaction():
                        await task.batch_defer_async(*batch)

                return Publisher(one, many)

            yield [await publisher() for _ in range(count)]

    async def fill(self, given: Sequence[Payload], count: int) -> None:
        await super().fill(given, count)
        async with connection(self.address) as conn:
            await conn.execute("analyze procrastinate_jobs")

    async def consume(self, group: str, count: int, handle: Handle, style: Style) -> None:
        left, enough = count, asyncio.Event()

        async def run(**payload: Any) -> None:
            nonlocal left
            handle([msgspec.convert(payload, Order)])
            left -= 1
            if left == 0:
                enough.set()

        concurrency = _CONCURRENCY[style]
        app = self._app(concurrency + 2)
        app.task(name=self.topic)(run)
        async with app.open_async():
            options = {"concurrency": concurrency, "delete_jobs": "always", "install_signal_handlers": False}
            worker = asyncio.create_task(app.run_worker_async(**options))
            waiting = asyncio.create_task(enough.wait())
            try:
                await asyncio.wait([waiting, worker], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                worker.cancel()  # it ends what it has begun
                await asyncio.wait([worker])
            if not worker.cancelled():
                worker.result()  # it failed

    def _app(self, connections: int) -> Any:
        from procrastinate import App, PsycopgConnector

        connector = PsycopgConnector(conninfo=self.address, min_size=1, max_size=connections)
        return App(connector=connector)
