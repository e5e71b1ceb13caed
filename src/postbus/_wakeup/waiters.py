"""Wakers: what a waiting consumer is woken by, and which consumers of this process wait for which topic."""

from __future__ import annotations

import asyncio
import hashlib
import time
import weakref
from collections import defaultdict
from functools import lru_cache
from typing import Protocol

_SCOPES = 0  # rung for, instead of a topic, when a topic has come into somebody's scope


@lru_cache(maxsize=10_000)
def topic_id(name: str) -> int:
    """The same as the SQL function postbus.topic_id."""
    return int.from_bytes(hashlib.md5(name.encode(), usedforsecurity=False).digest()[:8], "big", signed=True)


class Waker(Protocol):
    """Is told that something may have happened: an event, or what acts on it."""

    def set(self) -> None: ...


class TimedWaker:
    """A waker that one task waits for, for a limited time. On the way of each message, so without tasks and scopes."""

    def __init__(self) -> None:
        self.woken_at = 0.0
        """When it rang last (monotonic)."""
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self.woken_at = time.monotonic()
        self._is_set = True
        self._wake()

    def clear(self) -> None:
        self._is_set = False

    async def woken_within(self, seconds: float) -> bool:
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


class Wakers:
    """The wakers that this process's consumers wait for, by topic, for as long as they do."""

    def __init__(self) -> None:
        self._events: defaultdict[int, set[weakref.ref[Waker]]] = defaultdict(set)

    def add(self, topic: str) -> TimedWaker:
        waker = TimedWaker()
        self.register(topic, waker)
        return waker

    def register(self, topic: str, waker: Waker) -> None:
        """Ring a waker of the caller's own for a topic, for as long as the caller keeps it."""
        self._register(topic_id(topic), waker)

    def add_for_scopes(self) -> asyncio.Event:
        """Rung when a topic has come into the scope of some group."""
        waker = asyncio.Event()
        self.register_for_scopes(waker)
        return waker

    def register_for_scopes(self, waker: Waker) -> None:
        """The same for a waker of the caller's own."""
        self._register(_SCOPES, waker)

    def _register(self, topic: int, waker: Waker) -> None:
        wakers = self._events[topic]
        wakers.add(weakref.ref(waker, wakers.discard))  # a WeakSet takes longer to ring

    def has(self, topic: str) -> bool:
        """Whether anybody waits for messages of a topic here."""
        return bool(self._events.get(topic_id(topic)))

    def wake(self, topic: int) -> None:
        for known in tuple(self._events.get(topic, ())):
            if (waker := known()) is not None:
                waker.set()

    def wake_all(self) -> None:
        for topic in self._events:
            self.wake(topic)
