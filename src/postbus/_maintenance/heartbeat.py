"""Heartbeats: a process shows that it is alive, and that somebody works for its groups.

They go over connections of their own, so that neither a full pool nor a slow statement delays them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import socket
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from postbus._db.store import Store
from postbus._runtime.log_events import event
from postbus.errors import DatabaseUnavailable
from postbus.group import Counts, Group

T = TypeVar("T")

CONNECTIONS = 3  # one for the process, one for its groups, one to prolong leases: none waits for another
TELL_COUNTS = 10.0  # seconds
_INTERVAL = 10.0  # seconds between heartbeats of the process, unless lanes are lost sooner
_TIMEOUT = 5.0  # seconds for each
_LOOK = 1.0  # seconds, at most, between looks at what is due
_TOO_MANY_FAILURES = 10


class ProcessHeartbeat:
    """Shows that this process is alive, and what it consumes."""

    def __init__(self, store: Store, name: str, topics: Sequence[str], leases: Callable[[], Iterable[timedelta]]):
        self._store = store
        self._name = name
        self._topics = topics
        self._leases = leases
        self._sent_at = -math.inf
        self._is_good_until = -math.inf
        self._absent_until = -math.inf

    async def tick(self) -> float:
        """Send one if it is due: more often where lanes are lost sooner, which a group that starts may change."""
        lease = min((one.total_seconds() for one in self._leases()), default=math.inf)
        every = min(_INTERVAL, lease / 3)
        now = time.monotonic()
        if now >= self._sent_at + every:
            await _in_time(self._store.heartbeat(self._name, socket.gethostname(), os.getpid(), self._topics))
            if now > self._is_good_until:
                self._absent_until = time.monotonic()
            self._sent_at = now
        self._is_good_until = self._sent_at + lease
        return _until(self._sent_at + every)

    def was_seen_ever_since(self, time_before: float) -> bool:
        """Whether nobody can have taken our lanes since a time (monotonic), as far as this process knows."""
        return self._absent_until <= time_before and time.monotonic() <= self._is_good_until

    async def sign_off(self) -> None:
        await self._store.sign_off(self._name)


class _Pulse:
    """When a group's next heartbeat is due."""

    def __init__(self, interval: timedelta) -> None:
        self.interval = interval.total_seconds()
        self.was_sent()

    def was_sent(self, jitter: float = 1.0) -> None:
        self.due_at = time.monotonic() + self.interval * jitter

    def may_go_along(self, now: float, interval: float) -> bool:
        """Whether it is due soon: so groups that start one after the other come together within an interval.

        In less than half of its interval, or of that of another group which is due.
        """
        return now >= self.due_at - min(self.interval, interval) / 2


class GroupHeartbeats:
    """Shows that groups have a process that works for them, each as often as its topic says."""

    def __init__(
        self,
        store: Store,
        *,
        fell_silent: Callable[[], None],
        is_heard: Callable[[], None],
    ) -> None:
        self._store = store
        self._fell_silent = fell_silent
        self._is_heard = is_heard
        self._pulses: dict[int, _Pulse] = {}
        self._failures = 0
        self._sending = asyncio.Lock()

    def add(self, subscription_id: int, interval: timedelta) -> None:
        """From now on; subscribing was the first heartbeat."""
        self._pulses[subscription_id] = _Pulse(interval)

    async def remove(self, subscription_ids: Iterable[int]) -> None:
        """From now on send none, and none is under way: it would end a stop that is told after this."""
        for one in subscription_ids:
            self._pulses.pop(one, None)
        async with self._sending:
            pass

    async def tick(self) -> float:
        """Send what is due, in one statement. Returns after how many seconds to look again."""
        now = time.monotonic()
        due = [pulse.interval for pulse in self._pulses.values() if now >= pulse.due_at]
        if due:
            async with self._sending:
                await self._send(
                    {one: pulse for one, pulse in self._pulses.items() if pulse.may_go_along(now, min(due))}
                )
        next_at = min((pulse.due_at for pulse in self._pulses.values()), default=now + _LOOK)
        return _until(next_at)

    async def _send(self, due: dict[int, _Pulse]) -> None:
        try:
            await _in_time(self._store.group_heartbeat(list(due), []))
        except DatabaseUnavailable as error:
            self._failures += 1
            if self._failures == _TOO_MANY_FAILURES:
                event(logging.ERROR, "heartbeats.failed", failures=self._failures, error=error.message,
                      groups="consume nothing here until one succeeds")  # fmt: skip
                self._fell_silent()
            raise
        if self._failures >= _TOO_MANY_FAILURES:
            event(logging.WARNING, "heartbeats.succeeded", failures=self._failures, groups="consume again")
            self._is_heard()
        self._failures = 0
        jitter = random.uniform(0.8, 1.0)  # never late, and the same for all, so that they stay together
        for pulse in due.values():
            pulse.was_sent(jitter)


class MemberCounts:
    """Tells what members of groups have done: only of those who have done something since the last time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def tell(self, groups: Mapping[int, Group]) -> None:
        """Of groups by the ids of their subscriptions."""
        counts: list[tuple[int, str, int, int, int, int, float]] = []
        told: list[tuple[Counts, Counts]] = []
        for subscription_id, group in groups.items():
            by_name: defaultdict[str, list[tuple[Counts, Counts]]] = defaultdict(list)
            for name, have, known in group.unreported():
                by_name[name].append((have, known))
            for name, parts in by_name.items():
                if any(have != known for have, known in parts):
                    processed = sum(have.processed - known.processed for have, known in parts)
                    failed = sum(have.failed - known.failed for have, known in parts)
                    filtered = sum(have.filtered - known.filtered for have, known in parts)
                    in_flight = sum(have.in_flight for have, _ in parts)
                    seconds = sum(have.handling_seconds - known.handling_seconds for have, known in parts)
                    counts.append((subscription_id, name, processed, failed, filtered, in_flight, seconds))
                    told += [(known, replace(have)) for have, known in parts]
        if counts:
            await self._store.group_heartbeat([], counts)
        for known, now in told:  # what was done meanwhile is told next time
            known.become(now)


def _until(due_at: float) -> float:
    """Seconds to wait for it, but not so long that a group which starts meanwhile is overlooked."""
    return max(0.01, min(_LOOK, due_at - time.monotonic()))


async def _in_time(asked: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await asked
    except TimeoutError as error:
        raise DatabaseUnavailable(
            f"a heartbeat was not answered within {_TIMEOUT:.0f} s", remedy="it is sent again by itself"
        ) from error
