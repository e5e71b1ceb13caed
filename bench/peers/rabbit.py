"""RabbitMQ: quorum queues behind a fan-out exchange, with publisher confirms."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bench.load import Payload, encode
from bench.peers.system import Handle, Publisher, Style, System, decode

_BATCH = {Style.BULK: 500, Style.PROMPT: 1}


class RabbitMq(System):
    """A queue for each group. publish() waits for the confirm, a batch for all confirms; acks cover many messages."""

    has_groups = True
    share = 0.05
    client = "aio-pika"

    async def version(self) -> str:
        import aio_pika

        async with await aio_pika.connect(self.address) as connection:
            assert connection.transport is not None
            told = connection.transport.connection.server_properties["version"]
        version = told.decode() if isinstance(told, bytes) else told
        return f"rabbitmq-server {version}, {await super().version()}"

    async def create(self, groups: Sequence[str]) -> None:
        async with self._channel() as channel:
            exchange = await channel.declare_exchange(self.topic, "fanout", durable=True)
            for group in groups:
                queue = await channel.declare_queue(
                    self._queue(group), durable=True, arguments={"x-queue-type": "quorum"}
                )
                await queue.bind(exchange)

    async def remove(self, groups: Sequence[str]) -> None:
        async with self._channel() as channel:
            for group in groups:
                await channel.queue_delete(self._queue(group))
            await channel.exchange_delete(self.topic)

    @contextlib.asynccontextmanager
    async def publisher(self, shared: Any, style: Style) -> AsyncIterator[Publisher]:
        from aio_pika import DeliveryMode, Message

        async with self._channel() as channel:
            exchange = await channel.get_exchange(self.topic)

            async def one(payload: Payload) -> None:
                await exchange.publish(Message(encode(payload), delivery_mode=DeliveryMode.PERSISTENT), "")

            async def many(batch: Sequence[Payload]) -> None:
                await asyncio.gather(*map(one, batch))

            yield Publisher(one, many)

    async def consume(self, group: str, count: int, handle: Handle, style: Style) -> None:
        batch = _BATCH[style]
        left, enough = count, asyncio.Event()

        async def run(message: Any) -> None:
            nonlocal left
            handle([decode(message.body)])
            left -= 1
            is_last = left == 0  # read before the await, since other tasks run meanwhile
            if left % batch == 0:
                await message.ack(multiple=True)
            if is_last:
                enough.set()

        async with self._channel() as channel:
            await channel.set_qos(prefetch_count=max(2 * batch, 10))
            queue = await channel.get_queue(self._queue(group))
            await queue.consume(run)
            await enough.wait()

    def _queue(self, group: str) -> str:
        return f"{self.topic}.{group}"

    @contextlib.asynccontextmanager
    async def _channel(self) -> AsyncIterator[Any]:
        import aio_pika

        connection = await aio_pika.connect(self.address)
        async with connection, connection.channel(publisher_confirms=True) as channel:
            yield channel
