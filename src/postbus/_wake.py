"""Wake-ups: consumers learn of new messages without asking all the time.

Where nobody has to wait for it, the commit that publishes rings by itself, with a NOTIFY. Otherwise the publishing
process rings after its commit: straight to the consumers of its own, and for all others through the database with
one NOTIFY, however many messages were published since the last one. Nothing depends on a ring: who misses it finds
the message by polling.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

from postbus._connect import connect
from postbus._log import event
from postbus._log_store import SERVER_SINCE_CRASH
from postbus._loop import Backoff, pause
from postbus._queue_store import RING
from postbus._store import Store
from postbus._translate import DRIVER_ERRORS, translate
from postbus._watch import look_now
from postbus.errors import DatabaseUnavailable, PostbusError

CHANNEL = "postbus"
_STILL_THERE = 60.0  # seconds between two looks at whether the listening connection still lives
_SCOPES = 0  # rung for, instead of a topic, when a topic has come into somebody's scope
_APART = 0.001  # seconds between two rings through the database, in which further ones are gathered


@lru_cache(maxsize=10_000)
def topic_id(name: str) -> int:
    """The same as the SQL function postbus.topic_id."""
    return int.from_bytes(hashlib.md5(name.encode(), usedforsecurity=False).digest()[:8], "big", signed=True)


class Bell(Protocol):
    """Is told that something may have happened: an event, or what acts on it."""

    def set(self) -> None: ...


class TimedBell:
    """A bell that one task waits for, for a limited time. On the way of each message, so without tasks and scopes."""

    def __init__(self) -> None:
        self.rung_at = 0.0
        """When it rang last (monotonic)."""
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self.rung_at = time.monotonic()
        self._is_set = True
        self._wake()

    def clear(self) -> None:
        self._is_set = False

    async def rings_within(self, seconds: float) -> bool:
        """Wait for it. Returns whether it rang, or had rung."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._is_set

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Bells:
    """The bells that this process's consumers wait for, by topic, for as long as they do."""

    def __init__(self) -> None:
        self._events: defaultdict[int, set[weakref.ref[Bell]]] = defaultdict(set)

    def add(self, topic: str) -> TimedBell:
        bell = TimedBell()
        self.hang(topic, bell)
        return bell

    def hang(self, topic: str, bell: Bell) -> None:
        """Ring a bell of the caller's own for a topic, for as long as the caller keeps it."""
        self._hang(topic_id(topic), bell)

    def add_for_scopes(self) -> asyncio.Event:
        """Rung when a topic has come into the scope of some group."""
        bell = asyncio.Event()
        self.hang_for_scopes(bell)
        return bell

    def hang_for_scopes(self, bell: Bell) -> None:
        """The same for a bell of the caller's own."""
        self._hang(_SCOPES, bell)

    def _hang(self, topic: int, bell: Bell) -> None:
        bells = self._events[topic]
        bells.add(weakref.ref(bell, bells.discard))  # a WeakSet takes longer to ring

    def has(self, topic: str) -> bool:
        """Whether anybody waits for messages of a topic here."""
        return bool(self._events.get(topic_id(topic)))

    def ring(self, topic: int) -> None:
        for known in tuple(self._events.get(topic, ())):
            if (bell := known()) is not None:
                bell.set()

    def ring_all(self) -> None:
        for topic in self._events:
            self.ring(topic)


class Doorbell:
    """Rings for topics, from the event loop of the bus."""

    def __init__(self, store: Store, bells: Bells) -> None:
        self._store = store
        self._bells = bells
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._pending: set[int] = set()
        self._ringing: asyncio.Task[None] | None = None

    def ring(self, topic: str, *, commit_rang: bool = False) -> None:
        """Ring for a topic; where the commit has rung for all others, only for consumers of this process."""
        if _running_loop() is self._loop:
            self._ring(topic_id(topic), commit_rang)
        else:  # somebody publishes in another event loop: bells and connections belong to ours
            with suppress(RuntimeError):  # which has ended
                self._loop.call_soon_threadsafe(self._ring, topic_id(topic), commit_rang)

    def _ring(self, topic: int, commit_rang: bool) -> None:
        self._bells.ring(topic)
        if commit_rang:
            return
        self._pending.add(topic)
        if self._ringing is None and not self._is_closed:
            self._ringing = asyncio.create_task(self._ring_through_database(), name="postbus-doorbell")

    async def _ring_through_database(self) -> None:
        try:
            while self._pending:
                topics, self._pending = self._pending, set()
                began = self._loop.time()
                try:
                    await self._store.ring(sorted(topics))
                except PostbusError as error:  # consumers poll
                    event(logging.DEBUG, "doorbell.failed", error=error.message)
                await asyncio.sleep(began + _APART - self._loop.time())
        finally:
            self._ringing = None

    async def close(self) -> None:
        """Ring for all that has been committed."""
        look_now()
        self._is_closed = True
        if self._ringing is not None:
            await self._ringing


