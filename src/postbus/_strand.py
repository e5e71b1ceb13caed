"""Strands: lanes of a group that one process reads together, and how far it has come in them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from uuid import UUID

from postbus._log import event
from postbus._log_store import Step
from postbus._loop import Backoff, patiently
from postbus._segment import Part, Piece
from postbus._store import Store
from postbus.errors import DatabaseUnavailable

_GATHER = 0.005  # seconds in which further progress is gathered before cursors are moved …
_APART = 0.05  # … and between two moves: each is a row per lane


class HeldLane:
    """A lane that this process holds for a group."""

    __slots__ = ("careful_until", "deaths", "lane", "number", "strand", "token")

    strand: Strand
    """In which it is read."""

    def __init__(self, lane: int, token: UUID, number: int, deaths: int, careful_until: int | None) -> None:
        self.lane = lane
        self.token = token
        self.number = number
        """Of the last row of the ledger that is ours."""
        self.deaths = deaths
        self.careful_until = careful_until


class Entry:
    """Messages of a strand that are settled together, in the order in which they were read."""

    __slots__ = ("count", "cursor", "gathers", "handled", "index", "parts", "pending", "position", "strand")

    def __init__(
        self,
        strand: Strand,
        position: int,
        index: int,
        cursor: str,
        parts: list[Part] | None = None,
        *,
        count: int = 1,
        gathers: bool = False,
    ) -> None:
        self.strand = strand
        self.position = position
        self.index = index
        self.cursor = cursor
        """The cursor that the group has once this and all before it are done."""
        self.parts = parts if parts is not None else []
        """Its messages; if it gathers them, those that are done so far."""
        self.handled: list[Part] = []
        """Of those that are pending together, what is done already."""
        self.gathers = gathers
        self.count = count
        self.pending = 1

    def done(self, parts: Sequence[Part] = ()) -> None:
        """These parts of it are done: all that was pending, unless it gathers."""
        if self.gathers:
            self.parts += parts
        self.pending -= 1
        if self.pending == 0:
            self.strand.was_done(self.count)


class Strand:
    """Lanes that are read together, since they stand at the same place."""

    def __init__(
        self, subscription_id: int, lanes: Iterable[HeldLane], cursor: str, server: datetime, progressed: Progressed
    ) -> None:
        self.subscription_id = subscription_id
        self.lanes = {one.lane: one for one in lanes}
        for lane in self.lanes.values():
            lane.strand = self
        self.key = tuple(sorted(self.lanes))
        self.cursor = cursor
        """Where to read on."""
        self.server = server
        """Which the cursor belongs to, by its start."""
        self.taken_at = self.sure_at = time.monotonic()
        """Places that were taken later than the one are later than the cursor; at the other the lanes were ours."""
        self.seen_at = 0.0
        """What was there at this time has been read, once nothing is left up to the target."""
        self.is_between = True
        """May have a target already, up to which it is worked through in pieces."""
        self.window: deque[Entry] = deque()
        """What was read and is not settled, in order."""
        self.in_hand = 0
        self.running = 0
        """Calls of handlers that are under way."""
        self.freed = asyncio.Event()
        self.is_ending = False
        self.is_lost = False
        self.is_in_doubt = False
        """The server may have crashed: what was read may never have been committed."""
        self.is_advancing = False
        self.is_waiting = False
        """Its reader waits for the database or for room: it may be cancelled."""
        self.is_putting_off = False
        """Messages have been taken out of the way whose entry is not told yet: they must not be tried again."""
        self._progressed = progressed
        self._untold: list[Entry] = []
        """What is done and not told to the database yet, …"""
        self._being_told: list[Entry] = []
        """… or is being told just now."""
        self.telling = asyncio.Lock()
        """Held while the database is told what is done ahead of the cursor."""
        self.untold_done: list[Part] = []
        """What was taken to be told, and may not have been."""
        self._passed = 0
        self._reached: tuple[str, int | None, int | None] | None = None

    @property
    def tokens(self) -> list[UUID]:
        return [lane.token for lane in self.lanes.values()]

    async def until_freed(self) -> None:
        """Wait until something has changed: ask again what is waited for."""
        self.freed.clear()
        await self.freed.wait()

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is in hand or suspected, so that it may be read together with others."""
        is_calm = all(lane.deaths == 0 for lane in self.lanes.values())
        is_idle = not self.window and not self.running and self.is_settled and not self.is_between
        return self.is_waiting and is_idle and is_calm and not self.is_ending

    def take_done(self) -> list[Part]:
        """What is done and the cursor is not past, each part once."""
        done, self.untold_done = self.untold_done, []
        for entry in (*self._being_told, *self._untold, *self.window):
            if entry.pending == 0 or entry.gathers:
                done += entry.parts
                entry.parts = []
            done += entry.handled
            entry.handled = []
        return done

    def was_passed(self, cursor: str) -> None:
        """There was nothing for us up to a cursor."""
        entry = Entry(self, 0, -1, cursor, count=0)
        self.add(entry)
        entry.done()

    def add(self, entry: Entry) -> None:
        self.window.append(entry)
        self.in_hand += entry.count

    def read_on(self, piece: Piece) -> None:
        self.cursor = piece.next_cursor
        self.taken_at = piece.taken_at
        if not self.is_between:  # else it was up to a place that was taken earlier
            self.seen_at = piece.seen_at
        self.is_between = piece.more

    def step_after(self, entry: Entry) -> Step:
        """The step to behind an entry, of a strand with one lane."""
        lane = next(iter(self.lanes.values()))
        is_last = entry.index < 0
        return Step(
            self.subscription_id,
            lane.lane,
            lane.token,
            lane.number,
            entry.cursor,
            None if is_last else entry.position,
            None if is_last else entry.index,
            entry.count,
            self.server,
        )

    def was_advanced(self, entry: Entry) -> None:
        """The database knows of an entry already."""
        assert self.window[0] is entry
        self.window.popleft()
        self.in_hand -= entry.count
        entry.count = 0

    def was_done(self, count: int) -> None:
        self.in_hand -= count
        window = self.window
        if window and window[0].pending == 0:
            while window and window[0].pending == 0:
                last = window.popleft()
                self._untold.append(last)
                self._passed += last.count
            self._reached = (last.cursor, None, None) if last.index < 0 else (last.cursor, last.position, last.index)
            self._progressed(self)
        self.freed.set()

    def has_put_off(self) -> None:
        """What was taken out of the way is behind the cursor now."""
        self.is_putting_off = False
        self.freed.set()

    @property
    def is_settled(self) -> bool:
        """Whether all that is done has been told to the database."""
        return self._reached is None and not self.is_advancing

    def steps(self) -> list[Step]:
        """What there is to tell the database; asking takes it."""
        if self._reached is None:
            return []
        (cursor, position, index), passed = self._reached, self._passed
        self._reached, self._passed = None, 0
        self._being_told, self._untold = self._untold, []
        return [
            Step(
                self.subscription_id,
                one.lane,
                one.token,
                one.number,
                cursor,
                position,
                index,
                passed if first == 0 else 0,
                self.server,
            )
            for first, one in enumerate(self.lanes.values())
        ]

    def put_back(self, steps: list[Step]) -> None:
        """They could not be told."""
        if self._reached is None:
            self._reached = steps[0].cursor, steps[0].done_position, steps[0].done_index
        self._passed += steps[0].passed
        self._being_told, self._untold = [], self._being_told + self._untold

    def were_told(self) -> None:
        """The database knows of the steps."""
        self._being_told = []


