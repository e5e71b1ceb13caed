"""Delivery: lane sets are read, and what is read is handed out, carefully where it may have killed a process."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from postbus._content.segment import Part, ReadResult
from postbus._db.store import Store
from postbus._group.catch_up_throttle import Throttle
from postbus._group.cursor_writer import CursorWriter
from postbus._group.deferral import Deferral
from postbus._group.lane_set import LaneSet, LeasedLane, Lose, WindowEntry
from postbus._group.log_reader import LogReader
from postbus._group.redelivery import SUSPICION
from postbus._group.transactional import GroupTransactions
from postbus._group.work_queues import Work, WorkQueues, works_of
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff, patiently
from postbus._wakeup.waiters import TimedWaker
from postbus.errors import DatabaseUnavailable, RestoredElsewhere, WrongSemantics
from postbus.subscription import Subscription

_SUSPECTED = 3  # deaths after which the first messages of a lane are taken out of the way, to be tried alone


class LaneReader:
    """Reads for one group, never much further than its handlers have come."""

    def __init__(
        self,
        topic: str,
        options: Subscription,
        queues: WorkQueues,
        aside: Deferral,
        *,
        store: Store,
        reader: LogReader,
        cursor_writer: CursorWriter,
        transactions: GroupTransactions | None,
        new_waker: Callable[[], TimedWaker],
        prefetch: int,
        throttle: Throttle | None,
        lose: Lose,
    ) -> None:
        self._topic = topic
        self._options = options
        self._queues = queues
        self._aside = aside
        self._store = store
        self._reader = reader
        self._cursor_writer = cursor_writer
        self._transactions = transactions
        self._new_waker = new_waker
        self._prefetch = prefetch
        self._throttle = throttle
        self._lose = lose

    @property
    def _most_in_hand(self) -> int:
        """How much may be unsettled when the next read begins.

        Of history only a rest: what was read is handled, then more is read, so that it needs one processor at a time.
        """
        return self._prefetch if self._throttle is None else max(self._throttle.batch // 10, 1)

    async def read(self, lane_set: LaneSet) -> None:
        """Read on as long as the lane set is ours."""
        if self._throttle is not None:  # history: nobody else comes by the same places
            await self._read(lane_set)
            return
        with self._reader.reading(self._topic, lane_set.key):
            await self._read(lane_set)

    async def _read(self, lane_set: LaneSet) -> None:
        waker, backoff, wait, was_rung = self._new_waker(), Backoff(), 0.01, False
        while not lane_set.is_ending:
            lane_set.is_waiting = True
            while lane_set.in_hand >= self._most_in_hand:
                await lane_set.until_freed()
            if self._throttle is not None:
                await self._throttle.ready()
            # Clear before reading, not after: a message that commits while we read must wake us again.
            waker.clear()
            piece = await self._next(lane_set, backoff)
            if piece is None or lane_set.is_ending:  # then nothing more begins
                continue
            lane_set.is_waiting = False
            lane_set.read_on(piece)
            if self._throttle is not None:
                self._throttle.was_read(piece.count, piece.took)
            if piece.segments:
                wait = 0.01
                await self._deliver(lane_set, piece)
                if not piece.more:  # else the server reads on while handlers run
                    await asyncio.sleep(0)  # handlers first: what we do next can wait
            elif piece.during is not None:  # much of others was passed by, which nobody needs to do again
                lane_set.was_passed(piece.next_cursor)
            if piece.more or waker.woken_at > lane_set.seen_at:  # for what rang since it was read, perhaps by others
                continue
            if not piece.segments:
                wait = min(wait * 2, self._options.poll)
                if was_rung:
                    self._aside.look()
            if not lane_set.is_ending:
                lane_set.is_waiting = True
                was_rung = await waker.woken_within(wait)

    async def _next(self, lane_set: LaneSet, backoff: Backoff) -> ReadResult | None:
        """What comes next; None if the lane set is lost, or after a while if the database is away."""
        try:
            piece = await self._reader.read(
                self._topic,
                lane_set.key,
                lane_set.cursor,
                lane_set.taken_at,
                lane_set.server,
                is_between=lane_set.is_between or self._throttle is not None,  # history has its own target
                max_count=self._throttle.batch if self._throttle is not None else self._prefetch // 2,
                max_bytes=self._options.max_bytes,
            )
        except DatabaseUnavailable as error:
            away = backoff.next()
            event(logging.WARNING, "database.away", loop=f"read {self._topic}", retry_in=f"{away:.2f}s",
                  error=error.message)  # fmt: skip
            if self._store.is_in_doubt(error):  # our cursor is not to be trusted any more: the stored one is
                lane_set.is_in_doubt = True
                self._lose(lane_set, error.message)
            else:
                await asyncio.sleep(away)
            return None
        except RestoredElsewhere:
            # A cursor from before a crash may be ahead of the transaction ids that the server hands out after it.
            if await patiently(self._store.server) == lane_set.server:
                raise
            self._lose_to_crash(lane_set)
            return None
        except WrongSemantics:  # the topic was deleted, and its groups with it
            self._lose(lane_set, "the topic was deleted")
            return None
        backoff.reset()
        if piece.server != lane_set.server:
            self._lose_to_crash(lane_set)
            return None
        return piece

    def _lose_to_crash(self, lane_set: LaneSet) -> None:
        lane_set.is_in_doubt = True
        self._lose(lane_set, "the server was started anew")

    async def _deliver(self, lane_set: LaneSet, piece: ReadResult) -> None:
        lane = next(iter(lane_set.lanes.values()))
        if lane.deaths > 0 and lane.careful_until is not None and piece.segments[0].position > lane.careful_until:
            await self._calm(lane)  # all of this came after the last death
        if lane.deaths > 0:
            await self._deliver_carefully(lane_set, lane, piece)
        elif self._transactions or self._options.batch is None:
            await self._hand_out(lane, works_of(lane_set, piece, self._options.batch or 1))
        elif self._options.concurrency == 1 or all(segment.keys is None for segment in piece.segments):
            for work in works_of(lane_set, piece, self._options.batch):
                self._queues.put(work, self._queues.queue_of(None))
        else:
            self._hand_out_by_key(lane_set, piece, self._options.batch)

    async def _hand_out(self, lane: LeasedLane, works: Sequence[Work]) -> None:
        for work in works:
            if self._transactions is None:
                segment, index, _ = work.parts[0]
                self._queues.put(work, self._queues.queue_of(segment.key(index)))
            elif work.lane_set.is_ending:
                return
            else:
                await self._transactions.handle(lane, work)

    def _hand_out_by_key(self, lane_set: LaneSet, piece: ReadResult, size: int) -> None:
        """Batches in which messages of one key stay in one queue; the piece is settled as a whole."""
        entry = WindowEntry(lane_set, 0, -1, piece.next_cursor, count=piece.count, gathers=True)
        lane_set.add(entry)
        by_queue: defaultdict[int, list[Part]] = defaultdict(list)
        for segment in piece.segments:
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

    async def _deliver_carefully(self, lane_set: LaneSet, lane: LeasedLane, piece: ReadResult) -> None:
        """A few messages at a time, each settled before the next: one of them may have killed those before us."""
        size = self._options.batch or 1
        limit = max(1, self._prefetch >> (3 * min(lane.deaths, _SUSPECTED - 1)))
        if lane.deaths >= _SUSPECTED:
            works = works_of(lane_set, piece, 1)
            await self._suspect(lane_set, lane, works[:limit])
            works = works[limit:]
        else:
            works = works_of(lane_set, piece, min(limit, size))
        # Batches go to queues by their first message only, so two of them may have the same key.
        at_once = max(1, limit // size) if size == 1 or self._options.concurrency == 1 else 1
        for start in range(0, len(works), at_once):
            some = works[start : start + at_once]
            await self._hand_out(lane, some)
            while not lane_set.is_ending and any(work.entry.pending for work in some if work.entry):
                await lane_set.until_freed()
            await self._cursor_writer.settle(lane_set)
            if lane_set.is_ending:
                return
            if lane.careful_until is not None and some[-1].parts[-1][0].position > lane.careful_until:
                await self._calm(lane)
        if not piece.more:
            await self._calm(lane)

    async def _suspect(self, lane_set: LaneSet, lane: LeasedLane, works: Sequence[Work]) -> None:
        """Take messages out of the way of which one may be deadly: each is tried alone."""
        for work in works:
            segment, index, _ = work.parts[0]
            if not await self._aside.stands_aside(lane_set, segment, index):
                await self._aside.put_off(lane_set, segment, index, "suspect", error=SUSPICION)
            if lane_set.is_lost:
                return
            assert work.entry is not None
            work.entry.done()
        await self._cursor_writer.settle(lane_set)
        lane_set.has_put_off()
        if not lane_set.is_ending:
            await self._calm(lane)

    async def _calm(self, lane: LeasedLane) -> None:
        if lane.deaths:
            lane.deaths, lane.careful_until = 0, None
            await patiently(lambda: self._store.calm_lane(lane.token))
