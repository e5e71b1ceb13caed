"""Sending wake-ups, so that consumers learn of new messages without polling all the time.

If no other transaction has to wait for it, the publishing transaction itself sends a NOTIFY with its commit. Otherwise
the publishing process sends the wake-up after the commit: directly to its own consumers, and to all others by one
NOTIFY for all messages since the last one. Nothing depends on a wake-up: a consumer that misses it finds the message by
polling.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import Any

from postbus._db.connect import connect
from postbus._db.error_map import DRIVER_ERRORS
from postbus._db.statements.queue import NOTIFY
from postbus._db.store import Store
from postbus._drivers.transaction_end import check_now
from postbus._runtime.log_events import event
from postbus._wakeup.waiters import Wakers, topic_id
from postbus.errors import PostbusError

_INTERVAL = 0.001  # seconds between two NOTIFYs, in which further wake-ups are gathered


class Notifier:
    """Sends wake-ups from the event loop of the bus."""

    def __init__(self, store: Store, wakers: Wakers) -> None:
        self._store = store
        self._wakers = wakers
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._pending: set[int] = set()
        self._notifying: asyncio.Task[None] | None = None

    def notify(self, topic: str, *, commit_notified: bool = False) -> None:
        """Wake the consumers of a topic; only those of this process if the commit has notified all others."""
        if _running_loop() is self._loop:
            self._notify(topic_id(topic), commit_notified)
        else:  # called in another event loop: wakers and connections belong to the bus's own
            with suppress(RuntimeError):  # the bus's loop has ended
                self._loop.call_soon_threadsafe(self._notify, topic_id(topic), commit_notified)

    def _notify(self, topic: int, commit_notified: bool) -> None:
        self._wakers.wake(topic)
        if commit_notified:
            return
        self._pending.add(topic)
        if self._notifying is None and not self._is_closed:
            self._notifying = asyncio.create_task(self._notify_through_database(), name="postbus-notifier")

    async def _notify_through_database(self) -> None:
        try:
            while self._pending:
                topics, self._pending = self._pending, set()
                began = self._loop.time()
                try:
                    await self._store.notify(sorted(topics))
                except PostbusError as error:  # consumers poll
                    event(logging.DEBUG, "notifier.failed", error=error.message)
                await asyncio.sleep(began + _INTERVAL - self._loop.time())
        finally:
            self._notifying = None

    async def close(self) -> None:
        """Send the wake-ups for all that has been committed."""
        check_now()
        self._is_closed = True
        if self._notifying is not None:
            await self._notifying


class ThreadNotifier:
    """Sends wake-ups from threads without an event loop, such as a web worker that uses psycopg.

    Closing is final: consumers find messages that are published later by polling.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._pending: set[int] = set()
        self._has_work = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def notify(self, topic: str) -> None:
        """Wake the consumers of a topic."""
        with self._lock:
            if self._is_closed:
                return
            self._pending.add(topic_id(topic))
            if self._thread is None or not self._thread.is_alive():  # a forked child does not inherit the thread
                self._thread = threading.Thread(target=self._run, name="postbus-notifier", daemon=True)
                self._thread.start()
        self._has_work.set()

    def close(self) -> None:
        """Send the wake-ups for all that has been committed, and end the thread."""
        check_now()
        with self._lock:
            self._is_closed = True
        self._has_work.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        # Wait outside of the event loop: a thread of its executor would keep the process from ending, but this one,
        # a daemon, does not.
        with asyncio.Runner() as runner:
            conn: Any = None
            while True:
                self._has_work.wait()
                self._has_work.clear()
                with self._lock:
                    topics, self._pending = self._pending, set()
                    is_closed = self._is_closed
                if topics:
                    conn = runner.run(self._notify(conn, sorted(topics)))
                if is_closed:
                    break
            if conn is not None:
                runner.run(_close(conn))

    async def _notify(self, conn: Any, topics: list[int]) -> Any:
        """Notify on the given connection, or on a new one if that is lost. Returns the one to use next."""
        is_new = conn is None
        try:
            conn = conn or await connect(self._dsn)
            await conn.execute(NOTIFY, topics, timeout=10)
            return conn
        except DRIVER_ERRORS as error:
            if conn is not None:
                conn.terminate()
            if not is_new:
                return await self._notify(None, topics)
            event(logging.DEBUG, "notifier.failed", error=error)  # consumers poll
            return None


async def _close(conn: Any) -> None:
    try:
        await conn.close(timeout=1)
    except DRIVER_ERRORS:
        conn.terminate()


def is_in_loop() -> bool:
    """Whether an event loop runs in this thread."""
    return _running_loop() is not None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
