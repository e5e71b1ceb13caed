"""Alone: one call of a handler runs while no other one of the process does.

A message that was in hand with others when its process ended is suspected of having ended it. It is tried alone, so
that only its own end is held against it. Where others run for too long it is tried beside them, and nothing is held
against it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol
from weakref import WeakKeyDictionary

from postbus._loop import pause

_LOOK = 1.0  # seconds between looks at whether there are suspects
_TURN = 1.0  # seconds for which suspects are tried, one after the other, before others go on
_PATIENCE = (1.0, 2.0, 4.0, 8.0)  # seconds for which nothing begins until all that runs has ended, each time


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

    async def try_suspects(self, *, is_alone: bool) -> bool:
        """Try the next ones, and wait until they are settled. Returns whether there were any.

        is_alone: nothing else runs, so that what ends the process can only be they. If not, they wait in line with all
        others, and False is returned.
        """
        ...


class Suspects:
    """Tries what is suspected, alone. Others have the process for at least as long as suspects had it."""

    def __init__(self, look: Callable[[], Awaitable[Sequence[Suspicious]]], stop: asyncio.Event) -> None:
        self._look = look
        self._stop = stop
        self._failures = 0
        """How often it was waited for others in vain."""

    async def tick(self) -> float:
        """Try suspects for a while, if there are any. Returns after how many seconds to look again."""
        suspicious = await self._look()
        if not suspicious:
            self._failures = 0
            return _LOOK
        began = time.monotonic()
        patience = _PATIENCE[self._failures] if self._failures < len(_PATIENCE) else 0.0
        async with company().alone(patience, self._stop) as is_alone:
            if is_alone:
                began = time.monotonic()
                await self._try(suspicious, began + _TURN, is_alone=True)
                self._failures = 0
        if is_alone:
            return max(time.monotonic() - began, 0.01)
        self._failures += 1
        if self._failures < len(_PATIENCE):
            return max(time.monotonic() - began, 0.01)
        # Some handler takes long, or waits for something. Others do not stand still for it, nor do suspects.
        await self._try(suspicious, math.inf, is_alone=False)
        return _LOOK

    async def _try(self, suspicious: Sequence[Suspicious], until: float, *, is_alone: bool) -> None:
        while suspicious and time.monotonic() < until and not self._stop.is_set():
            suspicious = [one for one in suspicious if await one.try_suspects(is_alone=is_alone)]
