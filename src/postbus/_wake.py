"""Wake-ups: consumers learn of new messages without asking all the time.

The publishing process rings after its commit. Rings for the same process go straight to its consumers;
for all others they go through the database as one NOTIFY, however many messages were published since the
last one. Nothing depends on a ring: who misses it finds the message by polling.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections import defaultdict
from functools import lru_cache
from typing import Any

import asyncpg

from postbus._log import event
from postbus._loop import Backoff, pause
from postbus._store import Store, translate
from postbus.errors import DatabaseUnavailable, PostbusError

CHANNEL = "postbus"
_APART = 0.001  # seconds between two rings through the database, in which further ones are gathered


@lru_cache(maxsize=10_000)
def topic_id(name: str) -> int:
    """The same as the SQL function postbus.topic_id."""
    return int.from_bytes(hashlib.md5(name.encode(), usedforsecurity=False).digest()[:8], "big", signed=True)


class Bells:
    """The events that this process's consumers wait on, by topic."""

    def __init__(self) -> None:
        self._events: defaultdict[int, list[asyncio.Event]] = defaultdict(list)

    def add(self, topic: str) -> asyncio.Event:
        bell = asyncio.Event()
        self._events[topic_id(topic)].append(bell)
        return bell

    def ring(self, topic: int) -> None:
        for bell in self._events.get(topic, ()):
            bell.set()

    def ring_all(self) -> None:
        for topic in self._events:
            self.ring(topic)


class Doorbell:
    """Rings for topics, from the event loop of the bus."""

    def __init__(self, store: Store, bells: Bells) -> None:
        self._store = store
        self._bells = bells
        self._pending: set[int] = set()
        self._ringing: asyncio.Task[None] | None = None

    def ring(self, topic: str) -> None:
        topic_number = topic_id(topic)
        self._bells.ring(topic_number)
        self._pending.add(topic_number)
        if self._ringing is None:
            self._ringing = asyncio.create_task(self._ring_through_database(), name="postbus-doorbell")

    async def _ring_through_database(self) -> None:
        try:
            while self._pending:
                topics, self._pending = self._pending, set()
                await self._store.ring(sorted(topics))
                await asyncio.sleep(_APART)
        except PostbusError as error:  # consumers poll
            event(logging.DEBUG, "doorbell.failed", error=error.message)
        finally:
            self._ringing = None

    async def close(self) -> None:
        if self._ringing is not None:
            await self._ringing


class ThreadDoorbell:
    """Rings for topics from threads without an event loop, such as a web worker that uses psycopg."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._pending: set[int] = set()
        self._rung = threading.Event()
        self._thread: threading.Thread | None = None

    def ring(self, topic: str) -> None:
        with self._lock:
            self._pending.add(topic_id(topic))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="postbus-doorbell", daemon=True)
                self._thread.start()
        self._rung.set()

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        self._rung.set()
        if thread is not None:
            thread.join(timeout=5)

    def _run(self) -> None:
        asyncio.run(self._ring_through_database())

    async def _ring_through_database(self) -> None:
        conn: Any = None
        while await asyncio.to_thread(self._rung.wait):
            self._rung.clear()
            with self._lock:
                topics, self._pending = self._pending, set()
                is_closed = self._thread is None
            try:
                if topics:
                    conn = conn if conn and not conn.is_closed() else await asyncpg.connect(self._dsn, timeout=10)
                    await conn.execute("select postbus.ring($1)", sorted(topics))
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                event(logging.DEBUG, "doorbell.failed", error=error)
            if is_closed:
                break
        if conn is not None:
            await conn.close(timeout=1)


class Listener:
    """Hears the rings of other processes."""

    def __init__(self, dsn: str, bells: Bells) -> None:
        self._dsn = dsn
        self._bells = bells

    async def run(self, stop: asyncio.Event) -> None:
        backoff = Backoff()
        while not stop.is_set():
            try:
                await self._listen(stop, backoff)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
                if not isinstance(translate(error), DatabaseUnavailable):
                    raise
                await pause(backoff.next(), stop)

    async def _listen(self, stop: asyncio.Event, backoff: Backoff) -> None:
        conn: Any = await asyncpg.connect(self._dsn, timeout=10)
        lost = asyncio.Event()
        try:
            conn.add_termination_listener(lambda _: lost.set())
            await conn.add_listener(CHANNEL, lambda _conn, _pid, _channel, payload: self._hear(payload))
            backoff.reset()
            self._bells.ring_all()  # for what was rung while nobody listened
            while not stop.is_set() and not lost.is_set():
                await pause(60, stop, lost)
        finally:
            conn.terminate()

    def _hear(self, payload: object) -> None:
        if isinstance(payload, str) and payload.lstrip("-").isdigit():
            self._bells.ring(int(payload))
