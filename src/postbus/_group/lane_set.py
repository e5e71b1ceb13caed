"""Lane sets: lanes of a group that one process reads together, and how far it has come in them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from uuid import UUID

from postbus._content.segment import Part, ReadResult
from postbus._db.statements.log import CursorStep


class LeasedLane:
    """A lane that this process holds for a group."""

    __slots__ = ("careful_until", "deaths", "lane", "lane_set", "number", "token")

    lane_set: LaneSet
    """In which it is read."""

    def __init__(self, lane: int, token: UUID, number: int, deaths: int, careful_until: int | None) -> None:
        self.lane = lane
        self.token = token
        self.number = number
        """Of the last row of the ledger that is ours."""
        self.deaths = deaths
        self.careful_until = careful_until


class WindowEntry:
    """Messages of a lane set that are settled together, in the order in which they were read."""

    __slots__ = ("count", "cursor", "gathers", "handled", "index", "lane_set", "parts", "pending", "position")

    def __init__(
        self,
        lane_set: LaneSet,
        position: int,
        index: int,
        cursor: str,
        parts: list[Part] | None = None,
        *,
        count: int = 1,
        gathers: bool = False,
    ) -> None:
        self.lane_set = lane_set
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
            self.lane_set.was_done(self.count)


class LaneSet:
    """Lanes that are read together, since they stand at the same place."""

    def __init__(
        self, subscription_id: int, lanes: Iterable[LeasedLane], cursor: str, server: datetime, progressed: Progressed
    ) -> None:
        self.subscription_id = subscription_id
        self.lanes = {one.lane: one for one in lanes}
        for lane in self.lanes.values():
            lane.lane_set = self
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
        self.window: deque[WindowEntry] = deque()
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
        self._untold: list[WindowEntry] = []
        """What is done and not told to the database yet, …"""
        self._being_told: list[WindowEntry] = []
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
        entry = WindowEntry(self, 0, -1, cursor, count=0)
        self.add(entry)
        entry.done()

    def add(self, entry: WindowEntry) -> None:
        self.window.append(entry)
        self.in_hand += entry.count

    def read_on(self, piece: ReadResult) -> None:
        self.cursor = piece.next_cursor
        self.taken_at = piece.taken_at
        if not self.is_between:  # else it was up to a place that was taken earlier
            self.seen_at = piece.seen_at
        self.is_between = piece.more

    def step_after(self, entry: WindowEntry) -> CursorStep:
        """The step to behind an entry, of a lane set with one lane."""
        lane = next(iter(self.lanes.values()))
        is_last = entry.index < 0
        return CursorStep(
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

    def was_advanced(self, entry: WindowEntry) -> None:
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

    def steps(self) -> list[CursorStep]:
        """What there is to tell the database; asking takes it."""
        if self._reached is None:
            return []
        (cursor, position, index), passed = self._reached, self._passed
        self._reached, self._passed = None, 0
        self._being_told, self._untold = self._untold, []
        return [
            CursorStep(
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

    def put_back(self, steps: list[CursorStep]) -> None:
        """They could not be told."""
        if self._reached is None:
            self._reached = steps[0].cursor, steps[0].done_position, steps[0].done_index
        self._passed += steps[0].passed
        self._being_told, self._untold = [], self._being_told + self._untold

    def were_told(self) -> None:
        """The database knows of the steps."""
        self._being_told = []


Progressed = Callable[[LaneSet], None]
Lose = Callable[[LaneSet, str], None]
"""Called with a lane set whose lanes are not ours any more, and why."""
TAKEN = "others have taken them, or moved the group's place"
