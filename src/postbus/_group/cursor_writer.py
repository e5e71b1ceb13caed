"""Writes how far lane sets have come: the cursors of all groups of the process in one statement."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from postbus._db.statements.log import CursorStep
from postbus._db.store import Store
from postbus._group.lane_set import TAKEN, LaneSet
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff, patiently
from postbus.errors import DatabaseUnavailable

_GATHER = 0.005  # seconds in which progress gathers before a write …
_APART = 0.05  # … and, at least, between two writes: each adds a row per lane


class CursorWriter:
    """Writes the cursors of all groups of the process."""

    def __init__(self, store: Store, on_lost: Callable[[LaneSet, str], None]) -> None:
        self._store = store
        self._on_lost = on_lost
        """Called with a lane set whose cursor may not be moved, and the reason."""
        self._progressed: dict[LaneSet, None] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, lane_set: LaneSet) -> None:
        """Write the progress of a lane set soon."""
        self._progressed[lane_set] = None
        self._idle.clear()
        self._wake.set()

    async def settled(self) -> None:
        """Wait until all progress so far has been written."""
        await self._idle.wait()

    async def settle(self, lane_set: LaneSet) -> None:
        """Write all progress of a lane set now. While the database is away, this waits for it."""
        while not lane_set.is_settled and not lane_set.is_lost:
            await patiently(lambda: self.advance([lane_set]))
            if lane_set.is_advancing:
                await asyncio.sleep(0.002)

    async def run(self) -> None:
        """Write progress until cancelled."""
        backoff = Backoff()
        written_at = 0.0
        while True:
            await self._wake.wait()
            await asyncio.sleep(max(_GATHER, written_at + _APART - time.monotonic()))
            written_at = time.monotonic()
            # Clear before writing, not after: progress that is made meanwhile must wake us again.
            self._wake.clear()
            try:
                await self.tick()
                backoff.reset()
            except DatabaseUnavailable as error:
                event(logging.WARNING, "database.away", loop="advance", error=error.message)
                await asyncio.sleep(backoff.next())
                self._wake.set()

    async def tick(self) -> None:
        """Write all progress."""
        lane_sets, self._progressed = [one for one in self._progressed if not one.is_lost], {}
        for lane_set in lane_sets:
            if lane_set.is_advancing:  # another task writes its progress just now, but perhaps not all of it
                self.add(lane_set)
        await self.advance(lane_sets)
        if not self._progressed:
            self._idle.set()

    async def advance(self, lane_sets: list[LaneSet]) -> None:
        """Write the progress of some lane sets. What cannot be written stays for the next write."""
        taken = [(lane_set, lane_set.take_steps()) for lane_set in lane_sets if not lane_set.is_advancing]
        taken = [(lane_set, steps) for lane_set, steps in taken if steps]
        if not taken:
            return
        for lane_set, _ in taken:
            lane_set.is_advancing = True
        try:
            all_steps = [(lane_set, step) for lane_set, steps in taken for step in steps]
            lost = await self._store.advance([step for _, step in all_steps])
        except BaseException as error:
            self._put_back(taken, error)
            raise
        finally:
            for lane_set, _ in taken:
                lane_set.is_advancing = False
        for number, (lane_set, step) in enumerate(all_steps):
            if number in lost:
                self._on_lost(lane_set, TAKEN)
            else:
                lane_set.lanes[step.lane].number += 1
        for lane_set, _ in taken:
            if not lane_set.is_lost:
                lane_set.were_written()
            lane_set.freed.set()

    def _put_back(self, taken: list[tuple[LaneSet, list[CursorStep]]], error: BaseException) -> None:
        """Put back steps that may have been written, or not."""
        for lane_set, steps in taken:
            if isinstance(error, DatabaseUnavailable) and self._store.is_in_doubt(error):
                lane_set.is_in_doubt = True
                self._on_lost(lane_set, error.message)  # its cursor cannot be trusted any more: the stored one can
            else:
                lane_set.put_back(steps)
                self.add(lane_set)
