"""Settles messages of queues: acks go to the database in batches, and each settlement is fenced by a token."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from postbus._db.store import Store
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff
from postbus._runtime.visible_text import last_line
from postbus.errors import DatabaseUnavailable
from postbus.message import Message

_ABORT_TIMEOUT = 2.0  # seconds, at most, for the last settlements of a process


class ClaimedLease:
    """A lease of this process: its messages that are still in hand, and those that wait to be acked."""

    __slots__ = (
        "acked",
        "in_hand",
        "is_lost",
        "length",
        "on_settled",
        "ordered",
        "prolong_at",
        "token",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        token: UUID,
        messages: list[Message],
        length: timedelta,
        *,
        ordered: bool = False,
        remaining: timedelta | None = None,
        on_settled: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.topic = topic
        self.token = token
        self.in_hand = {message.id for message in messages}
        self.acked: list[int] = []
        self.is_lost = False
        self.length = length
        self.ordered = ordered
        self.on_settled = on_settled
        self.prolong_at = 0.0
        self.was_prolonged(remaining)

    @property
    def is_needed(self) -> bool:
        """Whether it is to be extended."""
        return not self.is_lost

    def was_prolonged(self, remaining: timedelta | None = None) -> None:
        """Note that the lease ends after its length from now, or after `remaining`."""
        self.prolong_at = time.monotonic() + (remaining or self.length).total_seconds() / 3


class Settler:
    """Sends acks: in one statement all that gathered during the last one. A lease is acked as a whole if it can be."""

    def __init__(self, store: Store, notify: Callable[[str], None]) -> None:
        self._store = store
        self._notify = notify
        self.leases: dict[UUID, ClaimedLease] = {}
        self._unsettled: dict[UUID, ClaimedLease] = {}
        self._acked = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def add(self, lease: ClaimedLease) -> None:
        """Have the lease extended while messages of it are in hand."""
        self.leases[lease.token] = lease

    def ack(self, lease: ClaimedLease, message_id: int) -> None:
        """Note that a message is done. The database is told soon."""
        lease.acked.append(message_id)
        self._unsettled[lease.token] = lease
        self._settled.clear()
        self._acked.set()
        self._drop(lease, message_id)

    def forget(self, lease: ClaimedLease, message_id: int) -> None:
        """Note that a message has been settled in another way than by an ack."""
        self._drop(lease, message_id)
        self._was_settled(lease, 1)

    def _drop(self, lease: ClaimedLease, message_id: int) -> None:
        lease.in_hand.discard(message_id)
        if not lease.in_hand:
            self.leases.pop(lease.token, None)

    def _was_settled(self, lease: ClaimedLease, count: int) -> None:
        lease.on_settled(count)
        if lease.ordered:  # the next message of the key can be claimed now, and nobody else wakes a consumer for it
            self._notify(lease.topic)

    async def settled(self) -> None:
        """Wait until all acks so far have been sent."""
        await self._settled.wait()

    async def finish(self, unhandled: Sequence[tuple[ClaimedLease, int]]) -> None:
        """Send the last acks, and release messages that were not handled. If time runs out, their leases expire."""
        with suppress(DatabaseUnavailable, TimeoutError):
            async with asyncio.timeout(_ABORT_TIMEOUT):
                if self._unsettled:
                    await self.tick()
                by_lease: defaultdict[ClaimedLease, list[int]] = defaultdict(list)
                for lease, message_id in unhandled:
                    if message_id in lease.in_hand and not lease.is_lost:
                        by_lease[lease].append(message_id)
                for lease, message_ids in by_lease.items():
                    await self.release(lease, message_ids)

    async def run(self) -> None:
        """Send acks until cancelled."""
        backoff = Backoff()
        while True:
            await self._acked.wait()
            # Clear before sending, not after: an ack that comes while we send must wake us again.
            self._acked.clear()
            try:
                await self.tick()
                backoff.reset()
            except DatabaseUnavailable as error:
                event(logging.WARNING, "database.away", loop="settle", error=error.message)
                await asyncio.sleep(backoff.next())
                self._acked.set()

    async def tick(self) -> None:
        """Send all acks. Those that could not be sent stay for the next tick."""
        # A lease that is lost may have had messages that were dropped unhandled: ack only those that were handled.
        whole = [lease for lease in self._unsettled.values() if not lease.in_hand and not lease.is_lost]
        parts = [lease for lease in self._unsettled.values() if lease.in_hand or lease.is_lost]
        if whole:
            lost_tokens = await self._store.ack_leases([lease.token for lease in whole])
            for lease in whole:
                self._were_acked(lease, len(lease.acked), lease.acked if lease.token in lost_tokens else ())
        for lease in parts:
            ids = list(lease.acked)
            self._were_acked(lease, len(ids), sorted(await self._store.ack(lease.token, ids)))
        if not self._unsettled:
            self._settled.set()

    def _were_acked(self, lease: ClaimedLease, count: int, lost: Sequence[int]) -> None:
        if lost:
            _log_lost(lease, lost)
        del lease.acked[:count]
        if not lease.acked:
            del self._unsettled[lease.token]
        self._was_settled(lease, count)

    async def retry(
        self,
        lease: ClaimedLease,
        message: Message,
        delay: timedelta | None,
        error: str | None,
        max_attempts: int | None,
    ) -> None:
        outcomes = await self._store.retry(
            lease.token, [message.id], delay=delay, error=error, max_attempts=max_attempts
        )
        outcome = outcomes[message.id]
        if outcome == "lost":
            _log_lost(lease, [message.id])
        else:
            level = logging.ERROR if outcome == "dead" else logging.WARNING
            event(level, f"message.{outcome}", topic=lease.topic, id=message.id, attempt=message.attempt,
                  error=last_line(error))  # fmt: skip
        self.forget(lease, message.id)

    async def dead_letter(self, lease: ClaimedLease, message: Message, reason: str, error: str | None) -> None:
        if await self._store.dead_letter(lease.token, [message.id], reason, error):
            _log_lost(lease, [message.id])
        else:
            event(logging.ERROR, "message.dead", topic=lease.topic, id=message.id, attempt=message.attempt,
                  error=reason)  # fmt: skip
        self.forget(lease, message.id)

    async def release(self, lease: ClaimedLease, message_ids: list[int]) -> None:
        await self._store.release(lease.token, message_ids)
        for message_id in message_ids:
            self.forget(lease, message_id)


def _log_lost(lease: ClaimedLease, message_ids: Sequence[int]) -> None:
    event(logging.WARNING, "lease.lost", topic=lease.topic, messages=list(message_ids))
