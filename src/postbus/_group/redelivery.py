"""Trying again: messages that were put aside come back when they are due, the first of each key first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from postbus._db.statements.log import Due
from postbus._db.store import Store
from postbus._group.deferral import POLL, Deferral
from postbus._group.lane_set import LaneSet, LeasedLane
from postbus._group.members import Members
from postbus._group.transactional import GroupTransactions
from postbus._group.work_queues import Work, WorkQueues
from postbus._handling.handling import ACK, NOT_DECODABLE, Handling, not_decodable
from postbus._handling.isolation import Suspect
from postbus._runtime.loop import Backoff, patiently, pause
from postbus.errors import DatabaseUnavailable
from postbus.group import Member
from postbus.message import DeadLetter, Message, Outcome, Release, Retry

_IDLE_POLL = 5.0
SUSPICION = "processes that handled messages at this place died"


class Redelivery:
    """Claims what is due in the lanes that this process holds, and settles it."""

    def __init__(
        self,
        subscription_id: int,
        members: Members,
        aside: Deferral,
        queues: WorkQueues,
        lane_sets: Sequence[LaneSet],
        *,
        store: Store,
        transactions: GroupTransactions | None,
        most: int,
        max_attempts: int,
        lease: float,
    ) -> None:
        self._subscription_id = subscription_id
        self._members = members
        self._aside = aside
        self._waiting = aside.waiting
        self._queues = queues
        self._lane_sets = lane_sets
        self._store = store
        self._transactions = transactions
        self._most = most
        self._max_attempts = max_attempts
        self._lease = lease
        self._prolong_at = 0.0
        self._in_hand: set[int] = set()
        self.cancelled: list[tuple[LeasedLane, Due]] = []
        """What was being handled when this process was told not to wait for it: that was no attempt."""
        self.returned: list[tuple[LeasedLane, Message, Outcome, Handling | None]] = []
        """Whose handlers have returned, and which were cancelled while the database was told so."""
        self.has_suspects = False
        """Some messages are to be tried alone."""
        self._claiming = asyncio.Lock()

    async def run(self) -> None:
        """Look for messages that are due to be tried again, until cancelled."""
        backoff = Backoff()
        while True:
            self._aside.is_due.clear()
            try:
                await self._prolong()
                if not self._waiting:
                    await self._look_for_others()
                if self._waiting:
                    async with self._claiming:
                        await self._claim_due()
                backoff.reset()
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.next())
            await pause(POLL if self._waiting else _IDLE_POLL, self._aside.is_due)

    async def settled(self) -> None:
        """Wait for a claim that is under way: what it brings for lane sets that are ending is given back."""
        async with self._claiming:
            pass

    async def _look_for_others(self) -> None:
        """Messages that somebody else has put there, by a redrive. Writes nothing, since it is done all the time."""
        held = {
            lane.lane: lane
            for lane_set in self._lane_sets
            if not lane_set.is_ending
            for lane in lane_set.lanes.values()
        }
        if held:
            tokens = [lane.token for lane in held.values()]
            for one in await self._store.retrying_of(tokens, with_settled=False):
                if not held[one["lane"]].lane_set.is_ending:  # nor lost since we asked
                    self._waiting.add(one["id"], one["key"], one["lane"])

    async def _prolong(self) -> None:
        """Prolong the leases of what is in hand: an attempt is one call, however long that takes."""
        if self._in_hand and time.monotonic() >= self._prolong_at:
            tokens = [lane.token for lane_set in self._lane_sets for lane in lane_set.lanes.values()]
            await self._store.prolong_retrying(tokens, list(self._in_hand))
            self._prolong_at = time.monotonic() + self._lease / 3

    def _held(self) -> dict[int, LeasedLane]:
        return {
            lane.lane: lane
            for lane_set in self._lane_sets
            if not lane_set.is_ending
            for lane in lane_set.lanes.values()
        }

    async def _claim_due(self, *, is_alone: bool | None = False) -> None:
        held = self._held()
        room = self._most - len(self._queues)
        if not held or room <= 0:
            return
        tokens = [one.token for one in held.values()]
        due = await self._store.claim_retrying(self._members.group.topic, tokens, room, is_alone=is_alone)
        if due and not due[-1].is_taken:
            self.has_suspects = True
            due.pop()
        for one in sorted(due, key=lambda one: one.message.id):
            lane = held[one.lane]
            if lane.lane_set.is_ending:
                await self.release(lane, one)
            elif one.message.id not in self._in_hand:  # else its lease ended while the database was away
                self._take(one)
                self._queues.put(Work(None, (), retry=(lane, one)), self._queues.queue_of(one.message.key))
        if len(due) == room:
            self._aside.is_due.set()

    def _take(self, due: Due) -> None:
        if not self._in_hand:
            self._prolong_at = time.monotonic() + self._lease / 3
        self._in_hand.add(due.message.id)
        self._waiting.add(due.message.id, due.message.key, due.lane)

    async def try_beside(self) -> None:
        """Something else runs: suspects wait in line with others."""
        async with self._claiming:
            self.has_suspects = False
            await self._claim_due(is_alone=None)

    async def claim_suspect(self) -> Suspect | None:
        """The next message that is to be tried alone, to be handled at once while nothing else runs."""
        async with self._claiming:
            held = self._held()
            tokens = [one.token for one in held.values()]
            due = await self._store.claim_retrying(self._members.group.topic, tokens, 1, is_alone=True)
            self.has_suspects = bool(due)
            if not due:
                return None
            lane = held[due[0].lane]
            if lane.lane_set.is_ending:
                await self.release(lane, due[0])
                return None
            self._take(due[0])
            lane.lane_set.running += 1
        return Suspect(due[0].outlasted, partial(self._try, lane, due[0]), partial(self._share, lane, due[0].message))

    async def _try(self, lane: LeasedLane, due: Due) -> None:
        try:
            await self.handle(lane, due)
        finally:
            self._queues.let_go()
            lane.lane_set.running -= 1
            lane.lane_set.freed.set()

    async def _share(self, lane: LeasedLane, message: Message) -> None:
        await self._store.not_alone_any_more(lane.token, message.id)
        if message.id in self._in_hand:  # it occupies one of as many places as there may be calls
            self._queues.hold(message.key)

    async def release(self, lane: LeasedLane, due: Due) -> None:
        """Let a message be tried by whoever has the lane; it has not been tried now."""
        self._in_hand.discard(due.message.id)
        with suppress(DatabaseUnavailable):  # then it is due after the lease
            await self._store.settle_retrying(self._subscription_id, lane.lane, lane.token, [due.message.id], "release")

    async def handle(self, lane: LeasedLane, due: Due) -> None:
        message = due.message
        outcome: Outcome | None = None
        handling: Handling | None = None
        try:
            while self._transactions and lane.lane_set.is_putting_off and not lane.lane_set.is_lost:
                await lane.lane_set.until_freed()
            if lane.lane_set.is_lost:
                return
            if lane.lane_set.is_ending or self._waiting.is_behind(message):
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

    async def settle_returned(self) -> None:
        """Tell the database once more of messages whose handlers have returned."""
        for lane, message, outcome, handling in self.returned:
            await self._settle(lane, message, outcome, handling)

    async def _outcome(self, lane: LeasedLane, due: Due) -> tuple[Outcome | None, Handling | None]:
        """What becomes of a message that is tried again; None if it is settled."""
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
        chosen.counts.in_flight += 1
        began = time.monotonic()
        try:
            if self._transactions is not None:
                outcome = await self._transactions.try_again(lane, message, payload, handling)
            else:
                outcome = (await handling.outcomes([message], [payload], None))[0]
        finally:
            chosen.counts.in_flight -= 1
            chosen.counts.handling_seconds += time.monotonic() - began
        if outcome is None or outcome is ACK:
            chosen.counts.processed += 1
        elif not isinstance(outcome, Release):
            chosen.counts.failed += 1
        return outcome, handling

    def _is_deadly(self, due: Due, handling: Handling) -> bool:
        """Whether attempts have begun and never ended: each time the process died."""
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
        told = await patiently(
            lambda: self._store.settle_retrying(
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
        if told[0] in ("done", "dead", "lost") and not lane.lane_set.is_lost:
            self._waiting.remove(message.id)
        if told[0] != "released":  # this one is due after a while, or the next one of its key is due now
            self._aside.comes_back(delay if told[0] == "retried" else None)
        self._aside.tell(told[0], message, error or reason)
