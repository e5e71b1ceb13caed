"""Isolation: handlers of suspects run while no other handler of the process does.

A message that was in hand with others when its process ended is a suspect: it may have ended the process. It is tried
alone, so that it is charged an attempt only if it ends the process by itself. If other handlers run for too long, it is
tried beside them and is charged nothing. If it takes long itself, other handlers go on beside it. From then on it is
charged nothing, and the next time it is suspected it gets longer.
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
from postbus._runtime.tasks import cancel_all

_INTERVAL = 1.0  # seconds between two searches for suspects
_TURN = 1.0  # seconds for which suspects are tried, one after the other, before other handlers go on
_PATIENCE = (1.0, 2.0, 4.0, 8.0)  # seconds for which no handler begins until those that run have ended, each time
_ALONE_FOR = (15.0, 30.0, 60.0, 120.0, 240.0)  # seconds that a suspect is alone, by how often that was not enough

_is_waiting: ContextVar[asyncio.Event | None] = ContextVar("postbus_is_waiting", default=None)


def will_take_long() -> None:
    """Called by a handler before it waits for something: if it runs alone, other handlers may go on now."""
    if (is_waiting := _is_waiting.get()) is not None:
        is_waiting.set()


class RunningCalls:
    """Counts the handler calls that run in this process, and holds new ones back while a suspect runs alone.

    Every caller of a handler does `while is_closed: await reopened()`, `running += 1`, and in the end `ended()`.
    """

    __slots__ = ("_ended", "_reopened", "_turn", "is_closed", "outlasting", "running")

    def __init__(self) -> None:
        self.running = 0
        self.outlasting = 0
        """How many of these were alone, and took too long for that."""
        self.is_closed = False
        """Whether no call may begin."""
        self._reopened = asyncio.Event()
        self._ended = asyncio.Event()
        self._turn = asyncio.Lock()

    async def reopened(self) -> None:
        """Wait until calls may begin again."""
        await self._reopened.wait()

    def ended(self) -> None:
        """A call has ended."""
        self.running -= 1
        if self.is_closed:
            self._ended.set()

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        """Wait until a call may begin, and count it while the block runs."""
        while self.is_closed:
            await self.reopened()
        self.running += 1
        try:
            yield
        finally:
            self.ended()

    @asynccontextmanager
    async def alone(self, patience: float, stop: asyncio.Event) -> AsyncIterator[bool]:
        """Let no call begin in the block, and wait up to `patience` seconds for the others to end.

        Yields whether they did.
        """
        async with self._turn:
            self.is_closed = True
            self._reopened.clear()
            try:
                deadline = time.monotonic() + patience
                while self.running and not stop.is_set() and (left := deadline - time.monotonic()) > 0:
                    self._ended.clear()
                    await pause(left, self._ended, stop)
                yield not self.running and not stop.is_set()
            finally:
                self.is_closed = False
                self._reopened.set()


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, RunningCalls] = WeakKeyDictionary()


def running_calls() -> RunningCalls:
    """The handler calls of this event loop, for all buses. A program has one loop, so these are all of the process."""
    loop = asyncio.get_running_loop()
    if loop not in _by_loop:
        _by_loop[loop] = RunningCalls()
    return _by_loop[loop]


class Suspect(NamedTuple):
    """Messages that were claimed to be tried alone."""

    outlasted: int
    """How often they had the process to themselves, and not for long enough."""
    handle: Callable[[], Coroutine[Any, Any, None]]
    """Calls the handler, and waits until the messages are settled."""
    end_isolation: Callable[[], Awaitable[None]]
    """Tells the database that the messages are not alone from now on. Comes before other handlers begin."""


class SuspectSource(Protocol):
    """A consumer that may have suspects."""

    async def claim_suspect(self) -> Suspect | None:
        """Claim the next suspect. It is handled at once, while no other handler runs."""
        ...

    async def try_beside(self) -> None:
        """Handle suspects like other messages, because other handlers run."""
        ...


class SuspectRunner:
    """Tries suspects alone. Then other handlers have the process for at least as long as the suspects had it."""

    def __init__(self, find: Callable[[], Awaitable[Sequence[SuspectSource]]], stop: asyncio.Event) -> None:
        self._find = find
        """Finds the consumers that have suspects."""
        self._stop = stop
        self._failures = 0
        """How often it waited in vain for other handlers to end."""
        self._outlasting: set[asyncio.Task[None]] = set()
        """Calls that took too long to stay alone."""

    async def tick(self) -> float:
        """Try suspects for a while, if there are any. Returns after how many seconds to call again."""
        for call in [one for one in self._outlasting if one.done()]:
            self._outlasting.remove(call)
            call.result()  # raises only if we have a bug
        sources = await self._find()
        if not sources:
            self._failures = 0
            return _INTERVAL
        if running_calls().outlasting:
            await self._try_beside(sources)
            return _INTERVAL
        began = time.monotonic()
        patience = _PATIENCE[self._failures] if self._failures < len(_PATIENCE) else 0.0
        async with running_calls().alone(patience, self._stop) as is_alone:
            if is_alone:
                began = time.monotonic()
                await self._try_alone(sources)
                self._failures = 0
        if is_alone:
            return max(time.monotonic() - began, 0.01)
        self._failures += 1
        if self._failures < len(_PATIENCE):
            return max(time.monotonic() - began, 0.01)
        # Some handler takes long, or waits for something. Neither other messages nor suspects stand still for it.
        await self._try_beside(sources)
        return _INTERVAL

    async def drain(self) -> None:
        """Wait for the calls that go on beside others."""
        await asyncio.gather(*self._outlasting)

    async def abort(self) -> None:
        """Cancel the calls that go on beside others."""
        await cancel_all(list(self._outlasting))

    async def _try_beside(self, sources: Sequence[SuspectSource]) -> None:
        for one in sources:
            await one.try_beside()

    async def _try_alone(self, sources: Sequence[SuspectSource]) -> None:
        until = time.monotonic() + _TURN
        waiting = deque(sources)
        while waiting and time.monotonic() < until and not self._stop.is_set():
            suspect = await waiting[0].claim_suspect()
            if suspect is None:
                waiting.popleft()
            elif await self._ends_alone(suspect):
                waiting.rotate(-1)
            else:
                return

    async def _ends_alone(self, suspect: Suspect) -> bool:
        """Handle a suspect. Returns False if it goes on beside others, because it takes long or waits for something."""
        has_ended, is_waiting = asyncio.Event(), asyncio.Event()
        outer = _is_waiting.set(is_waiting)
        call = asyncio.create_task(suspect.handle(), name="postbus-suspect")
        _is_waiting.reset(outer)
        call.add_done_callback(lambda _: has_ended.set())
        tasks = [call]
        try:
            seconds = _ALONE_FOR[min(suspect.outlasted, len(_ALONE_FOR) - 1)]
            await pause(seconds, has_ended, is_waiting, self._stop)
            if not call.done():
                ending: asyncio.Task[None] = asyncio.create_task(patiently(suspect.end_isolation))
                tasks.append(ending)
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not call.done():
                    ending.result()
                    self._continue_beside(call)
                    return False
        finally:
            await cancel_all([task for task in tasks if task not in self._outlasting])
        call.result()
        return True

    def _continue_beside(self, call: asyncio.Task[None]) -> None:
        calls = running_calls()
        calls.running += 1
        calls.outlasting += 1
        self._outlasting.add(call)

        def has_ended(_: object) -> None:
            calls.outlasting -= 1
            calls.ended()

        call.add_done_callback(has_ended)
