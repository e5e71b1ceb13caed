"""Heartbeats: a process shows that it is alive, and that its groups have a consumer.

They have connections of their own, so that neither a full pool nor a slow statement delays them.
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

CONNECTIONS = 3  # for the process, for its groups, and to extend leases: none waits for another
WRITE_COUNTS = 10.0  # seconds
_INTERVAL = 10.0  # seconds between heartbeats of the process, at most
_TIMEOUT = 5.0  # seconds for each heartbeat
_LONGEST_WAIT = 1.0  # seconds between two checks of what is due
_TOO_MANY_FAILURES = 10


class ProcessHeartbeat:
    """Shows that this process is alive, and which topics it consumes."""

    def __init__(self, store: Store, name: str, topics: Sequence[str], leases: Callable[[], Iterable[timedelta]]):
        self._store = store
        self._name = name
        self._topics = topics
        self._leases = leases
        self._sent_at = -math.inf
        self._is_good_until = -math.inf
        self._absent_until = -math.inf

    async def tick(self) -> float:
        """Send a heartbeat if it is due. Returns after how many seconds to call again.

        A third of the shortest lane lease bounds the interval. A group that starts may shorten it.
        """
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
        """Whether no other process can have taken our lanes since a time (monotonic), as far as this one knows."""
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

    def is_due_soon(self, now: float, interval: float) -> bool:
        """Whether it may be sent together with a heartbeat that is due and has `interval`.

        It may if it is due within half of its own interval, or half of the other one. So groups that started one after
        the other come to share their heartbeats.
        """
        return now >= self.due_at - min(self.interval, interval) / 2


class GroupHeartbeats:
    """Shows that groups have a consumer, each as often as its topic says."""

    def __init__(
        self,
        store: Store,
        *,
        on_failing: Callable[[], None],
        on_recovered: Callable[[], None],
    ) -> None:
        self._store = store
        self._on_failing = on_failing
        """Called when so many heartbeats have failed that groups may be taken for DEAD."""
        self._on_recovered = on_recovered
        """Called when a heartbeat succeeds after that."""
        self._pulses: dict[int, _Pulse] = {}
        self._failures = 0
        self._sending = asyncio.Lock()

    def add(self, subscription_id: int, interval: timedelta) -> None:
        """Send heartbeats for a group from now on. Subscribing was the first one."""
        self._pulses[subscription_id] = _Pulse(interval)

    async def remove(self, subscription_ids: Iterable[int]) -> None:
        """Send no more heartbeats for groups. When this returns, none is under way.

        A heartbeat after the stop of a group would undo that stop.
        """
        for one in subscription_ids:
            self._pulses.pop(one, None)
        async with self._sending:
            pass

    async def tick(self) -> float:
        """Send the heartbeats that are due, in one statement. Returns after how many seconds to call again."""
        now = time.monotonic()
        due = [pulse.interval for pulse in self._pulses.values() if now >= pulse.due_at]
        if due:
            async with self._sending:
                await self._send(
                    {one: pulse for one, pulse in self._pulses.items() if pulse.is_due_soon(now, min(due))}
                )
        next_at = min((pulse.due_at for pulse in self._pulses.values()), default=now + _LONGEST_WAIT)
        return _until(next_at)

    async def _send(self, due: dict[int, _Pulse]) -> None:
        try:
            await _in_time(self._store.group_heartbeat(list(due), []))
        except DatabaseUnavailable as error:
            self._failures += 1
            if self._failures == _TOO_MANY_FAILURES:
                event(logging.ERROR, "heartbeats.failed", failures=self._failures, error=error.message,
                      groups="consume nothing here until one succeeds")  # fmt: skip
                self._on_failing()
            raise
        if self._failures >= _TOO_MANY_FAILURES:
            event(logging.WARNING, "heartbeats.succeeded", failures=self._failures, groups="consume again")
            self._on_recovered()
        self._failures = 0
        jitter = random.uniform(0.8, 1.0)  # never late, and the same for all groups, so that they stay together
        for pulse in due.values():
            pulse.was_sent(jitter)


class MemberCounts:
    """Writes the counts of members to the database, for members that have done something since the last write."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, groups: Mapping[int, Group]) -> None:
        """Write the counts of groups. They are given by the ids of their subscriptions."""
        counts: list[tuple[int, str, int, int, int, int, float]] = []
        written: list[tuple[Counts, Counts]] = []
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
                    written += [(known, replace(have)) for have, known in parts]
        if counts:
            await self._store.group_heartbeat([], counts)
        for known, now in written:  # the next write has what was done meanwhile
            known.become(now)


def _until(due_at: float) -> float:
    """Seconds to wait until then, but not so many that a group which starts meanwhile is overlooked."""
    return max(0.01, min(_LONGEST_WAIT, due_at - time.monotonic()))


async def _in_time(asked: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await asked
    except TimeoutError as error:
        raise DatabaseUnavailable(
            f"a heartbeat was not answered within {_TIMEOUT:.0f} s", remedy="Postbus sends it again by itself"
        ) from error
