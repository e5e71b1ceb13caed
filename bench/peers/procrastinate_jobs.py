"""procrastinate: jobs in a table, by psycopg."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from bench.load import Order, Payload
from bench.peers.system import Handle, InTables, Publisher, Style

_CONCURRENCY = {Style.BULK: 30, Style.PROMPT: 10}


class Procrastinate(InTables):
    """defer() in a transaction on the caller's connection, and one worker that deletes finished jobs."""

    client = "procrastinate"
    share = 0.02
    tables = ("procrastinate_jobs",)

    async def install(self) -> None:
        app = self._app(1)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[Any]:
        app = self._app(1)
        async with app.open_async():
            yield app

    @contextlib.asynccontextmanager
    async def publisher(self, shared: Any, style: Style) -> AsyncIterator[Publisher]:
        import psycopg
        from psycopg.rows import dict_row

        async with await psycopg.AsyncConnection.connect(self.address, autocommit=True, row_factory=dict_row) as conn:
            task = shared.configure_task(self.topic, connection=conn)

            async def one(payload: Payload) -> None:
                async with conn.transaction():
                    await task.defer_async(**payload)

            async def many(batch: Sequence[Payload]) -> None:
                async with conn.transaction():
                    await task.batch_defer_async(*batch)

            yield Publisher(one, many)

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
                worker.cancel()  # lets running jobs finish
                await asyncio.wait([worker])
            if not worker.cancelled():
                worker.result()  # raises the reason

    def _app(self, connections: int) -> Any:
        from procrastinate import App, PsycopgConnector

        connector = PsycopgConnector(conninfo=self.address, min_size=1, max_size=connections)
        return App(connector=connector)
