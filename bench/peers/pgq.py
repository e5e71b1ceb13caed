"""PgQ: events in rotating tables, read in batches between two ticks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg

from bench.lab import connection
from bench.load import Payload, batches, encode
from bench.peers.system import Handle, InPostgres, Publisher, Style, decode

_IDLE = 0.002  # seconds between two polls


class Pgq(InPostgres):
    """The extension pgq. The benchmark ticks once per 1000 waiting events, or at each poll of a prompt consumer."""

    has_groups = True

    async def version(self) -> str:
        async with connection(self.address) as conn:
            found = await conn.fetchval("select extversion from pg_extension where extname = 'pgq'")
            return f"pgq {found}, {await super().version()}"

    async def install(self) -> None:
        async with connection(self.address) as conn:
            await conn.execute("create extension pgq")

    async def create(self, groups: Sequence[str]) -> None:
        async with connection(self.address) as conn:
            await conn.execute("select pgq.create_queue($1)", self.topic)
            for name, value in (("ticker_max_count", "1"), ("ticker_max_lag", "1 millisecond")):
                await conn.execute("select pgq.set_queue_config($1, $2, $3)", self.topic, name, value)
            for group in groups:
                await conn.execute("select pgq.register_consumer($1, $2)", self.topic, group)

    async def remove(self, groups: Sequence[str]) -> None:
        async with connection(self.address) as conn:
            await conn.execute("select pgq.drop_queue($1, true)", self.topic)

    @contextlib.asynccontextmanager
    async def publisher(self, shared: Any, style: Style) -> AsyncIterator[Publisher]:
        async with connection(self.address) as conn:
            schema, table = (await conn.fetchval("select pgq.current_event_table($1)", self.topic)).split(".")

            async def one(payload: Payload) -> None:
                async with conn.transaction():
                    await conn.execute("select pgq.insert_event($1, 'order', $2)", self.topic, encode(payload).decode())

            async def many(batch: Sequence[Payload]) -> None:
                now = datetime.now(UTC)
                records = [(now, "order", encode(each).decode()) for each in batch]
                async with conn.transaction():
                    await conn.copy_records_to_table(
                        table, schema_name=schema, records=records, columns=["ev_time", "ev_type", "ev_data"]
                    )

            yield Publisher(one, many)

    async def fill(self, given: Sequence[Payload], count: int) -> None:
        async with self.publishers(1) as (publisher,), connection(self.address) as conn:
            for batch in batches(given, count):
                await publisher.many(batch)
                await self._tick(conn)

    async def consume(self, group: str, count: int, handle: Handle, style: Style) -> None:
        async with connection(self.address) as conn:
            left = count
            while left > 0:
                if style is Style.PROMPT:
                    await self._tick(conn)
                found = await self._batch(conn, group, handle)
                left -= found or 0
                if found is None:
                    await asyncio.sleep(_IDLE)

    async def _tick(self, conn: asyncpg.Connection) -> None:
        await conn.execute("select pgq.ticker($1)", self.topic)

    async def _batch(self, conn: asyncpg.Connection, group: str, handle: Handle) -> int | None:
        """The number of events in the next batch. None if there is no batch."""
        async with conn.transaction():
            batch = await conn.fetchval("select pgq.next_batch($1, $2)", self.topic, group)
            if batch is None:
                return None
            rows = await conn.fetch("select ev_data from pgq.get_batch_events($1)", batch)
            if rows:
                handle([decode(row["ev_data"]) for row in rows])
            await conn.execute("select pgq.finish_batch($1)", batch)
        return len(rows)
