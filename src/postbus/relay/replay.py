"""Replaying: retained messages are sent once more, beside the relay, whose position does not change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from postbus._db.store import Store
from postbus.message import Ack, DeadLetter, Message, Outcome, Retry
from postbus.relay.relay import Relay
from postbus.retry import RetryPolicy

_PAGE = 1000


@dataclass(frozen=True)
class ReplayRequest:
    """The messages to replay: those that match all given conditions."""

    since: datetime | None = None
    until: datetime | None = None
    event_type: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None

    def filters(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass
class Replayed:
    """The outcome of a replay, in counts."""

    found: int = 0
    sent: int = 0
    refused: list[tuple[int, str]] = field(default_factory=list)
    """The ids of messages that the sink refused, with the reasons."""


class Replay:
    """Sends messages of a topic again, in their order per key."""

    def __init__(self, store: Store, topic: str, relay: Relay, *, batch: int, retry: RetryPolicy) -> None:
        self._store = store
        self._topic = topic
        self._relay = relay
        self._batch = batch
        self._retry = retry

    async def run(self, wanted: ReplayRequest, report: Callable[[Replayed], None] = lambda replayed: None) -> Replayed:
        """Send the requested messages. A refused one is tried as often as by a relay, and then reported as refused."""
        replayed = Replayed()
        position = (0, -1)
        while page := await self._store.retained(self._topic, wanted.filters(), position, _PAGE):
            position = page[-1][0]
            messages = [message for _, message in page]
            replayed.found += len(messages)
            for start in range(0, len(messages), self._batch):
                await self._send(messages[start : start + self._batch], replayed)
                report(replayed)
        return replayed

    async def count(self, wanted: ReplayRequest) -> int:
        """The number of these messages."""
        count, position = 0, (0, -1)
        while page := await self._store.retained(self._topic, wanted.filters(), position, _PAGE):
            count, position = count + len(page), page[-1][0]
        return count

    async def _send(self, messages: Sequence[Message], replayed: Replayed) -> None:
        attempts: Counter[int] = Counter()
        left = list(messages)
        while left:
            outcomes = await self._relay.handle(left)
            again: list[Message] = []
            for message, outcome in zip(left, outcomes, strict=True):
                attempts[message.id] += isinstance(outcome, Retry)
                if isinstance(outcome, Ack):
                    replayed.sent += 1
                elif (why := self._given_up(outcome, attempts[message.id])) is not None:
                    replayed.refused.append((message.id, why))
                else:
                    again.append(message)
            left = again
            if left:
                await asyncio.sleep(self._retry.delay(max(attempts.values())).total_seconds())

    def _given_up(self, outcome: Outcome, attempts: int) -> str | None:
        if isinstance(outcome, DeadLetter):
            return outcome.reason
        if isinstance(outcome, Retry) and attempts >= self._retry.max_attempts:
            return f"{outcome.error or 'it was refused'}, {attempts} times"
        return None