Progressed = Callable[[Strand], None]
Lose = Callable[[Strand, str], None]
"""Called with a strand whose lanes are not ours any more, and why."""
TAKEN = "others have taken them, or moved the group's place"


class Advancer:
    """Moves cursors: those of all groups of the process in one statement."""

    def __init__(self, store: Store, lose: Lose) -> None:
        self._store = store
        self._lose = lose
        self._progressed: dict[Strand, None] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, strand: Strand) -> None:
        self._progressed[strand] = None
        self._idle.clear()
        self._wake.set()

    async def settled(self) -> None:
        """Wait until all progress so far has been told."""
        await self._idle.wait()

    async def settle(self, strand: Strand) -> None:
        """Tell all progress of a strand now. While the database is away, this waits for it."""
        while not strand.is_settled and not strand.is_lost:
            await patiently(lambda: self.advance([strand]))
            if strand.is_advancing:
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
        strands, self._progressed = [one for one in self._progressed if not one.is_lost], {}
        for strand in strands:
            if strand.is_advancing:  # somebody else tells of it just now, but perhaps not of all
                self.add(strand)
        await self.advance(strands)
        if not self._progressed:
            self._idle.set()

    async def advance(self, strands: list[Strand]) -> None:
        """Tell the progress of some strands. What could not be told stays."""
        asked = [(strand, strand.steps()) for strand in strands if not strand.is_advancing]
        asked = [(strand, steps) for strand, steps in asked if steps]
        if not asked:
            return
        for strand, _ in asked:
            strand.is_advancing = True
        try:
            places = [(strand, step) for strand, steps in asked for step in steps]
            lost = await self._store.advance([step for _, step in places])
        except BaseException as error:
            self._take_back(asked, error)
            raise
        finally:
            for strand, _ in asked:
                strand.is_advancing = False
        for place, (strand, step) in enumerate(places):
            if place in lost:
                self._lose(strand, TAKEN)
            else:
                strand.lanes[step.lane].number += 1
        for strand, _ in asked:
            if not strand.is_lost:
                strand.were_told()
            strand.freed.set()

    def _take_back(self, asked: list[tuple[Strand, list[Step]]], error: BaseException) -> None:
        """Nobody knows whether these steps were told."""
        for strand, steps in asked:
            if isinstance(error, DatabaseUnavailable) and self._store.is_in_doubt(error):
                strand.is_in_doubt = True
                self._lose(strand, error.message)  # its cursor is not to be trusted any more: the stored one is
            else:
                strand.put_back(steps)
                self.add(strand)
