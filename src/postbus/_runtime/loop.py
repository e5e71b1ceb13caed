"""The one loop: it calls a tick again and again, and goes on while the database is away."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from postbus._runtime.log_events import event
from postbus.errors import DatabaseUnavailable

T = TypeVar("T")
Tick = Callable[[], Awaitable[float | None]]

_FIRST_WAIT = 0.05
_LONGEST_WAIT = 5.0


class Stopped(Exception):
    """The process was stopped while it waited for the database."""


class Backoff:
    """Waits while the database is away: longer each time, with jitter."""

    def __init__(self) -> None:
        self._wait = _FIRST_WAIT

    def reset(self) -> None:
        self._wait = _FIRST_WAIT

    def next(self) -> float:
        wait = self._wait * random.uniform(0.8, 1.2)
        self._wait = min(self._wait * 2, _LONGEST_WAIT)
        return wait


async def pause(seconds: float, *events: asyncio.Event) -> None:
    """Wait until the time is over or one of the events is set."""
    if any(event.is_set() for event in events):
        return
    if not events:
        await asyncio.sleep(seconds)
        return
    if len(events) == 1:  # one event needs no tasks
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await events[0].wait()
        return
    waiters = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()


async def patiently(ask: Callable[[], Awaitable[T]], *, stop: asyncio.Event | None = None) -> T:
    """Ask the database. While it is away, wait and ask again. Raises `Stopped` if `stop` is set meanwhile."""
    backoff = Backoff()
    while True:
        try:
            return await ask()
        except DatabaseUnavailable as error:
            await pause(backoff.next(), *([stop] if stop is not None else []))
            if stop is not None and stop.is_set():
                raise Stopped from error


async def repeat(
    tick: Tick, *, name: str, every: float, stop: asyncio.Event, wake: asyncio.Event | None = None
) -> None:
    """Call `tick` every `every` seconds, or after the seconds that it returns, or when `wake` is set.

    Setting `stop` ends the loop. A tick that cannot reach the database is repeated with backoff. Any other error ends
    the loop, and with it the worker: a bug must not be retried in silence.
    """
    backoff = Backoff()
    while not stop.is_set():
        if wake is not None:  # before the tick, not after: a wake-up during the tick must lead to another one
            wake.clear()
        try:
            asked = await tick()
            backoff.reset()
            wait = every if asked is None else asked
        except DatabaseUnavailable as error:
            wait = backoff.next()
            event(logging.WARNING, "database.away", loop=name, retry_in=f"{wait:.2f}s", error=error.message)
        await pause(wait * random.uniform(0.9, 1.1), stop, *([wake] if wake is not None else []))
