"""Calls the handler of a queue's subscription, and settles its messages by the outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Sequence
from typing import Any

from postbus._db.store import Store
from postbus._handling.handling import ACK, NOT_DECODABLE, Handling, not_decodable
from postbus._handling.settler import ClaimedLease, Settler
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff
from postbus.errors import CommitUnknown, DatabaseUnavailable, LeaseLost
from postbus.message import DeadLetter, Message, Outcome, Release, Retry
from postbus.middleware import Middleware
from postbus.subscription import Subscription

Delivery = tuple[ClaimedLease, Message]
_ABORT_TIMEOUT = 1.0  # seconds, at most, to settle messages whose handlers returned while other handlers were cancelled


class QueueHandler:
    """Calls a handler with messages, and settles them. Acks go to the settler's next batch, the rest is settled now."""

    def __init__(
        self, subscription: Subscription, store: Store, settler: Settler, middleware: Sequence[Middleware]
    ) -> None:
        self.handling = Handling(subscription, middleware)
        self.cancelled: list[Delivery] = []
        """Messages whose handlers were cancelled."""
        self.halts = 0
        """How often the subscription was halted. A message whose handler is not called by then is released."""
        self._subscription = subscription
        self._store = store
        self._settler = settler
        self._returned: list[tuple[ClaimedLease, Message, Outcome]] = []
        """Messages whose handlers returned, and whose settlements were cancelled."""

    async def handle(self, deliveries: list[Delivery]) -> None:
        """Handle messages in one call, and settle them. Messages whose leases are lost are left out."""
        deliveries = self._still_leased(deliveries)
        returned: list[tuple[ClaimedLease, Message, Outcome]] | None = None
        try:
            outcomes = await self._outcomes_of(deliveries)
            returned = [(lease, message, outcome) for (lease, message), outcome in outcomes if outcome is not None]
            for lease, message, _ in (one for one in returned if one[2] is ACK):
                self._settler.ack(lease, message.id)
            returned = [one for one in returned if one[2] is not ACK]
            while returned:
                await self.settle(*returned[0])
                del returned[0]
        except asyncio.CancelledError:
            if returned is None:
                self.cancelled += deliveries
            else:
                self._returned += returned
            raise

    def note_cancelled(self, lease: ClaimedLease, message: Message, outcome: Outcome | None) -> None:
        """Remember a message whose handling was cancelled, with its outcome if the handler had returned."""
        if outcome is None:
            self.cancelled.append((lease, message))
        else:
            self._returned.append((lease, message, outcome))

    async def settle_returned(self) -> None:
        """Settle messages whose handlers had returned when they were cancelled, if that does not take long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_TIMEOUT):
                for one in self._returned:
                    await self.settle(*one)

    async def settle(self, lease: ClaimedLease, message: Message, outcome: Outcome) -> None:
        """Settle a message that is not acked. While the database is away, this waits for it."""
        backoff = Backoff()
        while True:
            try:
                match outcome:
                    case Retry(error=error):
                        wait = self.handling.retry_delay(outcome, message.attempt)
                        await self._settler.retry(lease, message, wait, error, self.handling.max_attempts)
                    case DeadLetter(reason=reason, error=error):
                        await self._settler.dead_letter(lease, message, reason, error)
                    case Release():
                        await self._settler.release(lease, [message.id])
                return
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.next())

    def lose(self, deliveries: Sequence[Delivery]) -> None:
        """Give up messages whose state is unknown after a bug: their leases expire. Only done messages are acked."""
        for lease, message in deliveries:
            lease.is_lost = True
            if message.id in lease.in_hand:
                self._settler.forget(lease, message.id)

    def close(self) -> None:
        self.handling.close()

    def _still_leased(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Leave out messages whose leases are lost: another consumer has them."""
        for lease, message in deliveries:
            if lease.is_lost:
                self._settler.forget(lease, message.id)
        return [delivery for delivery in deliveries if not delivery[0].is_lost]

    async def _outcomes_of(self, deliveries: list[Delivery]) -> list[tuple[Delivery, Outcome | None]]:
        """Call the handler. Returns an outcome for each message that decodes, or None if it is settled already."""
        halts = self.halts
        decoded, payloads = await self._decode(deliveries)
        if not decoded:
            return []
        outcomes: Sequence[Outcome | None]
        if self.halts > halts:  # while other messages of the batch were made dead letters
            outcomes = [Release()] * len(decoded)
        elif self._subscription.transactional:
            outcomes = await self._handle_transactionally(decoded, payloads)
        else:
            outcomes = await self._call(decoded, payloads, None)
        return list(zip(decoded, outcomes, strict=True))

    async def _decode(self, deliveries: list[Delivery]) -> tuple[list[Delivery], list[Any]]:
        """Decode payloads for the handler. Messages that do not decode become dead letters."""
        decoded, payloads = [], []
        for delivery in deliveries:
            try:
                payloads.append(self.handling.call.payload(delivery[1]))
                decoded.append(delivery)
            except NOT_DECODABLE as error:
                await self.settle(*delivery, not_decodable(error))
        return decoded, payloads

    async def _call(self, deliveries: list[Delivery], payloads: list[Any], conn: Any) -> Sequence[Outcome]:
        return await self.handling.outcomes([message for _, message in deliveries], payloads, conn)

    async def _handle_transactionally(
        self, deliveries: list[Delivery], payloads: list[Any]
    ) -> Sequence[Outcome | None]:
        """Run the handler in the transaction that acks its messages.

        The outcome is None if the message is settled by then, or its lease is lost.
        """
        outcomes: Sequence[Outcome] = []
        mark, halts = secrets.token_hex(8), self.halts
        try:
            async with self._store.transaction(mark) as conn:
                if self.halts > halts:  # while we waited for the connection
                    return [Release()] * len(deliveries)
                outcomes = await self._call(deliveries, payloads, conn)
                if any(outcome is not ACK for outcome in outcomes):
                    raise _HandlerFailed
                await self._ack_within(conn, mark, deliveries)
        except _HandlerFailed:
            # The rollback has undone the handler's work for the whole batch, so no message of it counts as done.
            return [Retry() if outcome is ACK else outcome for outcome in outcomes]
        except (LeaseLost, CommitUnknown) as error:
            event(logging.WARNING, "message.undone", topic=self._subscription.topic,
                  messages=[message.id for _, message in deliveries], error=error.message)  # fmt: skip
        except DatabaseUnavailable as error:
            # If the handler was not even called, this was no attempt.
            outcome = Retry(error=self.handling.described(error)) if outcomes else Release()
            return [outcome] * len(deliveries)
        except Exception as error:
            return [Retry(error=self.handling.described(error))] * len(deliveries)
        for lease, message in deliveries:
            self._settler.forget(lease, message.id)
        return [None] * len(deliveries)

    async def _ack_within(self, conn: Any, mark: str, deliveries: list[Delivery]) -> None:
        """Ack in the handler's transaction: lease by lease, in the order in which all others lock them."""
        by_lease: dict[ClaimedLease, list[int]] = {}
        for lease, message in deliveries:
            by_lease.setdefault(lease, []).append(message.id)
        for lease in sorted(by_lease, key=lambda lease: lease.token):
            if lost := await self._store.ack_within(lease.token, by_lease[lease], conn, mark):
                raise LeaseLost(f"the lease of messages {sorted(lost)} is lost")


class _HandlerFailed(Exception):
    """Rolls back the transaction of a handler that did not ack everything."""
