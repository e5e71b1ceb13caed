"""The consumers of this process that wait for messages, by topic, and the wakers that wake them."""

from __future__ import annotations

import asyncio
import hashlib
import time
import weakref
from collections import defaultdict
from functools import lru_cache
from typing import Protocol

_SCOPES = 0  # notified, instead of a topic, when a topic has come into the scope of a group


@lru_cache(maxsize=10_000)
def topic_id(name: str) -> int:
    """The id of a topic, as the SQL function postbus.topic_id computes it."""
    return int.from_bytes(hashlib.md5(name.encode(), usedforsecurity=False).digest()[:8], "big", signed=True)


class Waker(Protocol):
    """Is set when there may be new messages: an `asyncio.Event`, or an object that acts at once."""

    def set(self) -> None: ...


class TimedWaker:
    """A waker that one task awaits for a limited time.

    It is on the path of each message, so it makes neither tasks nor cancel scopes.
    """

    def __init__(self) -> None:
        self.woken_at = 0.0
        """The time of the last wake-up (monotonic)."""
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self.woken_at = time.monotonic()
        self._is_set = True
        self._wake()

    def clear(self) -> None:
        self._is_set = False

    async def woken_within(self, seconds: float) -> bool:
        """Wait for a wake-up. Returns whether there was one, now or before."""
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
    """The wakers of this process's consumers by topic. It holds them weakly, so it forgets those that are dropped."""

    def __init__(self) -> None:
        self._events: defaultdict[int, set[weakref.ref[Waker]]] = defaultdict(set)

    def add(self, topic: str) -> TimedWaker:
        """Make a waker for a topic."""
        waker = TimedWaker()
        self.register(topic, waker)
        return waker

    def register(self, topic: str, waker: Waker) -> None:
        """Register a waker of the caller for a topic, for as long as the caller keeps it alive."""
        self._register(topic_id(topic), waker)

    def add_for_scopes(self) -> asyncio.Event:
        """Make an event that is set when a topic has come into the scope of some group."""
        waker = asyncio.Event()
        self.register_for_scopes(waker)
        return waker

    def register_for_scopes(self, waker: Waker) -> None:
        """Register a waker of the caller for the same."""
        self._register(_SCOPES, waker)

    def _register(self, topic: int, waker: Waker) -> None:
        wakers = self._events[topic]
        wakers.add(weakref.ref(waker, wakers.discard))  # a WeakSet takes longer to iterate

    def has(self, topic: str) -> bool:
        """Whether a consumer of this process waits for messages of a topic."""
        return bool(self._events.get(topic_id(topic)))

    def wake(self, topic: int) -> None:
        """Wake the consumers of the topic that has this id."""
        for known in tuple(self._events.get(topic, ())):
            if (waker := known()) is not None:
                waker.set()

    def wake_all(self) -> None:
        """Wake the consumers of all topics."""
        for topic in self._events:
            self.wake(topic)
