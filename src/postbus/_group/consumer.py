"""Consumes for one subscription of a group: takes lanes, has them read lane set by lane set, and leaves them.

A message goes forward through these modules:

- `lane_reader` reads it, and puts it into `work_queues` (or hands it to `transactional`).
- `work_handler` hands it from there to `handler`, and `handler` to `deferral` if it fails.
- `redelivery` puts a deferred message into `work_queues` again, and `redelivery_handler` handles it.

`cursor_writer` writes how far the lane sets have come.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from postbus._group.catch_up_throttle import Throttle
from postbus._group.context import GroupContext
from postbus._group.deferral import Deferral
from postbus._group.handler import GroupHandler
from postbus._group.lane_reader import LaneReader
from postbus._group.lane_set import TAKEN, LaneSet, LeasedLane
from postbus._group.members import Members
from postbus._group.redelivery import Redelivery
from postbus._group.redelivery_handler import RedeliveryHandler
from postbus._group.transactional import GroupTransactions
from postbus._group.work_handler import WorkHandler
from postbus._group.work_queues import Work, WorkQueues
from postbus._handling.isolation import Suspect
from postbus._runtime.log_events import event
from postbus._runtime.loop import patiently
from postbus._runtime.tasks import FirstFailure, cancel_all

_ABORT_TIMEOUT = 3.0  # seconds, at most, to settle what is done after handlers have been cancelled
_GATHER = 0.005  # seconds in which handlers that end, while lanes are left, are settled together


class GroupConsumer:
    """Works for one subscription of a group in this process."""

    def __init__(self, context: GroupContext) -> None:
        self.context = context
        self.group = context.group
        self.subscription_id = context.subscription_id
        self.history_of = context.history_of
        self.throttle = None if context.catch_up is None else Throttle(context.catch_up)
        self.lane_sets: list[LaneSet] = []
        self._store = context.store
        self._cursor_writer = context.cursor_writer
        self._is_transactional = context.options.transactional
        self._failure = FirstFailure()
        self._members = Members(context.group, context.middleware)
        self._deferral = deferral = Deferral(context)
        handler = GroupHandler(self._members, deferral)
        self._transactions = (
            GroupTransactions(context, self._members, handler, deferral) if self._is_transactional else None
        )
        self._redelivery_handler = RedeliveryHandler(context, self._members, deferral, self._transactions)
        work_handler = WorkHandler(context, handler, self._redelivery_handler)
        self._queues = WorkQueues(context.options.concurrency, work_handler.handle, self._start_task)
        self._redelivery = Redelivery(context, deferral, self._redelivery_handler, self._queues, self.lane_sets)
        self._lane_reader = LaneReader(context, self._queues, deferral, self._transactions, self.throttle)
        self._reading: dict[LaneSet, asyncio.Task[None]] = {}
        self._leaving: dict[asyncio.Task[None], LaneSet] = {}
        self._redelivering: asyncio.Task[None] | None = None
        self._was_cut_short = False

    @property
    def has_suspects(self) -> bool:
        return self._redelivery.has_suspects

    async def claim_suspect(self) -> Suspect | None:
        """Claim the next message that is to be tried alone."""
        return await self._redelivery.claim_suspect()

    async def try_beside(self) -> None:
        """Handle suspects like other messages."""
        await self._redelivery.try_beside()

    # taking lanes

    def share_rate(self) -> None:
        """Give this process the part of a catch-up's rate that fits its part of the lanes."""
        if self.throttle is not None:
            self.throttle.take_share(len(self.tokens) / self.context.lanes)

    @property
    def tokens(self) -> list[UUID]:
        return [token for lane_set in self.lane_sets for token in lane_set.tokens]

    async def take(self, rows: Sequence[Any]) -> None:
        """Start to read lanes that were leased to this process."""
        await self._load_deferral([row["token"] for row in rows])
        apart: defaultdict[object, list[Any]] = defaultdict(list)
        for row in rows:
            # A lane is read on its own if one of its messages may be deadly, or if it moves in handlers' transactions.
            is_alone = row["deaths"] > 0 or self._is_transactional
            apart[row["token"] if is_alone else row["cursor"]].append(row)
        for together in apart.values():
            lanes = [
                LeasedLane(row["lane"], row["token"], row["number"], row["deaths"], row["careful_until"])
                for row in together
            ]
            self._begin(lanes, together[0]["cursor"], together[0]["server"])
        if self._redelivering is None or self._redelivering.done():
            self._redelivering = self._start_task(self._redelivery.run(), "retry")
        self._deferral.may_be_due.set()

    async def _load_deferral(self, tokens: Sequence[UUID]) -> None:
        """Learn which keys the group wants, and which messages of the lanes are deferred already."""
        # Load the keys after the lanes were taken: an administrator who adds a key revokes all lanes first.
        if self.context.is_limited:
            keys = await patiently(lambda: self._store.keys_of(self.subscription_id))
            self._deferral.keys = None if keys is None else frozenset(keys)
        for one in await patiently(lambda: self._store.deferred_of(tokens)):
            self._deferral.messages.take_over(
                one["id"], one["key"], one["lane"], is_done=one["is_done"], ahead=one["ahead"]
            )

    def _begin(self, lanes: Sequence[LeasedLane], cursor: str, server: datetime) -> None:
        lane_set = LaneSet(
            self.subscription_id, lanes, cursor, server, on_progress=self._cursor_writer.add, on_lost=self._was_lost
        )
        self.lane_sets.append(lane_set)
        self._reading[lane_set] = self._start_task(self._lane_reader.read(lane_set), "read")

    def join_lane_sets(self) -> None:
        """Join lane sets that have come to the same position and have nothing in hand."""
        alike: defaultdict[tuple[str, datetime], list[LaneSet]] = defaultdict(list)
        for lane_set in self.lane_sets:
            if lane_set.is_at_rest and not self._is_transactional:
                alike[lane_set.cursor, lane_set.server].append(lane_set)
        for (cursor, server), lane_sets in alike.items():
            if len(lane_sets) > 1:
                for lane_set in lane_sets:
                    lane_set.is_ending = True
                    self.lane_sets.remove(lane_set)
                    self._reading.pop(lane_set).cancel()
                self._begin([lane for lane_set in lane_sets for lane in lane_set.lanes.values()], cursor, server)

    # losing lanes

    def lose_token(self, token: UUID, *, is_expected: bool) -> None:
        """Lose the lane set of a lane that another process has by now."""
        for lane_set in list(self.lane_sets):
            if token in lane_set.tokens:
                lane_set.lose(TAKEN, is_expected=is_expected)

    def lose_all(self, reason: str, *, is_in_doubt: bool = False) -> None:
        """Lose all lane sets. They are taken again, and read from their stored cursors."""
        for lane_set in list(self.lane_sets):
            if is_in_doubt:
                lane_set.lose_in_doubt(reason)
            else:
                lane_set.lose(reason)

    def _was_lost(self, lane_set: LaneSet, reason: str, is_expected: bool) -> None:
        if not is_expected:
            event(logging.WARNING, "lanes.lost", group=self.group.name, topic=self.group.topic, lanes=lane_set.key,
                  reason=reason)  # fmt: skip
        reading = self._forget(lane_set)
        self._leave(lane_set, self._release_lost(lane_set, reading))

    async def _release_lost(self, lane_set: LaneSet, reading: asyncio.Task[None] | None) -> None:
        """Release the lanes that are still ours: the others of the set, or all if we wrote our own step twice."""
        if reading is not None:
            await asyncio.gather(reading, return_exceptions=True)
        await self._finish(lane_set)
        await patiently(lambda: self._store.release_lanes(lane_set.tokens))

    # leaving lanes

    def give_up(self, tokens: Sequence[UUID]) -> None:
        """Leave lanes to other processes, as soon as their handlers have ended. No other handler begins in them."""
        for lane_set in list(self.lane_sets):
            if not lane_set.is_ending and not set(tokens).isdisjoint(lane_set.tokens):
                lane_set.is_ending = True
                lane_set.freed.set()
                self._leave(lane_set, self._give_up(lane_set, self._queues.drop(lane_set)))

    async def _give_up(self, lane_set: LaneSet, dropped: Sequence[Work]) -> None:
        await self._release(dropped)
        await self._end(lane_set)
        self._forget(lane_set)  # before the release: this process may get the lanes again
        if not lane_set.is_lost:
            await patiently(lambda: self._store.release_lanes(lane_set.tokens))

    @property
    def has_left(self) -> bool:
        """Whether no lane is held or being released."""
        return not self.lane_sets and not self._leaving

    async def stop(self) -> None:
        """Finish what is being handled in all lanes."""
        lane_sets = list(self.lane_sets)
        for lane_set in lane_sets:
            lane_set.is_ending = True
        await asyncio.gather(*(self._end(lane_set) for lane_set in lane_sets))
        for lane_set in lane_sets:
            self._forget(lane_set)
        await asyncio.gather(*self._leaving)
        await self.abort()

    async def abort(self) -> None:
        """Cancel the handlers, which was no attempt. Settle what is done, if that does not take long."""
        lane_sets = {*self.lane_sets, *self._leaving.values()}
        for lane_set in lane_sets:
            lane_set.is_ending = True
        running = sum(lane_set.running for lane_set in lane_sets)
        waiting = self._queues.close()
        redelivering = [self._redelivering] if self._redelivering else []
        await cancel_all([*self._reading.values(), *self._queues.tasks, *self._leaving, *redelivering])
        self._was_cut_short |= running > len(self._redelivery_handler.returned)
        with suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_TIMEOUT):
                await self._redelivery_handler.settle_aborted()
                await self._release(waiting)
                for lane_set in lane_sets:
                    await self._settle(lane_set)
        # A lane set may be lost only now, as its progress is written. The caller leaves the group, and so its lanes.
        await cancel_all(list(self._leaving))
        self._members.close()
        self._failure.close()

    @property
    def was_cut_short(self) -> bool:
        """Whether a handler was cancelled."""
        in_transaction = self._transactions is not None and self._transactions.was_cut_short
        return self._was_cut_short or in_transaction or bool(self._redelivery_handler.cancelled)

    async def failure(self) -> None:
        """Wait until a task of this consumer fails, and raise its error. Only a bug of ours makes a task fail."""
        await self._failure.wait()

    async def _end(self, lane_set: LaneSet) -> None:
        """Stop reading a lane set, and finish what is being handled."""
        lane_set.is_ending = True
        lane_set.freed.set()
        reading = self._reading.pop(lane_set, None)
        if reading is not None:
            if lane_set.is_waiting:
                reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await self._finish(lane_set)
        await self._redelivery.wait_for_claim()

    async def _finish(self, lane_set: LaneSet) -> None:
        """Drop works that have not begun, and wait for those that have. Each that ends is settled at once."""
        await self._release(self._queues.drop(lane_set))
        while True:
            is_running = lane_set.running > 0
            await self._settle(lane_set)
            if not is_running:
                return
            if lane_set.running:
                await lane_set.until_freed()
                await asyncio.sleep(_GATHER)

    async def _release(self, works: Sequence[Work]) -> None:
        for work in works:
            if work.deferred is not None:
                await self._redelivery_handler.release(*work.deferred)

    async def _settle(self, lane_set: LaneSet) -> None:
        """Write the cursor of lanes that are being left, and note the messages that are done ahead of it."""
        async with lane_set.noting_done:  # another task that waits here releases the lanes afterwards
            await self._cursor_writer.settle(lane_set)
            done = lane_set.take_done()
            if done and not lane_set.is_in_doubt:
                try:
                    await patiently(lambda: self._store.note_done(lane_set.tokens, done, lane_set.server))
                except BaseException:  # they may have been noted, or not
                    lane_set.not_noted += done
                    raise

    def _forget(self, lane_set: LaneSet) -> asyncio.Task[None] | None:
        if lane_set in self.lane_sets:
            self.lane_sets.remove(lane_set)
            self._deferral.messages.remove_lanes(lane_set.key)
        reading = self._reading.pop(lane_set, None)
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()
        return reading

    def _leave(self, lane_set: LaneSet, work: Coroutine[Any, Any, None]) -> None:
        task = self._start_task(work, "leave")
        self._leaving[task] = lane_set
        task.add_done_callback(lambda task: self._leaving.pop(task, None))

    def _start_task(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"postbus-{what}-{self.group.name}")
        self._failure.watch(task)
        return task
