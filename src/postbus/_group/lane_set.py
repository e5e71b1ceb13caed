"""Lane sets: lanes of a group that stand at the same position and are read together, and how far they have come."""

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
    """A lane that this process has leased for a group."""

    __slots__ = ("careful_until", "deaths", "lane", "lane_set", "number", "token")

    lane_set: LaneSet
    """The lane set that it is read in."""

    def __init__(self, lane: int, token: UUID, number: int, deaths: int, careful_until: int | None) -> None:
        self.lane = lane
        self.token = token
        self.number = number
        """The number of our last row in the ledger."""
        self.deaths = deaths
        """How many processes have died while they held the lane."""
        self.careful_until = careful_until


class WindowEntry:
    """Messages of a lane set that are settled together. Entries are in the order in which they were read."""

    __slots__ = ("count", "cursor", "gathers", "handled", "index", "lane_set", "parts", "pending", "sequence")

    def __init__(
        self,
        lane_set: LaneSet,
        sequence: int | None,
        index: int | None,
        cursor: str,
        parts: list[Part] | None = None,
        *,
        count: int = 1,
        gathers: bool = False,
    ) -> None:
        self.lane_set = lane_set
        self.sequence = sequence
        self.index = index
        """The last message of the entry, by its segment; None for both: everything up to the cursor."""
        self.cursor = cursor
        """The group's cursor once this entry and all before it are done."""
        self.parts = parts if parts is not None else []
        """Its messages. If the entry gathers them, those that are done so far."""
        self.handled: list[Part] = []
        """Messages that are done, in an entry that is still pending."""
        self.gathers = gathers
        """Whether the entry has several works, each of which adds its parts when it is done."""
        self.count = count
        self.pending = 1

    def done(self, parts: Sequence[Part] = ()) -> None:
        """Note that these parts are done. Unless the entry gathers, these are all that was pending."""
        if self.gathers:
            self.parts += parts
        self.pending -= 1
        if self.pending == 0:
            self.lane_set.was_done(self.count)


