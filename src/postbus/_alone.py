"""Alone: one call of a handler runs while no other one of the process does.

A message that was in hand with others when its process ended is suspected of having ended it. It is tried alone, so
that only its own end is held against it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol
from weakref import WeakKeyDictionary

from postbus._loop import pause

_LOOK = 1.0  # seconds between looks at whether there are suspects
_TURN = 1.0  # seconds for which suspects are tried, one after the other, before others go on
_FIRST_PATIENCE = 1.0  # seconds for which nothing begins until all that runs has ended, …
_LONGEST_PATIENCE = 60.0  # … longer each time that they were too few


class Company:
    """Counts the calls of handlers that are under way in this process. Keeps new ones back while one wants to be alone.

    Every call of a handler is counted: `while is_closed: await opened()`, `running += 1`, and `left()` in the end.
    """

    __slots__ = ("_left", "_opened", "_turn", "is_closed", "running")

    def __init__(self) -> None:
        self.running = 0
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


class Suspicious(Protocol):
    """Has messages that are to be tried alone."""

    async def try_suspects(self) -> bool:
        """Try the next ones, and wait until they are settled. Returns whether there were any."""
        ...


class Suspects:
    """Tries what is suspected, alone. Others have the process for at least as long as suspects had it."""

    def __init__(self, look: Callable[[], Awaitable[Sequence[Suspicious]]], stop: asyncio.Event) -> None:
        self._look = look
        self._stop = stop
        self._patience = _FIRST_PATIENCE

    async def tick(self) -> float:
        """Try suspects for a while, if there are any. Returns after how many seconds to look again."""
        suspicious = await self._look()
        if not suspicious:
            return _LOOK
        began = time.monotonic()
        async with company().alone(self._patience, self._stop) as is_alone:
            if is_alone:
                began = time.monotonic()
                await self._try(suspicious, began + _TURN)
                self._patience = _FIRST_PATIENCE
            else:
                self._patience = min(2 * self._patience, _LONGEST_PATIENCE)
        return max(time.monotonic() - began, 0.01)

    async def _try(self, suspicious: Sequence[Suspicious], until: float) -> None:
        while suspicious and time.monotonic() < until and not self._stop.is_set():
            suspicious = [one for one in suspicious if await one.try_suspects()]
