"""Sending in transactions of the bus: concurrent calls share one durable commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec

from postbus._content.codec import encode
from postbus._db.store import Store
from postbus._publish.statements import publish_many
from postbus.errors import InvalidInput
from postbus.message import Outgoing

_MAX_BATCH = 1000
_MAX_BATCH_BYTES = 16 << 20


class Notify(Protocol):
    """Wakes the consumers of a topic, unless the commit did."""

    def __call__(self, topic: str, *, commit_notified: bool) -> None: ...


class PendingSend(NamedTuple):
    """A message to be sent, and the future that its caller awaits."""

    topic: str
    message: Outgoing
    size: int
    sent: asyncio.Future[int]


class Sender:
    """Sends messages by two batchers.

    A message with a deduplication key may have to wait for an open transaction with the same key. Messages without one
    never do, and must not wait behind it.
    """

    def __init__(self, store: Store, notify: Notify) -> None:
        self._store = store
        self._notify = notify
        self._plain = CommitBatcher(self._commit)
        self._deduplicated = CommitBatcher(self._commit)

    async def send(self, topic: str, message: Outgoing) -> int:
        """Publish a message. Returns its id once it is committed."""
        payload, content_type = encode(message.payload)
        message = msgspec.structs.replace(message, payload=payload, content_type=message.content_type or content_type)
        batcher = self._plain if message.dedup_key is None else self._deduplicated
        return await batcher.send(topic, message, len(payload))

    async def close(self) -> None:
        """Wait until all sent messages are committed."""
        await self._plain.close()
        await self._deduplicated.close()

    async def _commit(self, batch: list[PendingSend]) -> list[int]:
        by_topic: dict[str, list[int]] = {}
        for index, one in enumerate(batch):
            by_topic.setdefault(one.topic, []).append(index)
        statements = [
            publish_many(topic, [batch[index].message for index in indexes]) for topic, indexes in by_topic.items()
        ]
        answers = await self._store.publish_batches(statements)
        ids = [0] * len(batch)
        for (topic, indexes), answer in zip(by_topic.items(), answers, strict=True):
            self._notify(topic, commit_notified=answer.commit_notifies)
            for index, message_id in zip(indexes, answer.ids, strict=True):
                ids[index] = message_id
        return ids


class CommitBatcher:
    """Gathers the messages that are sent while a commit is under way, and commits them together next."""

    def __init__(self, commit: Callable[[list[PendingSend]], Awaitable[list[int]]]) -> None:
        self._commit = commit
        """Commits a batch, all or nothing, and returns the ids."""
        self._waiting: list[PendingSend] = []
        self._sending: asyncio.Task[None] | None = None

    async def send(self, topic: str, message: Outgoing, size: int) -> int:
        sent: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingSend(topic, message, size, sent))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all(), name="postbus-sender")
        return await sent

    @property
    def is_idle(self) -> bool:
        return self._sending is None

    async def close(self) -> None:
        if self._sending is not None:
            await self._sending

    async def _send_all(self) -> None:
        batch: list[PendingSend] = []
        try:
            while self._waiting:
                batch = self._take()
                if batch:
                    await self._send_batch(batch)
        except BaseException:
            for one in (*batch, *self._waiting):  # the task was cancelled: no caller may wait for it forever
                one.sent.cancel()
            self._waiting.clear()
            raise
        finally:
            self._sending = None

    def _take(self) -> list[PendingSend]:
        """The next batch, without messages whose callers were cancelled."""
        size = count = 0
        for one in self._waiting[:_MAX_BATCH]:
            size += one.size
            if count and size > _MAX_BATCH_BYTES:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return [one for one in batch if not one.sent.done()]

    async def _send_batch(self, batch: list[PendingSend]) -> None:
        try:
            ids = await self._commit(batch)
        except Exception as error:
            if len(batch) > 1 and _may_be_one_message(error):
                half = len(batch) // 2
                await self._send_batch(batch[:half])
                await self._send_batch(batch[half:])
            else:
                _fail(batch, error)
        else:
            for one, message_id in zip(batch, ids, strict=True):
                if not one.sent.done():
                    one.sent.set_result(message_id)


def _may_be_one_message(error: Exception) -> bool:
    """Whether one message made the batch fail, so that parts of it can succeed. Nothing of it was committed.

    Such a message was refused, or its deduplication key led to a deadlock with another transaction's keys.
    """
    return isinstance(error, InvalidInput) or str(getattr(error.__cause__, "sqlstate", "")).startswith("40")


def _fail(batch: list[PendingSend], error: Exception) -> None:
    for one in batch:
        if not one.sent.done():
            one.sent.set_exception(error)
