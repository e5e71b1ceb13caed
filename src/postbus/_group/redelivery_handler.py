"""Handles deferred messages that are delivered again, and settles them."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from postbus._db.statements.log import Due
from postbus._group.context import GroupContext
from postbus._group.deferral import SUSPICION, Deferral
from postbus._group.lane_set import LeasedLane
from postbus._group.members import Members
from postbus._group.transactional import GroupTransactions
from postbus._handling.handling import ACK, NOT_DECODABLE, Handling, not_decodable
from postbus._runtime.loop import patiently
from postbus.errors import DatabaseUnavailable
from postbus.group import Member
from postbus.message import DeadLetter, Message, Outcome, Release, Retry


class RedeliveryHandler:
    """Calls handlers with deferred messages that were claimed, and extends the leases of these messages."""

    def __init__(
        self, context: GroupContext, members: Members, deferral: Deferral, transactions: GroupTransactions | None
    ) -> None:
        self._subscription_id = context.subscription_id
        self._store = context.store
        self._lease = context.lease.total_seconds()
        self._max_attempts = context.max_attempts
        self._members = members
        self._deferral = deferral
        self._transactions = transactions
        self._extend_at = 0.0
        self._in_hand: set[int] = set()
        self.cancelled: list[tuple[LeasedLane, Due]] = []
        """Messages whose handlers were cancelled, which was no attempt."""
        self.returned: list[tuple[LeasedLane, Message, Outcome, Handling | None]] = []
        """Messages whose handlers returned, and whose settlements were cancelled."""

    def take(self, due: Due) -> None:
        """Note that a message was claimed, and will be handled."""
        if not self._in_hand:
            self._extend_at = time.monotonic() + self._lease / 3
        self._in_hand.add(due.message.id)
        self._deferral.messages.add(due.message.id, due.message.key, due.lane)

    def has(self, message_id: int) -> bool:
        """Whether a message is in hand."""
        return message_id in self._in_hand

    async def extend_leases(self, lanes: list[LeasedLane]) -> None:
        """Extend the leases of the messages in hand. An attempt is one call, however long it takes."""
        if self._in_hand and time.monotonic() >= self._extend_at:
            await self._store.extend_deferred([lane.token for lane in lanes], list(self._in_hand))
            self._extend_at = time.monotonic() + self._lease / 3

    async def release(self, lane: LeasedLane, due: Due) -> None:
        """Give a message back without an attempt. The lane's holder claims it again."""
        self._in_hand.discard(due.message.id)
        with suppress(DatabaseUnavailable):  # then it is due after its lease
            await self._store.settle_deferred(self._subscription_id, lane.lane, lane.token, [due.message.id], "release")

    async def handle(self, lane: LeasedLane, due: Due) -> None:
        """Handle a message and settle it, unless it has to wait or its lane is lost."""
        message = due.message
        outcome: Outcome | None = None
        handling: Handling | None = None
        try:
            # Before the stored cursor has passed it, no transaction may settle it: see LaneSet.is_deferring.
            while self._transactions and lane.lane_set.is_deferring and not lane.lane_set.is_lost:
                await lane.lane_set.until_freed()
            if lane.lane_set.is_lost:
                return
            if lane.lane_set.is_ending or self._deferral.messages.is_behind(message):
                await self.release(lane, due)
                return
            outcome, handling = await self._outcome(lane, due)
            if outcome is not None:
                await self._settle(lane, message, outcome, handling)
        except asyncio.CancelledError:
            if outcome is None:
                self.cancelled.append((lane, due))
            else:
                self.returned.append((lane, message, outcome, handling))
            raise
        finally:
            self._in_hand.discard(message.id)

    async def settle_aborted(self) -> None:
        """Settle messages whose handlers had returned when they were cancelled, and release the other ones."""
        for lane, message, outcome, handling in self.returned:
            await self._settle(lane, message, outcome, handling)
        for lane, due in self.cancelled:
            await self.release(lane, due)

    async def _outcome(self, lane: LeasedLane, due: Due) -> tuple[Outcome | None, Handling | None]:
        """Call the member that wants a message. The outcome is None if the message is settled by then."""
        message = due.message
        chosen = self._members.choose(message)
        if chosen is None:
            self._members.group.filtered += 1
            return ACK, None
        if not isinstance(chosen, Member):
            return chosen, None
        handling = self._members.handling_of(chosen)
        if self._is_deadly(due, handling):
            chosen.counts.failed += 1
            return DeadLetter(reason=f"{SUSPICION}: gave up after {message.attempt - 1} attempts"), handling
        try:
            payload = handling.call.payload(message)
        except NOT_DECODABLE as error:
            chosen.counts.failed += 1
            return not_decodable(error), handling
        with chosen.counts.running(1):
            if self._transactions is not None:
                outcome = await self._transactions.handle_deferred(lane, message, payload, handling)
            else:
                outcome = (await handling.outcomes([message], [payload], None))[0]
        if outcome is None or outcome is ACK:
            chosen.counts.processed += 1
        elif not isinstance(outcome, Release):
            chosen.counts.failed += 1
        return outcome, handling

    def _is_deadly(self, due: Due, handling: Handling) -> bool:
        """Whether too many attempts have begun and never ended: each time the process died."""
        return due.message.attempt > min(handling.max_attempts or self._max_attempts, self._max_attempts)

    async def _settle(self, lane: LeasedLane, message: Message, outcome: Outcome, handling: Handling | None) -> None:
        kind, delay, error, reason = "done", None, None, None
        match outcome:
            case Retry():
                kind, error = "retry", outcome.error
                delay = handling.retry_delay(outcome, message.attempt) if handling else None
            case DeadLetter():
                kind, error, reason = "dead", outcome.error, outcome.reason
            case Release():
                kind = "release"
        results = await patiently(
            lambda: self._store.settle_deferred(
                self._subscription_id,
                lane.lane,
                lane.token,
                [message.id],
                kind,
                delay=delay,
                error=error,
                reason=reason,
                max_attempts=handling.max_attempts if handling else None,
            )
        )
        result = results[0]
        if result in ("done", "dead", "lost") and not lane.lane_set.is_lost:
            self._deferral.messages.remove(message.id)
        if result != "released":  # this message is due after the delay, or the next one of its key is due now
            self._deferral.will_be_due(delay if result == "retried" else None)
        self._deferral.log_result(result, message, error or reason)
