"""Listening for wake-ups while pops wait: one connection for all pops of a bus."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from postbus._db.store import Store
from postbus._runtime.log_events import event
from postbus._wakeup.listener import Listener
from postbus._wakeup.waiters import Wakers

_LINGER = 30.0  # seconds that it goes on listening after the last pop that waited


class SharedListener:
    """Listens while at least one pop waits, and for a while after that."""

    def __init__(self, dsn: str, store: Store, wakers: Wakers) -> None:
        self._dsn = dsn
        self._wakers = wakers
        # Behind a pooler, LISTEN would stay with a session that others use next.
        self._is_possible = not store.is_pooled
        self._waiting = 0
        self._listening: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the block runs."""
        self._waiting += 1
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._is_possible and (self._listening is None or self._listening.done()):
            listener = Listener(self._dsn, self._wakers).run(asyncio.Event())
            self._listening = asyncio.create_task(listener, name="postbus-listener")
            self._listening.add_done_callback(_log_failure)
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0 and self._listening is not None:
                self._ending = asyncio.get_running_loop().call_later(_LINGER, self._listening.cancel)

    async def close(self) -> None:
        """Stop listening."""
        if self._ending is not None:
            self._ending.cancel()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)


def _log_failure(listening: asyncio.Task[None]) -> None:
    if not listening.cancelled() and (error := listening.exception()) is not None:
        event(logging.WARNING, "wake.by_polling", reason=error)
