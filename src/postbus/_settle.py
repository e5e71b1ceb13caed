"""Settling: what handlers have finished goes back to the database, in batches and fenced."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from postbus._log import event
from postbus._loop import Backoff
from postbus._store import Store
from postbus.errors import DatabaseUnavailable
from postbus.message import Message

_PARTIAL_AFTER = 0.05  # seconds that acks wait for the rest of their lease


class HeldLease:
    """A lease in this process: which of its messages are still in hand, and which wait to be acked."""

    __slots__ = ("_acked_since", "acked", "in_hand", "is_lost", "length", "ordered", "prolong_at", "token", "topic")

    def __init__(
        self, topic: str, token: UUID, messages: list[Message], length: timedelta, *, ordered: bool = False
    ) -> None:
        self.topic = topic
        self.ordered = ordered
        self.token = token
        self.in_hand = {message.id for message in messages}
        self.acked: list[int] = []
        self.is_lost = False
        self.length = length
        self.prolong_at = 0.0
        self._acked_since = 0.0
        self.was_prolonged()

    def was_prolonged(self) -> None:
        self.prolong_at = time.monotonic() + self.length.total_seconds() / 3

    def ack(self, message_id: int) -> None:
        self.in_hand.discard(message_id)
        if not self.acked:
            self._acked_since = time.monotonic()
        self.acked.append(message_id)

    @property
    def is_ripe(self) -> bool:
        """Whether its acks should not wait for the rest any longer."""
        return bool(self.acked) and (
            not self.in_hand or time.monotonic() - self._acked_since >= _PARTIAL_AFTER
        )


class Settler:
    """Sends acks in batches. Whole leases go as one; what has to wait for others goes soon by itself."""

    def __init__(self, store: Store, ring: Callable[[str], None]) -> None:
        self._store = store
        self._ring = ring
        self.leases: dict[UUID, HeldLease] = {}
        self._unsettled: dict[UUID, HeldLease] = {}
        self._acked = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def hold(self, lease: HeldLease) -> None:
        self.leases[lease.token] = lease

    def ack(self, lease: HeldLease, message_id: int) -> None:
        lease.ack(message_id)
        self._unsettled[lease.token] = lease
        self._settled.clear()
        if not lease.in_hand:
            self._acked.set()
            self.leases.pop(lease.token, None)

    def forget(self, lease: HeldLease, message_id: int) -> None:
        """The message has been settled otherwise."""
        lease.in_hand.discard(message_id)
        self._tell_next(lease)
        if not lease.in_hand:
            self.leases.pop(lease.token, None)
            self._acked.set()

    def _tell_next(self, lease: HeldLease) -> None:
        """In an ordered topic the next message of the key can be claimed now, and nobody else rings for it."""
        if lease.ordered:
            self._ring(lease.topic)

    @property
    def backlog(self) -> int:
        return sum(len(lease.acked) for lease in self._unsettled.values())

    async def settled(self) -> None:
        """Wait until all acks so far have been sent."""
        self._acked.set()
        await self._settled.wait()

    async def run(self) -> None:
        """Send acks until cancelled."""
        backoff = Backoff()
        while True:
            try:
                await asyncio.wait_for(self._acked.wait(), _PARTIAL_AFTER if self._unsettled else None)
            except TimeoutError:
                pass
            self._acked.clear()
            try:
                await self.tick()
                backoff.reset()
            except DatabaseUnavailable as error:
                event(logging.WARNING, "database.away", loop="settle", error=error.message)
                await asyncio.sleep(backoff.next())
                self._acked.set()

    async def tick(self) -> None:
        """Send what is ripe. What could not be sent stays."""
        ripe = [lease for lease in self._unsettled.values() if lease.is_ripe]
        whole = {lease.token: lease for lease in ripe if not lease.in_hand}
        if whole:
            lost_tokens = await self._store.ack_leases(list(whole))
            for token, lease in whole.items():
                if token in lost_tokens:
                    _tell_lost(lease, lease.acked)
                lease.acked.clear()
                del self._unsettled[token]
                self._tell_next(lease)
        for lease in ripe:
            if lease.token not in whole:
                ids = list(lease.acked)
                lost = await self._store.ack(lease.token, ids)
                if lost:
                    _tell_lost(lease, sorted(lost))
                del lease.acked[: len(ids)]
                if not lease.acked:
                    del self._unsettled[lease.token]
                self._tell_next(lease)
        if not self._unsettled:
            self._settled.set()

    async def retry(
        self, lease: HeldLease, message: Message, delay: timedelta | None, error: str | None, max_attempts: int | None
    ) -> None:
        outcomes = await self._store.retry(
            lease.token, [message.id], delay=delay, error=error, max_attempts=max_attempts
        )
        outcome = outcomes[message.id]
        if outcome == "lost":
            _tell_lost(lease, [message.id])
        else:
            level = logging.ERROR if outcome == "dead" else logging.WARNING
            event(level, f"message.{outcome}", topic=lease.topic, id=message.id, attempt=message.attempt,
                  error=last_line(error))  # fmt: skip
        self.forget(lease, message.id)

    async def dead_letter(self, lease: HeldLease, message: Message, reason: str, error: str | None) -> None:
        if await self._store.dead_letter(lease.token, [message.id], reason, error):
            _tell_lost(lease, [message.id])
        else:
            event(logging.ERROR, "message.dead", topic=lease.topic, id=message.id, attempt=message.attempt,
                  error=reason)  # fmt: skip
        self.forget(lease, message.id)

    async def release(self, lease: HeldLease, message_ids: list[int]) -> None:
        await self._store.release(lease.token, message_ids)
        for message_id in message_ids:
            self.forget(lease, message_id)


def last_line(error: str | None) -> str:
    return (error or "").strip().rpartition("\n")[2]


def _tell_lost(lease: HeldLease, message_ids: list[int]) -> None:
    lease.is_lost = True
    event(logging.WARNING, "lease.lost", topic=lease.topic, messages=message_ids)