class LaneSet:
    """Lanes that are read together. Its consumer learns of progress and loss by the two callbacks."""

    def __init__(
        self,
        subscription_id: int,
        lanes: Iterable[LeasedLane],
        cursor: str,
        server: datetime,
        *,
        on_progress: Callable[[LaneSet], None],
        on_lost: Callable[[LaneSet, str, bool], None],
    ) -> None:
        self.subscription_id = subscription_id
        self.lanes = {one.lane: one for one in lanes}
        for lane in self.lanes.values():
            lane.lane_set = self
        self.key = tuple(sorted(self.lanes))
        self.cursor = cursor
        """Where the next read begins."""
        self.server = server
        """The server that the cursor belongs to, by its start time."""
        self.taken_at = time.monotonic()
        """A position that was taken after this time is later than the cursor."""
        self.confirmed_at = self.taken_at
        """At this time the lanes were still ours."""
        self.seen_at = 0.0
        """Messages that were visible at this time have been read, once nothing is left up to the target."""
        self.may_have_target = True
        """Whether the cursor may have a target, up to which it is read in several steps."""
        self.window: deque[WindowEntry] = deque()
        """The entries that were read and are not settled, in order."""
        self.in_hand = 0
        """Messages of the window."""
        self.running = 0
        """Handler calls that are under way."""
        self.freed = asyncio.Event()
        """Set at each change that somebody may wait for."""
        self.is_ending = False
        """Whether no handler may begin with another message."""
        self.is_lost = False
        """Whether another process may have some of the lanes."""
        self.is_in_doubt = False
        """Whether the server may have crashed, so that what was read may never have been committed."""
        self.is_advancing = False
        """Whether its cursor is being written."""
        self.is_waiting = False
        """Whether its reader may be cancelled, since it waits for the database or for handlers."""
        self.is_deferring = False
        """Whether deferred messages have entries that are not written yet. Until then they must not be redelivered."""
        self._on_progress = on_progress
        self._on_lost = on_lost
        self._unwritten: list[WindowEntry] = []
        """Entries that are done, and not behind the stored cursor yet, …"""
        self._being_written: list[WindowEntry] = []
        """… or that the cursor passes in the write that is under way."""
        self.noting_done = asyncio.Lock()
        """Held while messages that are done ahead of the cursor are noted in the database."""
        self.not_noted: list[Part] = []
        """Messages whose note failed: it may have been stored, or not."""
        self._passed = 0
        self._reached: tuple[str, int | None, int | None] | None = None

    @property
    def tokens(self) -> list[UUID]:
        return [lane.token for lane in self.lanes.values()]

    async def until_freed(self) -> None:
        """Wait until something has changed. The caller checks again for what it waits."""
        self.freed.clear()
        await self.freed.wait()

    def lose(self, reason: str, *, is_expected: bool = False) -> None:
        """Stop working on the lanes, because other processes may have some of them."""
        if self.is_lost:
            return
        self.is_lost = self.is_ending = True
        self.freed.set()
        self._on_lost(self, reason, is_expected)

    def lose_in_doubt(self, reason: str) -> None:
        """Stop working on the lanes, because the server may have crashed: only the stored cursor can be trusted."""
        self.is_in_doubt = True
        self.lose(reason)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is in hand and no lane is suspect, so that it may be read together with others."""
        has_no_suspects = all(lane.deaths == 0 for lane in self.lanes.values())
        is_idle = not self.window and not self.running and self.is_settled and not self.may_have_target
        return self.is_waiting and is_idle and has_no_suspects and not self.is_ending

    def take_done(self) -> list[Part]:
        """Take the messages that are done and that the stored cursor has not passed, each once."""
        done, self.not_noted = self.not_noted, []
        for entry in (*self._being_written, *self._unwritten, *self.window):
            if entry.pending == 0 or entry.gathers:
                done += entry.parts
                entry.parts = []
            done += entry.handled
            entry.handled = []
        return done

    def was_passed(self, cursor: str) -> None:
        """Note that the log has nothing for these lanes up to a cursor."""
        entry = WindowEntry(self, None, None, cursor, count=0)
        self.add(entry)
        entry.done()

    def add(self, entry: WindowEntry) -> None:
        self.window.append(entry)
        self.in_hand += entry.count

    def read_on(self, result: ReadResult) -> None:
        """Let the next read begin where this one ended."""
        self.cursor = result.next_cursor
        self.taken_at = result.taken_at
        if not self.may_have_target:  # otherwise it was read up to a position that was taken earlier
            self.seen_at = result.seen_at
        self.may_have_target = result.more

    def step_after(self, entry: WindowEntry) -> CursorStep:
        """The step of the cursor to behind an entry, for a lane set with one lane."""
        lane = next(iter(self.lanes.values()))
        return CursorStep(
            self.subscription_id,
            lane.lane,
            lane.token,
            lane.number,
            entry.cursor,
            entry.sequence,
            entry.index,
            entry.count,
            self.server,
        )

    def was_advanced(self, entry: WindowEntry) -> None:
        """Note that a handler's transaction has moved the stored cursor behind an entry."""
        assert self.window[0] is entry
        self.window.popleft()
        self.in_hand -= entry.count
        entry.count = 0

    def was_done(self, count: int) -> None:
        """Note that an entry is done. Its messages are `count`."""
        self.in_hand -= count
        window = self.window
        if window and window[0].pending == 0:
            while window and window[0].pending == 0:
                last = window.popleft()
                self._unwritten.append(last)
                self._passed += last.count
            self._reached = last.cursor, last.sequence, last.index
            self._on_progress(self)
        self.freed.set()

    def deferral_was_written(self) -> None:
        """Note that the stored cursor has passed the deferred messages."""
        self.is_deferring = False
        self.freed.set()

    @property
    def is_settled(self) -> bool:
        """Whether the stored cursor has passed everything that it can pass."""
        return self._reached is None and not self.is_advancing

    def take_steps(self) -> list[CursorStep]:
        """Take the steps that the stored cursor has to make. Afterwards call `put_back` or `were_written`."""
        if self._reached is None:
            return []
        (cursor, sequence, index), passed = self._reached, self._passed
        self._reached, self._passed = None, 0
        self._being_written, self._unwritten = self._unwritten, []
        return [
            CursorStep(
                self.subscription_id,
                one.lane,
                one.token,
                one.number,
                cursor,
                sequence,
                index,
                passed if first == 0 else 0,
                self.server,
            )
            for first, one in enumerate(self.lanes.values())
        ]

    def put_back(self, steps: list[CursorStep]) -> None:
        """Note that the steps could not be written."""
        if self._reached is None:
            self._reached = steps[0].cursor, steps[0].done_sequence, steps[0].done_index
        self._passed += steps[0].passed
        self._being_written, self._unwritten = [], self._being_written + self._unwritten

    def were_written(self) -> None:
        """Note that the steps have been written."""
        self._being_written = []


TAKEN = "other processes have taken them, or the group's position was moved"
