"""Writes how far lane sets have come: the cursors of all groups of the process in one statement."""

from __future__ import annotations

import asyncio
import logging
import time

from postbus._db.statements.log import CursorStep
from postbus._db.store import Store
from postbus._group.lane_set import TAKEN, LaneSet, Lose
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff, patiently
from postbus.errors import DatabaseUnavailable

_GATHER = 0.005  # seconds in which further progress is gathered before cursors are moved …
_APART = 0.05  # … and between two moves: each is a row per lane


class CursorWriter:
    """Moves cursors: those of all groups of the process in one statement."""

    def __init__(self, store: Store, lose: Lose) -> None:
        self._store = store
        self._lose = lose
        self._progressed: dict[LaneSet, None] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, lane_set: LaneSet) -> None:
        self._progressed[lane_set] = None
        self._idle.clear()
        self._wake.set()

    async def settled(self) -> None:
        """Wait until all progress so far has been told."""
        await self._idle.wait()

    async def settle(self, lane_set: LaneSet) -> None:
        """Tell all progress of a lane set now. While the database is away, this waits for it."""
        while not lane_set.is_settled and not lane_set.is_lost:
            await patiently(lambda: self.advance([lane_set]))
            if lane_set.is_advancing:
                await asyncio.sleep(0.002)

    async def run(self) -> None:
        """Move cursors until cancelled."""
        backoff = Backoff()
        moved_at = 0.0
        while True:
            await self._wake.wait()
            await asyncio.sleep(max(_GATHER, moved_at + _APART - time.monotonic()))
            moved_at = time.monotonic()
            # Clear before telling, not after: progress that is made meanwhile must wake us again.
            self._wake.clear()
            try:
                await self.tick()
                backoff.reset()
            except DatabaseUnavailable as error:
                event(logging.WARNING, "database.away", loop="advance", error=error.message)
                await asyncio.sleep(backoff.next())
                self._wake.set()

    async def tick(self) -> None:
        """Tell all progress."""
        lane_sets, self._progressed = [one for one in self._progressed if not one.is_lost], {}
        for lane_set in lane_sets:
            if lane_set.is_advancing:  # somebody else tells of it just now, but perhaps not of all
                self.add(lane_set)
        await self.advance(lane_sets)
        if not self._progressed:
            self._idle.set()

    async def advance(self, lane_sets: list[LaneSet]) -> None:
        """Tell the progress of some lane sets. What could not be told stays."""
        asked = [(lane_set, lane_set.steps()) for lane_set in lane_sets if not lane_set.is_advancing]
        asked = [(lane_set, steps) for lane_set, steps in asked if steps]
        if not asked:
            return
        for lane_set, _ in asked:
            lane_set.is_advancing = True
        try:
            places = [(lane_set, step) for lane_set, steps in asked for step in steps]
            lost = await self._store.advance([step for _, step in places])
        except BaseException as error:
            self._take_back(asked, error)
            raise
        finally:
            for lane_set, _ in asked:
                lane_set.is_advancing = False
        for place, (lane_set, step) in enumerate(places):
            if place in lost:
                self._lose(lane_set, TAKEN)
            else:
                lane_set.lanes[step.lane].number += 1
        for lane_set, _ in asked:
            if not lane_set.is_lost:
                lane_set.were_told()
            lane_set.freed.set()

    def _take_back(self, asked: list[tuple[LaneSet, list[CursorStep]]], error: BaseException) -> None:
        """Nobody knows whether these steps were told."""
        for lane_set, steps in asked:
            if isinstance(error, DatabaseUnavailable) and self._store.is_in_doubt(error):
                lane_set.is_in_doubt = True
                self._lose(lane_set, error.message)  # its cursor is not to be trusted any more: the stored one is
            else:
                lane_set.put_back(steps)
                self.add(lane_set)
