"""Waiting for messages to pop: many wait, a few ask.

Whoever comes gets in line. That, a ring, or the time to poll, calls the first of the line, which asks the database. If
it finds something, and there may be more, it calls the next; if not, it goes back to the head of the line, and all
others have gone on sleeping. So what is asked depends on how much is published, not on how many wait, and who waits
longest is served first. Only while one after the other finds something, several ask at the same time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from postbus._db.statements.queue import Pulled, PulledLease
from postbus.errors import DatabaseUnavailable

Look = Callable[[], Awaitable[Pulled]]

_AT_ONCE = 4  # so many of a topic and group may ask at the same time, …
_STREAK = 8  # … one more for so many who have found something, one after the other
_SOON = 0.01  # seconds after which a line asks again that found nothing; twice as long each time, …
_POLL = 1.0  # … up to this, …
_LINE_POLL = 0.01  # … or, with many keys, this for each of them: so many polls together are enough


class WaitingPops:
    """Pops that wait for the same messages, in the order in which they came."""

    def __init__(self) -> None:
        self.waiting: OrderedDict[asyncio.Future[bool], None] = OrderedDict()
        """A future for each, which tells it to ask the database (True), or to wait no longer (False)."""
        self.looking = 0
        """How many ask just now."""
        self.found_none_at = 0.0
        """When the last one began to ask of those that found nothing."""
        self.streak = 0
        """How many have found something since the last one who found nothing."""
        self.pause = _SOON
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.looking

    @property
    def room(self) -> int:
        """How many more may ask."""
        return min(1 + self.streak // _STREAK, _AT_ONCE) - self.looking


class PopWaiters:
    """The lines of one topic and group: one for each key that is asked for, and one for all keys."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: dict[str | None, WaitingPops] = {}
        self._called: dict[WaitingPops, None] = {}
        self._looking = 0
        self._is_closed = False

    @property
    def is_empty(self) -> bool:
        return not self._lines

    def set(self) -> None:
        """It rings: there may be something for every line."""
        for line in self._lines.values():
            self._call(line)
        self._go_on()

    def send_away(self) -> None:
        """Let all who wait go, with nothing."""
        self._is_closed = True
        for line in self._lines.values():
            for turn in line.waiting:
                if not turn.done():
                    turn.set_result(False)

    async def wait(self, key: str | None, seconds: float, look: Look) -> list[PulledLease]:
        """Wait in line until `look` finds something, or the time is over.

        While the database is away it is waited for; that it still is when the time is over is an error.
        """
        deadline = self._loop.time() + seconds
        line = self._lines.setdefault(key, WaitingPops())
        try:
            return await self._wait(line, deadline, look)
        finally:
            if line.is_empty and self._lines.get(key) is line:
                del self._lines[key]
                self._called.pop(line, None)
                if line.timer is not None:
                    line.timer.cancel()

    async def _wait(self, line: WaitingPops, deadline: float, look: Look) -> list[PulledLease]:
        came_at = self._loop.time()
        away: DatabaseUnavailable | None = None
        turn = self._get_in_line(line)
        self._call(line)
        self._go_on()
        while await self._is_called(line, turn, deadline):
            began, pulled = self._loop.time(), None
            try:
                pulled, away = await look(), None
                if pulled.leases:
                    return pulled.leases
                turn = self._get_in_line(line, first=True)
            except DatabaseUnavailable as error:
                away = error
                turn = self._get_in_line(line, first=True)
            finally:
                self._has_looked(line, pulled, began, away)
        if away is not None:
            raise away
        if self._is_closed or line.found_none_at >= came_at:
            return []
        # Nobody has looked since it came: there were too many before it.
        return (await look()).leases

    def _get_in_line(self, line: WaitingPops, *, first: bool = False) -> asyncio.Future[bool]:
        turn = self._loop.create_future()
        if self._is_closed:
            turn.set_result(False)
        line.waiting[turn] = None
        line.waiting.move_to_end(turn, last=not first)
        return turn

    async def _is_called(self, line: WaitingPops, turn: asyncio.Future[bool], deadline: float) -> bool:
        """Wait for one's turn. False when it is no use to wait any longer."""
        try:
            async with asyncio.timeout_at(deadline):
                return await turn
        except TimeoutError:
            return _has_turn(turn)
        except BaseException:
            if _has_turn(turn):
                self._has_looked(line, None, self._loop.time(), None)
            raise
        finally:
            line.waiting.pop(turn, None)

    def _call(self, line: WaitingPops) -> None:
        """Let the first of a line ask, as soon as there are not too many who do."""
        self._called[line] = None

    def _go_on(self) -> None:
        for line in list(self._called):
            room = min(line.room, _AT_ONCE - self._looking)
            while room > 0 and line.waiting:
                turn, _ = line.waiting.popitem(last=False)
                if not turn.done():  # else it was cancelled just now
                    room -= 1
                    line.looking += 1
                    self._looking += 1
                    turn.set_result(True)
                    self._called.pop(line, None)
            # One who asks already may come back, and then has to ask again.
            if line.is_empty:
                self._called.pop(line, None)

    def _has_looked(
        self, line: WaitingPops, pulled: Pulled | None, began: float, away: DatabaseUnavailable | None
    ) -> None:
        """Somebody of the line has asked: see to it that the next one does at the right time."""
        line.looking -= 1
        self._looking -= 1
        if pulled is None and away is None:  # it was cancelled, or refused: the next one has to find out for itself
            self._call(line)
        elif pulled is not None and pulled.leases:
            line.pause = _SOON
            line.streak += 1
            if pulled.more:
                self._call(line)
            else:
                self._look_later(line, pulled)
        else:
            line.streak = 0
            if pulled is not None:
                line.found_none_at = max(line.found_none_at, began)
            if pulled is not None and pulled.more:
                self._call(line)
            else:
                self._look_later(line, pulled)
        self._go_on()

    def _look_later(self, line: WaitingPops, pulled: Pulled | None) -> None:
        line.pause = min(2 * line.pause, max(_POLL, _LINE_POLL * len(self._lines)))
        wait = line.pause
        if pulled is not None and pulled.next_due is not None:
            wait = min(wait, max(pulled.next_due.total_seconds(), 0.001))
        if line.timer is not None:
            line.timer.cancel()
        line.timer = self._loop.call_later(wait, self._poll, line)

    def _poll(self, line: WaitingPops) -> None:
        line.timer = None
        self._call(line)
        self._go_on()


def _has_turn(turn: asyncio.Future[bool]) -> bool:
    return turn.done() and not turn.cancelled() and turn.result()
