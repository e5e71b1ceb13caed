"""Work queues: messages of one key wait in the same queue, so that they are handled one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from postbus._content.segment import Part, ReadResult
from postbus._db.statements.log import Due
from postbus._group.lane_set import LaneSet, LeasedLane, WindowEntry
from postbus._handling.isolation import running_calls
from postbus.group import stable_hash

StartTask = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Starts a task, and has its failure reported."""


class Work:
    """Messages for one call of a handler: parts of the log, or one deferred message."""

    __slots__ = ("deferred", "entry", "parts")

    def __init__(
        self, entry: WindowEntry | None, parts: Sequence[Part], deferred: tuple[LeasedLane, Due] | None = None
    ) -> None:
        self.entry = entry
        self.parts = parts
        self.deferred = deferred
        """A deferred message with its lane, instead of parts of the log."""

    @property
    def lane_set(self) -> LaneSet:
        if self.deferred is not None:
            return self.deferred[0].lane_set
        assert self.entry is not None
        return self.entry.lane_set


def works_of(lane_set: LaneSet, result: ReadResult, size: int) -> list[Work]:
    """Divide a read result into works of up to `size` messages. Each gets an entry in the lane set's window."""
    assert result.during is not None
    works, parts, count = [], [], 0
    for segment in result.segments:
        start, end = segment.first_index, len(segment)
        while start < end:
            stop = min(end, start + size - count)
            parts.append((segment, start, stop))
            count += stop - start
            start = stop
            if count == size:
                entry = WindowEntry(lane_set, segment.sequence, stop - 1, result.during, parts, count=count)
                lane_set.add(entry)
                works.append(Work(entry, parts))
                parts, count = [], 0
    if parts:
        entry = WindowEntry(lane_set, parts[-1][0].sequence, parts[-1][2] - 1, result.during, parts, count=count)
        lane_set.add(entry)
        works.append(Work(entry, parts))
    last = works[-1].entry
    assert last is not None
    # After the last entry, the whole result is done.
    last.cursor, last.sequence, last.index = result.next_cursor, None, None
    return works


class WorkQueues:
    """As many queues as handler calls may run at a time. A queue gets a task when its first work comes."""

    def __init__(self, count: int, handle: Callable[[Work], Awaitable[None]], start_task: StartTask) -> None:
        self._queues: list[deque[Work]] = [deque() for _ in range(count)]
        self._runners: dict[int, asyncio.Task[None]] = {}
        self._idle: dict[int, asyncio.Future[None]] = {}
        """The runners of empty queues wait for these."""
        self._blocked: dict[int, asyncio.Event] = {}
        """Queues in which nothing begins until a call has ended that runs outside of the queues."""
        self._next = 0
        self._is_closed = False
        self._calls = running_calls()
        self._handle = handle
        self._start_task = start_task

    def __len__(self) -> int:
        """How many works wait."""
        return sum(len(queue) for queue in self._queues)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._runners.values())

    def queue_of(self, key: str | None) -> int:
        """The queue for a key. Messages without a key go to the queues in turn."""
        if key is None:
            self._next = (self._next + 1) % len(self._queues)
            return self._next
        return stable_hash(key) % len(self._queues)

    def put(self, work: Work, queue: int) -> None:
        self._queues[queue].append(work)
        if queue not in self._runners:
            self._runners[queue] = self._start_task(self._run(queue), "handler")
        elif (idle := self._idle.pop(queue, None)) is not None and not idle.done():
            idle.set_result(None)

    def block(self, key: str | None) -> None:
        """Let nothing begin in a key's queue until `reopen`, because a call for the key runs outside of the queues."""
        self._blocked[self.queue_of(key)] = asyncio.Event()

    def reopen(self) -> None:
        for reopened in self._blocked.values():
            reopened.set()
        self._blocked.clear()

    def drop(self, lane_set: LaneSet) -> list[Work]:
        """Drop the works of a lane set. Returns those of deferred messages: the caller releases them."""
        dropped: list[Work] = []
        for queue in self._queues:
            if any(work.lane_set is lane_set for work in queue):
                kept = [work for work in queue if work.lane_set is not lane_set]
                dropped += [work for work in queue if work.lane_set is lane_set and work.deferred is not None]
                queue.clear()
                queue.extend(kept)
        return dropped

    def close(self) -> list[Work]:
        """Let nothing more begin, even if a handler survives its cancellation. Returns the works that waited."""
        self._is_closed = True
        waiting = [work for queue in self._queues for work in queue]
        for queue in self._queues:
            queue.clear()
        return waiting

    async def _run(self, queue: int) -> None:
        works, calls = self._queues[queue], self._calls
        try:
            while True:
                while works:
                    if calls.is_closed:
                        await calls.reopened()
                        continue
                    if queue in self._blocked:
                        await self._blocked[queue].wait()
                        continue
                    work = works.popleft()
                    lane_set = work.lane_set
                    lane_set.running += 1
                    calls.running += 1
                    try:
                        await self._handle(work)
                    finally:
                        lane_set.running -= 1
                        calls.ended()
                        if lane_set.is_ending:
                            lane_set.freed.set()
                if self._is_closed:
                    return
                self._idle[queue] = asyncio.get_running_loop().create_future()
                await self._idle[queue]
        finally:
            self._runners.pop(queue, None)
