"""Sending over HTTP: concurrent calls share requests, within bounds."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from postbus._content.codec import encode
from postbus._content.content_types import JSON, TEXT
from postbus._publish.group_commit import CommitBatcher, PendingSend
from postbus._publish.statements import publish_one
from postbus.errors import InvalidInput, InvalidOption
from postbus.http_client.wire import Answer, Wire, path_of
from postbus.message import Outgoing

_MAX_BATCHERS = 1000  # beyond that, idle ones are forgotten


class WireMessage(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A message as the server accepts it."""

    payload: msgspec.Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    content_type: str | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    priority: int | None = None
    delay: float | None = None
    deliver_at: datetime | None = None
    dedup_key: str | None = None
    correlation_id: str | None = None


class HttpSender:
    """Sends messages by one request at a time for each topic. Messages that come meanwhile share the next one."""

    def __init__(self, wire: Wire, *, dedup: bool, most: int, most_bytes: int) -> None:
        self._wire = wire
        self._dedup = dedup
        self._batchers: dict[str, CommitBatcher] = {}
        self._budget = SendBudget(most, most_bytes)

    async def send(self, topic: str, message: Outgoing) -> int:
        """Publish a message. Returns its id once it is committed."""
        message = self._checked(topic, message)
        size = len(encode(message.payload)[0])
        async with self._budget.taken(size):
            if len(self._batchers) >= _MAX_BATCHERS:
                self._batchers = {name: one for name, one in self._batchers.items() if not one.is_idle}
            batcher = self._batchers.setdefault(topic, CommitBatcher(self._commit))
            return await batcher.send(topic, message, size)

    async def send_many(self, topic: str, messages: Iterable[Any]) -> list[int]:
        """Publish all in one request."""
        given = [self._checked(topic, one) for one in as_outgoing(messages)]
        return await self._push(topic, given) if given else []

    async def close(self) -> None:
        """Wait until all sent messages are answered."""
        for batcher in list(self._batchers.values()):
            await batcher.close()

    def _checked(self, topic: str, message: Outgoing) -> Outgoing:
        publish_one(topic, message)  # refuse a bad message here: in a shared request it would fail others
        if message.dedup_key is None and self._dedup:
            return msgspec.structs.replace(message, dedup_key=f"http:{uuid4().hex}")
        return message

    async def _commit(self, batch: list[PendingSend]) -> list[int]:
        return await self._push(batch[0].topic, [one.message for one in batch])

    async def _push(self, topic: str, messages: list[Outgoing]) -> list[int]:
        body = [as_wire(one) for one in messages]
        is_repeatable = all(one.dedup_key is not None for one in messages)
        answer = await self._wire.ask("POST", path_of("topics", topic, "messages"), body, is_repeatable=is_repeatable)
        return ids_of(answer)


class SendBudget:
    """Limits the messages that are unanswered. Calls beyond the limits wait, in their order."""

    def __init__(self, most: int, most_bytes: int) -> None:
        if most < 1 or most_bytes < 1:
            raise InvalidOption(
                f"max_pending {most} or max_pending_bytes {most_bytes} is not positive", remedy="use 1 or more"
            )
        self._most = most
        self._most_bytes = most_bytes
        self.count = self.size = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Count one message while the block runs; wait first if it does not fit."""
        if self._waiting or not self._fits(size):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._free(size)
                raise
        else:
            self._take(size)
        try:
            yield
        finally:
            self._free(size)

    def _fits(self, size: int) -> bool:
        """Whether a message fits now. A single one always does, however large it is."""
        return self.count == 0 or (self.count < self._most and self.size + size <= self._most_bytes)

    def _take(self, size: int) -> None:
        self.count += 1
        self.size += size

    def _free(self, size: int) -> None:
        self.count -= 1
        self.size -= size
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self._take(wanted)
                turn.set_result(None)


def as_outgoing(messages: Iterable[Any]) -> list[Outgoing]:
    """Payloads and `Outgoing` messages, all as `Outgoing`."""
    if isinstance(messages, str | bytes | Mapping):
        raise InvalidInput(f"messages is a {type(messages).__name__}", remedy="give a list of messages")
    return [one if isinstance(one, Outgoing) else Outgoing(payload=one) for one in messages]


def as_wire(message: Outgoing) -> WireMessage:
    """A message as the server accepts it: JSON as it is, text as text, anything else in base64."""
    encoded, own = encode(message.payload)
    content_type = message.content_type
    wire = WireMessage(
        key=message.key,
        headers=message.headers,
        priority=message.priority,
        delay=None if message.delay is None else message.delay.total_seconds(),
        deliver_at=message.deliver_at,
        dedup_key=message.dedup_key,
        correlation_id=message.correlation_id,
    )
    if own == JSON and content_type in (None, JSON):
        wire.payload = msgspec.Raw(encoded)
    elif own == TEXT and content_type in (None, TEXT) and _is_plain(encoded):
        wire.text = encoded.decode()
    else:
        wire.base64 = base64.b64encode(encoded).decode()
        wire.content_type = content_type or own
    return wire


def _is_plain(encoded: bytes) -> bool:
    """Whether a text is UTF-8: a str may hold lone surrogates, which are not."""
    try:
        encoded.decode()
    except UnicodeDecodeError:
        return False
    return True


def ids_of(answer: Answer) -> list[int]:
    return [int(one) for one in answer.as_json()["ids"]]
