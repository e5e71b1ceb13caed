"""Alone: one call of a handler runs while no other one of the process does.

A message that was in hand with others when its process ended is suspected of having ended it. It is tried alone, so
that only its own end is held against it. Where others run for too long it is tried beside them, and nothing is held
against it. Where it takes long itself others go on beside it, and nothing is held against it from then on; each time it
is suspected again it has longer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from postbus._runtime.loop import patiently, pause

_LOOK = 1.0  # seconds between looks at whether there are suspects
_TURN = 1.0  # seconds for which suspects are tried, one after the other, before others go on
_PATIENCE = (1.0, 2.0, 4.0, 8.0)  # seconds for which nothing begins until all that runs has ended, each time
_ALONE_FOR = (15.0, 30.0, 60.0, 120.0, 240.0)  # seconds of a try alone, by how often that was not enough

_is_waiting: ContextVar[asyncio.Event | None] = ContextVar("postbus_is_waiting", default=None)


def will_take_long() -> None:
    """Says of the call of a handler that runs now that it waits for something: if it is alone, others need not wait."""
    if (is_waiting := _is_waiting.get()) is not None:
        is_waiting.set()


class Company:
    """Counts the calls of handlers that are under way in this process. Keeps new ones back while one wants to be alone.

    Every call of a handler is counted: `while is_closed: await opened()`, `running += 1`, and `left()` in the end.
    """

    __slots__ = ("_left", "_opened", "_turn", "is_closed", "outlasting", "running")

    def __init__(self) -> None:
        self.running = 0
        self.outlasting = 0
        """How many of these were alone, and took too long for that."""
        self.is_closed = False
        self._opened = asyncio.Event()
        self._left = asyncio.Event()
        self._turn = asyncio.Lock()

    async def opened(self) -> None:
        await self._opened.wait()

    def left(self) -> None:
        self.running -= 1
        if self.is_closed:
            self._left.set()

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        while self.is_closed:
            await self.opened()
        self.running += 1
        try:
            yield
        finally:
            self.left()

    @asynccontextmanager
    async def alone(self, patience: float, stop: asyncio.Event) -> AsyncIterator[bool]:
        """Nothing else runs in the block, and nothing begins. False if others did not end within `patience` seconds."""
        async with self._turn:
            self.is_closed = True
            self._opened.clear()
            try:
                deadline = time.monotonic() + patience
                while self.running and not stop.is_set() and (left := deadline - time.monotonic()) > 0:
                    self._left.clear()
                    await pause(left, self._left, stop)
                yield not self.running and not stop.is_set()
            finally:
                self.is_closed = False
                self._opened.set()


_companies: WeakKeyDictionary[asyncio.AbstractEventLoop, Company] = WeakKeyDictionary()


def company() -> Company:
    """All handlers of the process, of whatever bus: of those in its event loop, since programs have one."""
    loop = asyncio.get_running_loop()
    if loop not in _companies:
        _companies[loop] = Company()
    return _companies[loop]


class Suspect(NamedTuple):
    """What was claimed to be tried alone."""

    outlasted: int
    """How often it had the process to itself, and that did not last long enough."""
    call: Callable[[], Coroutine[Any, Any, None]]
    """Handle it, and wait until it is settled."""
    share: Callable[[], Awaitable[None]]
    """Tell the database that it is not alone from now on, before others begin."""


class Suspicious(Protocol):
    """Has messages that are to be tried alone."""

    async def claim_suspect(self) -> Suspect | None:
        """Claim the next ones, which are called at once, while nothing else runs."""
        ...

    async def try_beside(self) -> None:
        """Something else runs: let them wait in line with all others."""
        ...


class Suspects:
    """Tries what is suspected, alone. Others have the process for at least as long as suspects had it."""

    def __init__(self, look: Callable[[], Awaitable[Sequence[Suspicious]]], stop: asyncio.Event) -> None:
        self._look = look
        self._stop = stop
        self._failures = 0
        """How often it was waited for others in vain."""
        self._outlasting: set[asyncio.Task[None]] = set()
        """Calls that took too long to be alone."""

    async def tick(self) -> float:
        """Try suspects for a while, if there are any. Returns after how many seconds to look again."""
        for call in [one for one in self._outlasting if one.done()]:
            self._outlasting.remove(call)
            call.result()  # which raises a bug of ours only
        suspicious = await self._look()
        if not suspicious:
            self._failures = 0
            return _LOOK
        if company().outlasting:
            await self._try_beside(suspicious)
            return _LOOK
        began = time.monotonic()
        patience = _PATIENCE[self._failures] if self._failures < len(_PATIENCE) else 0.0
        async with company().alone(patience, self._stop) as is_alone:
            if is_alone:
                began = time.monotonic()
                await self._try_alone(suspicious)
                self._failures = 0
        if is_alone:
            return max(time.monotonic() - began, 0.01)
        self._failures += 1
        if self._failures < len(_PATIENCE):
            return max(time.monotonic() - began, 0.01)
        # Some handler takes long, or waits for something. Others do not stand still for it, nor do suspects.
        await self._try_beside(suspicious)
        return _LOOK

    async def ended(self) -> None:
        """Wait for calls that go on beside others."""
        await asyncio.gather(*self._outlasting)

    async def abort(self) -> None:
        for call in self._outlasting:
            call.cancel()
        await asyncio.gather(*self._outlasting, return_exceptions=True)

    async def _try_beside(self, suspicious: Sequence[Suspicious]) -> None:
        for one in suspicious:
            await one.try_beside()

    async def _try_alone(self, suspicious: Sequence[Suspicious]) -> None:
        until = time.monotonic() + _TURN
        waiting = deque(suspicious)
        while waiting and time.monotonic() < until and not self._stop.is_set():
            suspect = await waiting[0].claim_suspect()
            if suspect is None:
                waiting.popleft()
            elif await self._ends_alone(suspect):
                waiting.rotate(-1)
            else:
                return

    async def _ends_alone(self, suspect: Suspect) -> bool:
        """Call a suspect. False if that takes too long, or nobody should wait for it: then it goes on beside others."""
        has_ended, is_waiting = asyncio.Event(), asyncio.Event()
        outer = _is_waiting.set(is_waiting)
        call = asyncio.create_task(suspect.call(), name="postbus-suspect")
        _is_waiting.reset(outer)
        call.add_done_callback(lambda _: has_ended.set())
        tasks = [call]
        try:
            seconds = _ALONE_FOR[min(suspect.outlasted, len(_ALONE_FOR) - 1)]
            await pause(seconds, has_ended, is_waiting, self._stop)
            if not call.done():
                sharing: asyncio.Task[None] = asyncio.create_task(patiently(suspect.share))
                tasks.append(sharing)
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not call.done():
                    sharing.result()
                    self._goes_on(call)
                    return False
        finally:
            for task in tasks:
                if task not in self._outlasting:
                    task.cancel()
            await asyncio.gather(*(task for task in tasks if task not in self._outlasting), return_exceptions=True)
        call.result()
        return True

    def _goes_on(self, call: asyncio.Task[None]) -> None:
        everybody = company()
        everybody.running += 1
        everybody.outlasting += 1
        self._outlasting.add(call)

        def ended(_: object) -> None:
            everybody.outlasting -= 1
            everybody.left()

        call.add_done_callback(ended)
