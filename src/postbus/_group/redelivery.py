"""Redelivery: deferred messages that are due are claimed, the first of each key first, and join the work queues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from postbus._db.statements.log import Due
from postbus._group.context import GroupContext
from postbus._group.deferral import POLL, Deferral
from postbus._group.lane_set import LaneSet, LeasedLane
from postbus._group.redelivery_handler import RedeliveryHandler
from postbus._group.work_queues import Work, WorkQueues
from postbus._handling.isolation import Suspect
from postbus._runtime.loop import Backoff, pause
from postbus.errors import DatabaseUnavailable
from postbus.message import Message

_IDLE_POLL = 5.0


class Redelivery:
    """Claims deferred messages in the lanes that this process holds."""

    def __init__(
        self,
        context: GroupContext,
        deferral: Deferral,
        handler: RedeliveryHandler,
        queues: WorkQueues,
        lane_sets: Sequence[LaneSet],
    ) -> None:
        self._topic = context.topic
        self._store = context.store
        self._most_waiting = context.prefetch
        self._deferral = deferral
        self._handler = handler
        self._queues = queues
        self._lane_sets = lane_sets
        self.has_suspects = False
        """Whether messages wait to be tried alone."""
        self._claiming = asyncio.Lock()

    async def run(self) -> None:
        """Claim messages when they are due, until cancelled."""
        backoff = Backoff()
        messages = self._deferral.messages
        while True:
            # Clear before claiming, not after: a message that is due meanwhile must wake us again.
            self._deferral.may_be_due.clear()
            try:
                await self._handler.extend_leases(self._lanes(with_ending=True))
                if not messages:
                    await self._find_redriven()
                if messages:
                    async with self._claiming:
                        await self._claim_due()
                backoff.reset()
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.next())
            await pause(POLL if messages else _IDLE_POLL, self._deferral.may_be_due)

    async def wait_for_claim(self) -> None:
        """Wait for a claim that is under way. It releases what it brings for lane sets that are ending."""
        async with self._claiming:
            pass

    async def _find_redriven(self) -> None:
        """Find messages that a redrive has deferred. This runs all the time, so it writes nothing."""
        lanes = {lane.lane: lane for lane in self._lanes()}
        if lanes:
            tokens = [lane.token for lane in lanes.values()]
            for one in await self._store.deferred_of(tokens, with_settled=False):
                if not lanes[one["lane"]].lane_set.is_ending:  # and not lost during the query either
                    self._deferral.messages.add(one["id"], one["key"], one["lane"])

    def _lanes(self, *, with_ending: bool = False) -> list[LeasedLane]:
        return [
            lane
            for lane_set in self._lane_sets
            if with_ending or not lane_set.is_ending
            for lane in lane_set.lanes.values()
        ]

    async def _claim_due(self, *, is_alone: bool | None = False) -> None:
        lanes = {lane.lane: lane for lane in self._lanes()}
        slots = self._most_waiting - len(self._queues)
        if not lanes or slots <= 0:
            return
        tokens = [one.token for one in lanes.values()]
        due = await self._store.claim_deferred(self._topic, tokens, slots, is_alone=is_alone)
        if due and not due[-1].is_taken:
            self.has_suspects = True
            due.pop()
        for one in sorted(due, key=lambda one: one.message.id):
            lane = lanes[one.lane]
            if lane.lane_set.is_ending:
                await self._handler.release(lane, one)
            elif not self._handler.has(one.message.id):  # otherwise its lease expired while the database was away
                self._handler.take(one)
                self._queues.put(Work(None, (), deferred=(lane, one)), self._queues.queue_of(one.message.key))
        if len(due) == slots:
            self._deferral.may_be_due.set()

    async def try_beside(self) -> None:
        """Put suspects into the queues like other messages, because other handlers run."""
        async with self._claiming:
            self.has_suspects = False
            await self._claim_due(is_alone=None)

    async def claim_suspect(self) -> Suspect | None:
        """Claim the next suspect. The caller handles it at once, while no other handler runs."""
        async with self._claiming:
            lanes = {lane.lane: lane for lane in self._lanes()}
            tokens = [one.token for one in lanes.values()]
            due = await self._store.claim_deferred(self._topic, tokens, 1, is_alone=True)
            self.has_suspects = bool(due)
            if not due:
                return None
            lane = lanes[due[0].lane]
            if lane.lane_set.is_ending:
                await self._handler.release(lane, due[0])
                return None
            self._handler.take(due[0])
            lane.lane_set.running += 1
        return Suspect(
            due[0].outlasted,
            partial(self._try_alone, lane, due[0]),
            partial(self._end_isolation, lane, due[0].message),
        )

    async def _try_alone(self, lane: LeasedLane, due: Due) -> None:
        try:
            await self._handler.handle(lane, due)
        finally:
            self._queues.reopen()
            lane.lane_set.running -= 1
            lane.lane_set.freed.set()

    async def _end_isolation(self, lane: LeasedLane, message: Message) -> None:
        await self._store.not_alone_any_more(lane.token, message.id)
        if self._handler.has(message.id):  # its call counts as one of those that may run at a time
            self._queues.block(message.key)
