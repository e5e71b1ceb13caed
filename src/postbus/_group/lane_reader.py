"""Reads lane sets and hands out the messages: carefully if one of them may have ended a process."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

from postbus._content.segment import Part, ReadResult
from postbus._group.catch_up_throttle import Throttle
from postbus._group.context import GroupContext
from postbus._group.deferral import SUSPICION, Deferral
from postbus._group.lane_set import LaneSet, LeasedLane, WindowEntry
from postbus._group.transactional import GroupTransactions
from postbus._group.work_queues import Work, WorkQueues, works_of
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff, patiently
from postbus.errors import DatabaseUnavailable, RestoredElsewhere, WrongSemantics

_RESTARTED = "the server was restarted"
_SUSPECTED = 3  # deaths of processes after which the first messages of a lane are deferred as suspects


class LaneReader:
    """Reads lane sets of one group, never far ahead of its handlers."""

    def __init__(
        self,
        context: GroupContext,
        queues: WorkQueues,
        deferral: Deferral,
        transactions: GroupTransactions | None,
        throttle: Throttle | None,
    ) -> None:
        self._topic = context.topic
        self._options = context.options
        self._store = context.store
        self._reader = context.reader
        self._cursor_writer = context.cursor_writer
        self._new_waker = context.new_waker
        self._prefetch = context.prefetch
        self._queues = queues
        self._deferral = deferral
        self._transactions = transactions
        self._throttle = throttle

    @property
    def _most_in_hand(self) -> int:
        """How many messages may be in hand when the next read begins.

        A catch-up reads when its handlers have nearly finished, so that it never uses more than one processor.
        """
        return self._prefetch if self._throttle is None else max(self._throttle.batch // 10, 1)

    async def read(self, lane_set: LaneSet) -> None:
        """Read a lane set and hand out its messages until it ends."""
        if self._throttle is not None:  # a catch-up shares no reads with others
            await self._read(lane_set)
            return
        with self._reader.reading(self._topic, lane_set.key):
            await self._read(lane_set)

    async def _read(self, lane_set: LaneSet) -> None:
        waker, backoff, wait, was_woken = self._new_waker(), Backoff(), 0.01, False
        while not lane_set.is_ending:
            lane_set.is_waiting = True
            while lane_set.in_hand >= self._most_in_hand:
                await lane_set.until_freed()
            if self._throttle is not None:
                await self._throttle.ready()
            # Clear before reading, not after: a message that commits while we read must wake us again.
            waker.clear()
            result = await self._next_result(lane_set, backoff)
            if result is None or lane_set.is_ending:  # then nothing more begins
                continue
            lane_set.is_waiting = False
            lane_set.read_on(result)
            if self._throttle is not None:
                self._throttle.was_read(result.count, result.took)
            if result.segments:
                wait = 0.01
                await self._deliver(lane_set, result)
                if not result.more:  # otherwise the server reads on while handlers run
                    await asyncio.sleep(0)  # let handlers begin first
            elif result.during is not None:  # the read skipped much of other lanes: store that, so nobody repeats it
                lane_set.was_passed(result.next_cursor)
            if result.more or waker.woken_at > lane_set.seen_at:  # the result may be older than a wake-up
                continue
            if not result.segments:
                wait = min(wait * 2, self._options.poll)
                if was_woken:
                    self._deferral.was_woken()
            if not lane_set.is_ending:
                lane_set.is_waiting = True
                was_woken = await waker.woken_within(wait)

    async def _next_result(self, lane_set: LaneSet, backoff: Backoff) -> ReadResult | None:
        """Read what comes next. Returns None if the lane set is lost, or after a pause if the database is away."""
        try:
            result = await self._reader.read(
                self._topic,
                lane_set.key,
                lane_set.cursor,
                lane_set.taken_at,
                lane_set.server,
                may_have_target=lane_set.may_have_target or self._throttle is not None,  # history has its own target
                max_count=self._throttle.batch if self._throttle is not None else self._prefetch // 2,
                max_bytes=self._options.max_bytes,
            )
        except DatabaseUnavailable as error:
            away = backoff.next()
            event(logging.WARNING, "database.away", loop=f"read {self._topic}", retry_in=f"{away:.2f}s",
                  error=error.message)  # fmt: skip
            if self._store.is_in_doubt(error):
                lane_set.lose_in_doubt(error.message)
            else:
                await asyncio.sleep(away)
            return None
        except RestoredElsewhere:
            # A cursor from before a crash may be ahead of the transaction ids that the server hands out after it.
            if await patiently(self._store.server) == lane_set.server:
                raise
            lane_set.lose_in_doubt(_RESTARTED)
            return None
        except WrongSemantics:  # the topic was deleted, and its groups with it
            lane_set.lose("the topic was deleted")
            return None
        backoff.reset()
        if result.server != lane_set.server:
            lane_set.lose_in_doubt(_RESTARTED)
            return None
        return result

    async def _deliver(self, lane_set: LaneSet, result: ReadResult) -> None:
        lane = next(iter(lane_set.lanes.values()))  # a lane with deaths is read alone
        if lane.deaths > 0 and lane.careful_until is not None and result.segments[0].sequence > lane.careful_until:
            await self._calm(lane)  # all of these were published after the last death
        if lane.deaths > 0:
            await self._deliver_carefully(lane_set, lane, result)
        elif self._transactions or self._options.batch is None:
            await self._hand_out(lane, works_of(lane_set, result, self._options.batch or 1))
        elif self._options.concurrency == 1 or all(segment.keys is None for segment in result.segments):
            for work in works_of(lane_set, result, self._options.batch):
                self._queues.put(work, self._queues.queue_of(None))
        else:
            self._hand_out_by_key(lane_set, result, self._options.batch)

    async def _hand_out(self, lane: LeasedLane, works: Sequence[Work]) -> None:
        for work in works:
            if self._transactions is None:
                segment, index, _ = work.parts[0]
                self._queues.put(work, self._queues.queue_of(segment.key(index)))
            elif work.lane_set.is_ending:
                return
            else:
                await self._transactions.handle(lane, work)

    def _hand_out_by_key(self, lane_set: LaneSet, result: ReadResult, size: int) -> None:
        """Make batches in which all messages of a key go to the same queue. The result is settled as a whole."""
        entry = WindowEntry(lane_set, None, None, result.next_cursor, count=result.count, gathers=True)
        lane_set.add(entry)
        by_queue: defaultdict[int, list[Part]] = defaultdict(list)
        for segment in result.segments:
            for index in range(segment.first_index, len(segment)):
                by_queue[self._queues.queue_of(segment.key(index))].append((segment, index, index + 1))
        works = [
            (queue, Work(entry, parts[start : start + size]))
            for queue, parts in by_queue.items()
            for start in range(0, len(parts), size)
        ]
        entry.pending = len(works)
        for queue, work in works:
            self._queues.put(work, queue)

    async def _deliver_carefully(self, lane_set: LaneSet, lane: LeasedLane, result: ReadResult) -> None:
        """Hand out a few messages at a time, and settle them before the next: one may have ended earlier processes."""
        size = self._options.batch or 1
        limit = max(1, self._prefetch >> (3 * min(lane.deaths, _SUSPECTED - 1)))
        if lane.deaths >= _SUSPECTED:
            works = works_of(lane_set, result, 1)
            await self._defer_suspects(lane_set, lane, works[:limit])
            works = works[limit:]
        else:
            works = works_of(lane_set, result, min(limit, size))
        # A batch goes to the queue of its first message only, so two batches may have the same key.
        at_once = max(1, limit // size) if size == 1 or self._options.concurrency == 1 else 1
        for start in range(0, len(works), at_once):
            step = works[start : start + at_once]
            await self._hand_out(lane, step)
            while not lane_set.is_ending and any(work.entry.pending for work in step if work.entry):
                await lane_set.until_freed()
            await self._cursor_writer.settle(lane_set)
            if lane_set.is_ending:
                return
            if lane.careful_until is not None and step[-1].parts[-1][0].sequence > lane.careful_until:
                await self._calm(lane)
        if not result.more:
            await self._calm(lane)

    async def _defer_suspects(self, lane_set: LaneSet, lane: LeasedLane, works: Sequence[Work]) -> None:
        """Defer messages of which one may be deadly, so that each is tried alone."""
        for work in works:
            segment, index, _ = work.parts[0]
            if not await self._deferral.skip_or_park(lane_set, segment, index):
                await self._deferral.defer(lane_set, segment, index, "suspect", error=SUSPICION)
            if lane_set.is_lost:
                return
            assert work.entry is not None
            work.entry.done()
        await self._cursor_writer.settle(lane_set)
        lane_set.deferral_was_written()
        if not lane_set.is_ending:
            await self._calm(lane)

    async def _calm(self, lane: LeasedLane) -> None:
        """Forget the deaths of a lane, because the messages that were in hand then are settled."""
        if lane.deaths:
            lane.deaths, lane.careful_until = 0, None
            await patiently(lambda: self._store.clear_caution(lane.token))