class ThreadDoorbell:
    """Rings for topics from threads without an event loop, such as a web worker that uses psycopg.

    Closing is final: what is rung for afterwards, consumers find by polling.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._pending: set[int] = set()
        self._rung = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def ring(self, topic: str) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._pending.add(topic_id(topic))
            if self._thread is None or not self._thread.is_alive():  # it does not live on in a forked child
                self._thread = threading.Thread(target=self._run, name="postbus-doorbell", daemon=True)
                self._thread.start()
        self._rung.set()

    def close(self) -> None:
        """Ring for all that has been committed, and end the thread."""
        look_now()
        with self._lock:
            self._is_closed = True
        self._rung.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        # Waits outside of the event loop: a thread of the loop's executor, unlike this one, would keep the
        # process from ending.
        with asyncio.Runner() as runner:
            conn: Any = None
            while True:
                self._rung.wait()
                self._rung.clear()
                with self._lock:
                    topics, self._pending = self._pending, set()
                    is_closed = self._is_closed
                if topics:
                    conn = runner.run(self._ring(conn, sorted(topics)))
                if is_closed:
                    break
            if conn is not None:
                runner.run(_close(conn))

    async def _ring(self, conn: Any, topics: list[int]) -> Any:
        """Ring on the connection given; on another one if it is lost by now. Returns the one to use next."""
        is_new = conn is None
        try:
            conn = conn or await connect(self._dsn)
            await conn.execute(RING, topics, timeout=10)
            return conn
        except DRIVER_ERRORS as error:
            if conn is not None:
                conn.terminate()
            if not is_new:
                return await self._ring(None, topics)
            event(logging.DEBUG, "doorbell.failed", error=error)  # consumers poll
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


class Listener:
    """Hears the rings of other processes."""

    def __init__(self, dsn: str, bells: Bells, on_lost: Callable[[], None] = lambda: None) -> None:
        self._dsn = dsn
        self._bells = bells
        self._on_lost = on_lost
        """Called when the server has crashed, as far as the connection can tell."""
        self._server: object = None

    async def run(self, stop: asyncio.Event) -> None:
        backoff = Backoff()
        while not stop.is_set():
            try:
                await self._listen(stop, backoff)
            except DRIVER_ERRORS as error:
                if not isinstance(translate(error), DatabaseUnavailable):
                    raise
                await pause(backoff.next(), stop)

    async def _listen(self, stop: asyncio.Event, backoff: Backoff) -> None:
        conn = await connect(self._dsn)
        lost = asyncio.Event()

        tells_crashes = conn.get_server_version().major >= 15

        def was_lost(_: object) -> None:
            lost.set()
            if not tells_crashes:
                self._on_lost()

        try:
            conn.add_termination_listener(was_lost)
            if tells_crashes:  # why a connection ended while it was idle, the driver does not say
                await self._compare(conn)
            await conn.add_listener(CHANNEL, lambda _conn, _pid, _channel, payload: self._hear(payload))
            backoff.reset()
            self._bells.ring_all()  # for what was rung while nobody listened
            while not stop.is_set() and not lost.is_set():
                await pause(_STILL_THERE, stop, lost)
                if not stop.is_set() and not lost.is_set():  # a dead peer says nothing: ask
                    await conn.execute("select 1", timeout=10)
        except Exception:
            if not tells_crashes:
                self._on_lost()
            raise
        finally:
            conn.remove_termination_listener(was_lost)
            conn.terminate()

    async def _compare(self, conn: Any) -> None:
        """Find out whether the server has crashed since the last connection."""
        before, self._server = self._server, await conn.fetchval(f"select {SERVER_SINCE_CRASH}", timeout=10)
        if before not in (None, self._server):
            self._on_lost()

    def _hear(self, payload: object) -> None:
        try:
            topic = int(str(payload))
        except ValueError:  # anybody may notify on the channel
            return
        self._bells.ring(topic)
