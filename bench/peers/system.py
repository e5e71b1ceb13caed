"""The interface of a measured system: the same few operations, each done in the way that suits the system best."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import importlib.metadata
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, ClassVar, Self

import msgspec

from bench.lab import connection
from bench.load import Order, Payload, batches
from postbus.errors import PostbusError

GROUP = "bench"
"""The name of the only group."""

Handle = Callable[[Sequence[Order]], None]
decode = msgspec.json.Decoder(Order).decode


class Absent(PostbusError):
    """A system cannot be measured here; the text says why."""


class Style(Enum):
    """The goal of a consumer: throughput or latency."""

    BULK = auto()
    """As many messages per second as possible."""
    PROMPT = auto()
    """Each message as soon as possible."""


@dataclass(frozen=True)
class Publisher:
    """A connection that publishes. Both methods return when the messages are on disk."""

    one: Callable[[Payload], Awaitable[object]]
    many: Callable[[Sequence[Payload]], Awaitable[object]]


@dataclass(frozen=True)
class System(abc.ABC):
    """A system at an address. It is copied to other processes."""

    name: str
    address: str
    topic: str = "bench"
    has_groups: ClassVar[bool] = False
    """Whether several groups can each get all messages."""
    share: ClassVar[float] = 1.0
    """The share of the messages that it drains: slow systems need long enough even for a few."""
    client: ClassVar[str] = "asyncpg"
    """The distribution of the client, whose version is reported."""

    def on(self, topic: str) -> Self:
        """This system with another topic."""
        return replace(self, topic=topic)

    async def version(self) -> str:
        return f"{self.client} {importlib.metadata.version(self.client)}"

    async def install(self) -> None:
        """Create what all topics need, once."""
        return

    @abc.abstractmethod
    async def create(self, groups: Sequence[str]) -> None:
        """Create the empty topic with its groups."""

    async def remove(self, groups: Sequence[str]) -> None:
        """Remove the topic with its messages."""
        return

    @contextlib.asynccontextmanager
    async def publishers(self, count: int, style: Style = Style.BULK) -> AsyncIterator[list[Publisher]]:
        """Open connections that publish. With PROMPT, a consumer waits for the messages."""
        async with contextlib.AsyncExitStack() as stack:
            shared = await stack.enter_async_context(self.shared())
            yield [await stack.enter_async_context(self.publisher(shared, style)) for _ in range(count)]

    def shared(self) -> AbstractAsyncContextManager[Any]:
        """The resources that all publishers of a process share."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def publisher(self, shared: Any, style: Style) -> AbstractAsyncContextManager[Publisher]:
        """One publisher."""

    @abc.abstractmethod
    async def consume(self, group: str, count: int, handle: Handle, style: Style) -> None:
        """Decode and handle `count` messages. Returns when all of them are settled."""

    async def consume_all(self, groups: Sequence[str], count: int, handle: Handle) -> None:
        """Let each group handle `count` messages, in this process."""
        await asyncio.gather(*(self.consume(group, count, handle, Style.BULK) for group in groups))

    async def fill(self, given: Sequence[Payload], count: int) -> None:
        """Publish `count` messages at full speed."""
        async with self.publishers(1) as (publisher,):
            for batch in batches(given, count):
                await publisher.many(batch)

    @contextlib.asynccontextmanager
    async def created(self, groups: Sequence[str]) -> AsyncIterator[Self]:
        """The topic exists for the length of the block."""
        await self.create(groups)
        try:
            yield self
        finally:
            await self.remove(groups)


class InPostgres(System):
    """A system whose address is a DSN."""

    async def version(self) -> str:
        async with connection(self.address) as conn:
            return f"{await super().version()}, PostgreSQL {await conn.fetchval('show server_version')}"


class InTables(InPostgres):
    """A system whose messages are rows of a table."""

    tables: ClassVar[tuple[str, ...]]
    """The table of the messages, and others that grow with it."""

    async def create(self, groups: Sequence[str]) -> None:
        async with connection(self.address) as conn:
            await conn.execute(f"truncate {', '.join(self.tables)} cascade")

    async def fill(self, given: Sequence[Payload], count: int) -> None:
        await super().fill(given, count)
        async with connection(self.address) as conn:
            await conn.execute(f"analyze {self.tables[0]}")
