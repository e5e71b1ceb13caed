"""Redis Streams: an append-only file that is synced with each write."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bench.load import Payload, encode
from bench.peers.system import Handle, Publisher, Style, System, decode

_BATCH = {Style.BULK: 500, Style.PROMPT: 10}
_BLOCK = 1000  # milliseconds


class RedisStreams(System):
    """XADD, pipelined for batches; XREADGROUP and one XACK per batch. The client uses hiredis."""

    has_groups = True
    share = 0.3
    client = "redis"

    async def version(self) -> str:
        async with self._connection() as redis:
            return f"redis-server {(await redis.info('server'))['redis_version']}, {await super().version()}"

    async def create(self, groups: Sequence[str]) -> None:
        async with self._connection() as redis:
            for group in groups:
                await redis.xgroup_create(self.topic, group, id="0", mkstream=True)

    async def remove(self, groups: Sequence[str]) -> None:
        async with self._connection() as redis:
            await redis.delete(self.topic)

    @contextlib.asynccontextmanager
    async def publisher(self, shared: Any, style: Style) -> AsyncIterator[Publisher]:
        async with self._connection() as redis:

            async def one(payload: Payload) -> None:
                await redis.xadd(self.topic, {"payload": encode(payload)})

            async def many(batch: Sequence[Payload]) -> None:
                async with redis.pipeline(transaction=False) as pipeline:
                    for each in batch:
                        pipeline.xadd(self.topic, {"payload": encode(each)})
                    await pipeline.execute()

            yield Publisher(one, many)

    async def consume(self, group: str, count: int, handle: Handle, style: Style) -> None:
        async with self._connection() as redis:
            left = count
            while left > 0:
                found = await redis.xreadgroup(group, "bench", {self.topic: ">"}, count=_BATCH[style], block=_BLOCK)
                if not found:
                    continue
                ((_, entries),) = found
                handle([decode(fields[b"payload"]) for _, fields in entries])
                await redis.xack(self.topic, group, *(number for number, _ in entries))
                left -= len(entries)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        from redis.asyncio import Redis

        redis = Redis.from_url(self.address, single_connection_client=True, protocol=2)
        async with redis:
            yield redis
