"""A queue written by hand, with SKIP LOCKED."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bench import peer
from bench.lab import connection
from bench.load import Payload, encode
from bench.peers.system import Handle, InTables, Publisher, Style

_BATCH = {Style.BULK: 500, Style.PROMPT: 10}


class Handwritten(InTables):
    """One table. An update leases a message, and a delete settles it. NOTIFY wakes the consumer."""

    tables = ("handwritten",)

    async def install(self) -> None:
        async with connection(self.address) as conn:
            await peer.create(conn)

    @contextlib.asynccontextmanager
    async def publisher(self, shared: Any, style: Style) -> AsyncIterator[Publisher]:
        async with connection(self.address) as conn:

            async def one(payload: Payload) -> None:
                async with conn.transaction():
                    if style is Style.PROMPT:
                        await peer.publish_and_notify(conn, payload)
                    else:
                        await conn.execute(peer.INSERT_ONE, encode(payload))

            async def many(batch: Sequence[Payload]) -> None:
                async with conn.transaction():
                    await conn.execute(peer.INSERT, [encode(one) for one in batch])

            yield Publisher(one, many)

    async def consume(self, group: str, count: int, handle: Handle, style: Style) -> None:
        async with connection(self.address) as conn, connection(self.address) as listening:
            notified = asyncio.Event()
            await listening.add_listener(peer.CHANNEL, lambda *_: notified.set())
            left = count
            while left > 0:
                notified.clear()
                step = await peer.lease_and_delete(conn, batch=_BATCH[style], handle=lambda order: handle([order]))
                left -= step
                if left > 0 and step == 0:
                    await notified.wait()
