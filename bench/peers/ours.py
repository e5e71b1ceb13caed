"""Postbus itself, with a QUEUE and with a PUB_SUB topic."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager

from bench.consume import AT_FULL_SPEED
from bench.lab import connection
from bench.load import Order, Payload
from bench.peers.system import Handle, InPostgres, Publisher, Style
from postbus import Bus, Start

_QUEUE_BATCH = 500
_LOG_BATCH = 1000


class Ours(InPostgres):
    """The common parts of both: how they publish, and how a worker runs."""

    client = "postbus"

    def shared(self) -> AbstractAsyncContextManager[Bus]:
        return Bus.open(self.address)

    @contextlib.asynccontextmanager
    async def publisher(self, shared: Bus, style: Style) -> AsyncIterator[Publisher]:
        async with connection(self.address) as conn:

            async def one(payload: Payload) -> None:
                async with conn.transaction():
                    await shared.publish(conn, self.topic, payload)

            async def many(batch: Sequence[Payload]) -> None:
                async with conn.transaction():
                    await shared.publish_many(conn, self.topic, batch)

            yield Publisher(one, many)

    async def _run(self, groups: Sequence[str | None], count: int, handle: Handle, batch: int | None) -> None:
        left = count * len(groups)
        async with Bus.open(self.address) as bus:

            def note(orders: Sequence[Order]) -> None:
                nonlocal left
                handle(orders)
                left -= len(orders)
                if left <= 0:
                    bus.stop()

            async def one(order: Order) -> None:
                note([order])

            async def many(orders: list[Order]) -> None:
                note(orders)

            for group in groups:
                concurrency = 10 if batch is None else 1 if group else 2
                start = Start.BEGINNING if group else Start.NOW
                options = bus.subscribe(
                    self.topic,
                    concurrency=concurrency,
                    batch=batch,
                    group=group,
                    start=start,
                    catch_up=AT_FULL_SPEED if group else None,
                )
                options(one if batch is None else many)
            await bus.run()


class PostbusQueue(Ours):
    """A QUEUE topic, and a worker with a batch handler or a single handler."""

    async def create(self, groups: Sequence[str]) -> None:
        async with Bus.open(self.address) as bus:
            await bus.admin.create_topic(self.topic)

    async def remove(self, groups: Sequence[str]) -> None:
        async with connection(self.address) as conn:
            await conn.execute("truncate postbus.queued")

    async def consume(self, group: str, count: int, handle: Handle, style: Style) -> None:
        await self._run([None], count, handle, _QUEUE_BATCH if style is Style.BULK else None)


class PostbusLog(Ours):
    """A PUB_SUB topic. The groups of one process share their reads."""

    has_groups = True
    share = 4.0

    async def create(self, groups: Sequence[str]) -> None:
        async with Bus.open(self.address) as bus:
            await bus.admin.create_topic(self.topic, semantics="PUB_SUB")

    async def consume(self, group: str, count: int, handle: Handle, style: Style) -> None:
        await self._run([group], count, handle, _LOG_BATCH if style is Style.BULK else None)

    async def consume_all(self, groups: Sequence[str], count: int, handle: Handle) -> None:
        await self._run(groups, count, handle, _LOG_BATCH)
