"""Tasks and signals: how a process waits for its tasks, learns of their failures, and is told to end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from postbus.errors import PostbusError


def start_all(*coroutines: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """Start each coroutine as a task of its name."""
    return [asyncio.create_task(one, name=f"postbus-{getattr(one, '__qualname__', one)}") for one in coroutines]


async def cancel_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended. Their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(
    *ends: Coroutine[Any, Any, Any], beside: Sequence[asyncio.Task[None]], growing: Sequence[asyncio.Task[None]] = ()
) -> None:
    """Wait until one of `ends` returns, and cancel the others.

    Raises the error of an end, or of a task in `beside` or `growing`. The caller may add tasks to `growing` meanwhile.
    """
    ending = [asyncio.create_task(end) for end in ends]
    try:
        while not any(end.done() for end in ending):
            running = [task for task in (*ending, *beside, *growing) if not task.done()]
            # A task that joins `growing` while we wait is noticed after the timeout.
            await asyncio.wait(running, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            for task in (*ending, *beside, *growing):
                if task.done():
                    task.result()
    finally:
        await cancel_all(ending)


async def hold_cancellation(work: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until work is done, even if the caller is cancelled. Returns the cancellation, for the caller to raise."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def attempt(work: Coroutine[Any, Any, None], *, seconds: float) -> None:
    """Do something that may fail, and that may take no longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except (PostbusError, TimeoutError):
        pass


class FirstFailure:
    """Hands the first error of any watched task to the one who waits for it."""

    def __init__(self) -> None:
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def watch(self, task: asyncio.Task[None]) -> None:
        task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def wait(self) -> None:
        """Wait for the error of a task, and raise it. The next call waits for the next error. Returns after `close`."""
        try:
            await asyncio.shield(self._failed)
        except asyncio.CancelledError:
            if not self._failed.cancelled():
                raise
        except Exception:
            self._failed = asyncio.get_running_loop().create_future()
            raise

    def close(self) -> None:
        if not self._failed.done():
            self._failed.cancel()


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGINT and SIGTERM. Outside of the main thread, no signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            asyncio.get_running_loop().remove_signal_handler(number)
