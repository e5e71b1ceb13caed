"""NATS JetStream: a stream in a file that is synced with each message."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bench.load import Payload, encode
from bench.peers.system import Handle, Publisher, Style, System, decode

_BATCH = 500
_PATIENCE = 10.0


class JetStream(System):
    """publish() waits for the stream's answer, publish_async() sends batches; pull consumers, one ack per batch."""

    has_groups = True
    share = 0.05
    client = "nats-py"

    async def version(self) -> str:
        import nats

        client = await nats.connect(self.address)
        try:
            server = client.connected_server_version
            return f"nats-server {server.major}.{server.minor}.{server.patch}, {await super().version()}"
        finally:
            await client.close()

    async def create(self, groups: Sequence[str]) -> None:
        from nats.js.api import StorageType

        async with self._connection() as stream:
            await stream.add_stream(name=self.topic, subjects=[self.topic], storage=StorageType.FILE)

    async def remove(self, groups: Sequence[str]) -> None:
        async with self._connection() as stream:
            await stream.delete_stream(self.topic)

    @contextlib.asynccontextmanager
    async def publisher(self, shared: Any, style: Style) -> AsyncIterator[Publisher]:
        async with self._connection() as stream:

            async def one(payload: Payload) -> None:
                await stream.publish(self.topic, encode(payload))

            async def many(batch: Sequence[Payload]) -> None:
                await asyncio.gather(*[await stream.publish_async(self.topic, encode(each)) for each in batch])

            yield Publisher(one, many)

    async def consume(self, group: str, count: int, handle: Handle, style: Style) -> None:
        async with self._connection() as stream:
            await (self._pull if style is Style.BULK else self._follow)(stream, group, count, handle)

    async def _pull(self, stream: Any, group: str, count: int, handle: Handle) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig

        config = ConsumerConfig(ack_policy=AckPolicy.ALL)
        pulled = await stream.pull_subscribe(self.topic, durable=group, stream=self.topic, config=config)
        left = count
        while left > 0:
            messages = await pulled.fetch(min(_BATCH, left), timeout=_PATIENCE)
            handle([decode(message.data) for message in messages])
            left -= len(messages)
            await (messages[-1].ack() if left > 0 else messages[-1].ack_sync())

    async def _follow(self, stream: Any, group: str, count: int, handle: Handle) -> None:
        left, enough = count, asyncio.Event()

        async def run(message: Any) -> None:
            nonlocal left
            handle([decode(message.data)])
            await message.ack()
            left -= 1
            if left == 0:
                enough.set()

        await stream.subscribe(self.topic, durable=group, stream=self.topic, cb=run, manual_ack=True)
        await enough.wait()

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        import nats

        client = await nats.connect(self.address)
        try:
            yield client.jetstream(publish_async_max_pending=10_000)
        finally:
            await client.close()
