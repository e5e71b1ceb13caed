"""Works, and the queues in which they wait: all messages of one key in the same one, so that they follow each other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from postbus._content.segment import Part, ReadResult
from postbus._db.statements.log import Due
from postbus._group.lane_set import LaneSet, LeasedLane, WindowEntry
from postbus._handling.isolation import company
from postbus.group import stable_hash

Start = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Starts a task whose failure ends the worker."""


class Work:
    """Messages for one call of a handler."""

    __slots__ = ("entry", "parts", "retry")

    def __init__(self, entry: WindowEntry | None, parts: Sequence[Part], retry: tuple[LeasedLane, Due] | None = None):
        self.entry = entry
        self.parts = parts
        self.retry = retry
        """A message that is tried again, with its lane, instead of parts of the log."""

    @property
    def lane_set(self) -> LaneSet:
        if self.retry is not None:
            return self.retry[0].lane_set
        assert self.entry is not None
        return self.entry.lane_set


def works_of(lane_set: LaneSet, piece: ReadResult, size: int) -> list[Work]:
    """A piece as works of up to `size` messages, each an entry of the lane set's window."""
    assert piece.during is not None
    works, parts, count = [], [], 0
    for segment in piece.segments:
        start, end = segment.first_index, len(segment)
        while start < end:
            stop = min(end, start + size - count)
            parts.append((segment, start, stop))
            count += stop - start
            start = stop
            if count == size:
                entry = WindowEntry(lane_set, segment.position, stop - 1, piece.during, parts, count=count)
                lane_set.add(entry)
                works.append(Work(entry, parts))
                parts, count = [], 0
    if parts:
        entry = WindowEntry(lane_set, parts[-1][0].position, parts[-1][2] - 1, piece.during, parts, count=count)
        lane_set.add(entry)
        works.append(Work(entry, parts))
    last = works[-1].entry
    assert last is not None
    last.cursor, last.index = piece.next_cursor, -1  # after the last one the whole piece is done
    return works


class WorkQueues:
    """As many queues as calls of handlers may be under way. Each has a task once something was in it."""

    def __init__(self, count: int, do: Callable[[Work], Awaitable[None]], start: Start) -> None:
        self._queues: list[deque[Work]] = [deque() for _ in range(count)]
        self._runners: dict[int, asyncio.Task[None]] = {}
        self._idle: dict[int, asyncio.Future[None]] = {}
        """What runners wait for that have nothing to do."""
        self._held: dict[int, asyncio.Event] = {}
        """Those whose place is taken by a call that has begun outside of them, until it ends."""
        self._next = 0
        self._is_closed = False
        self._company = company()
        self._do = do
        self._start = start

    def __len__(self) -> int:
        """How many works wait."""
        return sum(len(queue) for queue in self._queues)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._runners.values())

    def queue_of(self, key: str | None) -> int:
        if key is None:
            self._next = (self._next + 1) % len(self._queues)
            return self._next
        return stable_hash(key) % len(self._queues)

    def put(self, work: Work, queue: int) -> None:
        self._queues[queue].append(work)
        if queue not in self._runners:
            self._runners[queue] = self._start(self._run(queue), "handler")
        elif (idle := self._idle.pop(queue, None)) is not None and not idle.done():
            idle.set_result(None)

    def hold(self, key: str | None) -> None:
        """A call for this key runs already, beside the queues: nothing more begins in its queue."""
        self._held[self.queue_of(key)] = asyncio.Event()

    def let_go(self) -> None:
        for held in self._held.values():
            held.set()
        self._held.clear()

    def drop(self, lane_set: LaneSet) -> list[Work]:
        """Take out what a lane set has here. Returns the retries among it."""
        dropped: list[Work] = []
        for queue in self._queues:
            if any(work.lane_set is lane_set for work in queue):
                kept = [work for work in queue if work.lane_set is not lane_set]
                dropped += [work for work in queue if work.lane_set is lane_set and work.retry is not None]
                queue.clear()
                queue.extend(kept)
        return dropped

    def close(self) -> list[Work]:
        """Let nothing more begin, not even by a handler that survives its cancellation. Returns what waited."""
        self._is_closed = True
        left = [work for queue in self._queues for work in queue]
        for queue in self._queues:
            queue.clear()
        return left

    async def _run(self, queue: int) -> None:
        works, company = self._queues[queue], self._company
        try:
            while True:
                while works:
                    if company.is_closed:
                        await company.opened()
                        continue
                    if queue in self._held:
                        await self._held[queue].wait()
                        continue
                    work = works.popleft()
                    lane_set = work.lane_set
                    lane_set.running += 1
                    company.running += 1
                    try:
                        await self._do(work)
                    finally:
                        lane_set.running -= 1
                        company.left()
                        if lane_set.is_ending:
                            lane_set.freed.set()
                if self._is_closed:
                    return
                self._idle[queue] = asyncio.get_running_loop().create_future()
                await self._idle[queue]
        finally:
            self._runners.pop(queue, None)
