"""Sending without a transaction of one's own: concurrent calls share one durable commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from postbus._store import Store
from postbus.errors import InvalidInput
from postbus.message import Outgoing
from postbus.publish import publish_many

_MAX_BATCH = 1000

_Waiting = tuple[str, Outgoing, "asyncio.Future[int]"]


class Sender:
    """Gathers what is sent while a commit is under way, and commits it together next."""

    def __init__(self, store: Store, ring: Callable[[str], None]) -> None:
        self._store = store
        self._ring = ring
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None

    async def send(self, topic: str, message: Outgoing) -> int:
        """Publish; returns the id when the message is committed."""
        sent: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((topic, message, sent))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all(), name="postbus-sender")
        return await sent

    async def close(self) -> None:
        """Wait until all that was sent is committed."""
        if self._sending is not None:
            await self._sending

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
                await self._send_batch(batch)
        finally:
            self._sending = None

    async def _send_batch(self, batch: list[_Waiting]) -> None:
        try:
            ids = await self._commit(batch)
        except InvalidInput as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:  # one of them is refused: find out which, the others must not suffer
                for one in batch:
                    await self._send_batch([one])
        except Exception as error:
            _fail(batch, error)
        else:
            for (_, _, sent), message_id in zip(batch, ids, strict=True):
                if not sent.done():
                    sent.set_result(message_id)

    async def _commit(self, batch: list[_Waiting]) -> list[int]:
        by_topic: dict[str, list[int]] = {}
        for place, (topic, _, _) in enumerate(batch):
            by_topic.setdefault(topic, []).append(place)
        statements = [publish_many(topic, [batch[place][1] for place in places]) for topic, places in by_topic.items()]
        answers = await self._store.publish_batches(statements)
        ids = [0] * len(batch)
        for (topic, places), answer in zip(by_topic.items(), answers, strict=True):
            self._ring(topic)
            for place, message_id in zip(places, answer, strict=True):
                ids[place] = message_id
        return ids


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for _, _, sent in batch:
        if not sent.done():
            sent.set_exception(error)
