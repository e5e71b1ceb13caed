"""Pops that wait for messages: many wait, a few poll.

A pop that comes joins the queue of those that wait for the same messages. It, a wake-up and the poll timer each let the
first of the queue ask the database. If that pop finds messages, and there may be more, the next one polls. If it finds
none, it goes back to the head of the queue, and the others have slept on. So the number of polls follows the number of
published messages and not the number of waiting pops, and the pop that has waited longest is served first. Several
poll at the same time only while one after the other finds messages.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from postbus._db.statements.queue import Pulled, PulledLease
from postbus.errors import DatabaseUnavailable

Poll = Callable[[], Awaitable[Pulled]]

_MAX_POLLS = 4  # that many pops of a topic and group may poll at the same time …
_STREAK = 8  # … one more for each so many that found messages one after the other
_SOON = 0.01  # seconds until the next poll after one that found nothing; twice as long each time …
_POLL = 1.0  # … up to this …
_POLL_PER_KEY = 0.01  # … or, with many keys, up to this for each: so many polls together are enough


class WaitingPops:
    """Pops that wait for the same messages, in the order in which they came."""

    def __init__(self) -> None:
        self.turns: OrderedDict[asyncio.Future[bool], None] = OrderedDict()
        """A future for each pop, which tells it to poll (True) or to wait no longer (False)."""
        self.polling = 0
        """The number of pops that ask the database just now."""
        self.found_none_at = 0.0
        """The start of the latest poll that found nothing."""
        self.streak = 0
        """The number of polls that found messages since the last one that found none."""
        self.pause = _SOON
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_empty(self) -> bool:
        return not self.turns and not self.polling

    @property
    def slots(self) -> int:
        """The number of further pops that may poll now."""
        return min(1 + self.streak // _STREAK, _MAX_POLLS) - self.polling


class PopWaiters:
    """The waiting pops of one topic and group: a queue for each key that is asked for, and one for all keys."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._by_key: dict[str | None, WaitingPops] = {}
        self._to_poll: dict[WaitingPops, None] = {}
        """The queues whose first pop is to poll as soon as there is a slot."""
        self._polling = 0
        self._is_closed = False

    @property
    def is_empty(self) -> bool:
        return not self._by_key

    def set(self) -> None:
        """Wake up: there may be messages for every queue."""
        for pops in self._by_key.values():
            self._to_poll[pops] = None
        self._wake_next()

    def send_away(self) -> None:
        """Let all pops return without messages."""
        self._is_closed = True
        for pops in self._by_key.values():
            for turn in pops.turns:
                if not turn.done():
                    turn.set_result(False)

    async def wait(self, key: str | None, seconds: float, poll: Poll) -> list[PulledLease]:
        """Wait until `poll` finds messages or the time is over.

        While the database is away, wait for it. If it is still away when the time is over, raise its error.
        """
        deadline = self._loop.time() + seconds
        pops = self._by_key.setdefault(key, WaitingPops())
        try:
            return await self._wait(pops, deadline, poll)
        finally:
            if pops.is_empty and self._by_key.get(key) is pops:
                del self._by_key[key]
                self._to_poll.pop(pops, None)
                if pops.timer is not None:
                    pops.timer.cancel()

    async def _wait(self, pops: WaitingPops, deadline: float, poll: Poll) -> list[PulledLease]:
        came_at = self._loop.time()
        away: DatabaseUnavailable | None = None
        turn = self._enqueue(pops)
        self._to_poll[pops] = None
        self._wake_next()
        while await self._has_turn(pops, turn, deadline):
            began, pulled = self._loop.time(), None
            try:
                pulled, away = await poll(), None
                if pulled.leases:
                    return pulled.leases
                turn = self._enqueue(pops, first=True)
            except DatabaseUnavailable as error:
                away = error
                turn = self._enqueue(pops, first=True)
            finally:
                self._end_poll(pops, pulled, began, away)
        if away is not None:
            raise away
        if self._is_closed or pops.found_none_at >= came_at:
            return []
        # Too many waited before this pop: nobody has polled since it came.
        return (await poll()).leases

    def _enqueue(self, pops: WaitingPops, *, first: bool = False) -> asyncio.Future[bool]:
        turn = self._loop.create_future()
        if self._is_closed:
            turn.set_result(False)
        pops.turns[turn] = None
        pops.turns.move_to_end(turn, last=not first)
        return turn

    async def _has_turn(self, pops: WaitingPops, turn: asyncio.Future[bool], deadline: float) -> bool:
        """Wait until it is the pop's turn to poll. False if it is not to wait any longer."""
        try:
            async with asyncio.timeout_at(deadline):
                return await turn
        except TimeoutError:
            return _was_given(turn)
        except BaseException:
            if _was_given(turn):
                self._end_poll(pops, None, self._loop.time(), None)
            raise
        finally:
            pops.turns.pop(turn, None)

    def _wake_next(self) -> None:
        """Let the first pops of the queues in `_to_poll` poll, as far as there are slots."""
        for pops in list(self._to_poll):
            slots = min(pops.slots, _MAX_POLLS - self._polling)
            while slots > 0 and pops.turns:
                turn, _ = pops.turns.popitem(last=False)
                if not turn.done():  # else its pop was cancelled just now
                    slots -= 1
                    pops.polling += 1
                    self._polling += 1
                    turn.set_result(True)
                    self._to_poll.pop(pops, None)
            # A pop that is polling may come back to the queue, and must then poll again.
            if pops.is_empty:
                self._to_poll.pop(pops, None)

    def _end_poll(
        self, pops: WaitingPops, pulled: Pulled | None, began: float, away: DatabaseUnavailable | None
    ) -> None:
        """Note the result of a poll, and see to it that the next one comes at the right time."""
        pops.polling -= 1
        self._polling -= 1
        if pulled is None and away is None:  # it was cancelled or refused: the next pop must poll for itself
            self._to_poll[pops] = None
        elif pulled is not None and pulled.leases:
            pops.pause = _SOON
            pops.streak += 1
            self._poll_again(pops, pulled)
        else:
            pops.streak = 0
            if pulled is not None:
                pops.found_none_at = max(pops.found_none_at, began)
            self._poll_again(pops, pulled)
        self._wake_next()

    def _poll_again(self, pops: WaitingPops, pulled: Pulled | None) -> None:
        """Poll at once if there may be more messages, else when the next one is due or the pause is over."""
        if pulled is not None and pulled.more:
            self._to_poll[pops] = None
            return
        pops.pause = min(2 * pops.pause, max(_POLL, _POLL_PER_KEY * len(self._by_key)))
        wait = pops.pause
        if pulled is not None and pulled.next_due is not None:
            wait = min(wait, max(pulled.next_due.total_seconds(), 0.001))
        if pops.timer is not None:
            pops.timer.cancel()
        pops.timer = self._loop.call_later(wait, self._on_timer, pops)

    def _on_timer(self, pops: WaitingPops) -> None:
        pops.timer = None
        self._to_poll[pops] = None
        self._wake_next()


def _was_given(turn: asyncio.Future[bool]) -> bool:
    return turn.done() and not turn.cancelled() and turn.result()
