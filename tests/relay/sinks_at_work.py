"""Sinks at work: their setup for the tests that hurt relays, and what they have received in the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aio_pika
import nats
from nats.js.api import AckPolicy, ConsumerConfig
from redis.asyncio import Redis

from bench.peers import servers
from postbus import Bus
from relay.kafka_cluster import kafka_cluster, records
from relay.pubsub_server import pubsub_server
from relay.receiver import receiving

TOPIC = "orders"


@dataclass
class AtWork:
    """A sink for a topic's messages, whose payloads are numbers."""

    name: str
    url: str
    numbers: Callable[[int], Awaitable[list[int]]]
    """Waits until so many messages have arrived, and returns their numbers in order."""
    options: str = ""
    """In its table of the settings."""
    server: servers.Server | None = None
    """Where it can be killed."""
    knows_duplicates: bool = False


async def _ignore(error: Exception) -> None:
    """Ignore the error: the server is killed on purpose."""


@asynccontextmanager
async def nats_at_work() -> AsyncIterator[AtWork]:
    async with servers.nats() as server:
        client = await nats.connect(server.address)
        await client.jetstream().add_stream(name="ORDERS", subjects=[TOPIC])
        await client.close()

        async def numbers(count: int) -> list[int]:
            reader = await nats.connect(server.address)
            stream = reader.jetstream()
            config = ConsumerConfig(ack_policy=AckPolicy.NONE)
            pulled = await stream.pull_subscribe("", stream="ORDERS", config=config)
            got: list[int] = []
            while len(got) < (await stream.stream_info("ORDERS")).state.messages:
                got += [int(one.data) for one in await pulled.fetch(1000, timeout=5)]
            await reader.close()
            return got

        yield AtWork("nats", server.address, numbers, server=server, knows_duplicates=True)


@asynccontextmanager
async def redis_at_work() -> AsyncIterator[AtWork]:
    async with servers.redis() as server:

        async def numbers(count: int) -> list[int]:
            redis: Any
            async with Redis.from_url(server.address) as redis:
                return [int(fields[b"payload"]) for _, fields in await redis.xrange(TOPIC)]

        yield AtWork("redis", server.address, numbers, server=server)


@asynccontextmanager
async def rabbitmq_at_work() -> AsyncIterator[AtWork]:
    async with servers.rabbitmq() as server:
        connection = await aio_pika.connect(server.address)
        async with connection, connection.channel() as channel:
            await channel.declare_queue(TOPIC, durable=True, arguments={"x-queue-type": "quorum"})

        async def numbers(count: int) -> list[int]:
            reader = await aio_pika.connect(server.address)
            got: list[int] = []
            async with reader, reader.channel() as channel:
                queue = await channel.get_queue(TOPIC)
                left = queue.declaration_result.message_count or 0
                async with queue.iterator(no_ack=True, timeout=20) as messages:
                    while len(got) < left:
                        got.append(int((await anext(messages)).body))
            return got

        yield AtWork("rabbitmq", server.address, numbers, server=server)


@asynccontextmanager
async def kafka_at_work() -> AsyncIterator[AtWork]:
    with kafka_cluster() as address:

        async def numbers(count: int) -> list[int]:
            return [int(one.value()) for one in await asyncio.to_thread(records, address, TOPIC, count)]

        yield AtWork("kafka", address, numbers)


@asynccontextmanager
async def pubsub_at_work() -> AsyncIterator[AtWork]:
    with pubsub_server() as server:

        async def numbers(count: int) -> list[int]:
            return [int(one.data) for _, one in server.published]

        yield AtWork("pubsub", "pubsub://shop", numbers, options=f'emulator = "{server.address}"')


@asynccontextmanager
async def webhook_at_work() -> AsyncIterator[AtWork]:
    with receiving() as receiver:

        async def numbers(count: int) -> list[int]:
            return [int(one.body) for one in receiver.received]

        yield AtWork("webhook", receiver.url, numbers, options='secrets = ["a secret of a good length"]')


def postbus_at_work(dsn: str) -> Callable[[], Any]:
    @asynccontextmanager
    async def at_work() -> AsyncIterator[AtWork]:
        async with Bus.open(dsn, migrate=True) as bus:
            await bus.admin.create_topic(TOPIC, semantics="PUB_SUB", lanes=1)

            async def numbers(count: int) -> list[int]:
                rows = await bus.admin.log(TOPIC, after=(0, -1), limit=10 * count)
                return [int(row.payload) for row in rows]

            yield AtWork("postbus", dsn, numbers, knows_duplicates=True)

    return at_work


@asynccontextmanager
async def all_at_work(other_dsn: str) -> AsyncIterator[list[AtWork]]:
    """Run all sinks whose servers are installed."""
    from bench.peers.system import Absent

    made = [
        nats_at_work, redis_at_work, rabbitmq_at_work, kafka_at_work, pubsub_at_work, webhook_at_work,
        postbus_at_work(other_dsn),
    ]  # fmt: skip
    async with AsyncExitStack() as stack:

        async def begun(one: Callable[[], Any]) -> list[AtWork]:
            try:
                return [await stack.enter_async_context(one())]
            except Absent:
                return []

        yield [one for found in await asyncio.gather(*map(begun, made)) for one in found]
