"""The sweeping jobs: return messages whose leases have expired, and remove rows that are no longer needed."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import NamedTuple

from postbus._db.store import Store
from postbus._runtime.log_events import event
from postbus._runtime.loop import Tick, repeat

# How often a process asks the database, in seconds. The database decides what it removes, by an interval that all
# processes obey: see set_sweeping. It does not wait for that interval to count what is published, to begin partitions,
# to notice dead groups, or to end catch-ups.
SWEEP = 5.0
SWEEP_SUBSCRIPTIONS = 60.0
RETURN_EXPIRED = 1.0
_AT_ONCE = 0.05
_LATE_COMMITS = timedelta(minutes=1)
_FULL_SEARCH = 60.0


class Job(NamedTuple):
    """A tick of maintenance, and how often it is due."""

    name: str
    tick: Tick
    every: float
    """Seconds between two ticks, unless the tick returns another wait."""

    def run(self, stop: asyncio.Event) -> Coroutine[None, None, None]:
        """Repeat the job until `stop` is set."""
        return repeat(self.tick, name=self.name, every=self.every, stop=stop)


class Sweeper:
    """Returns expired messages and removes rows that are no longer needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._searched_until: datetime | None = None
        self._full_search_at = 0.0
        self._has_more = self._log_has_more = False

    @property
    def jobs(self) -> list[Job]:
        """All sweeping jobs. Every process that runs for long schedules them."""
        return [Job("return expired", self.return_expired, RETURN_EXPIRED), *self.removal_jobs]

    @property
    def removal_jobs(self) -> list[Job]:
        """The jobs that remove rows."""
        return [
            Job("sweep", self.sweep, SWEEP),
            Job("sweep log", self.sweep_log, SWEEP),
            Job("subscriptions", self.sweep_subscriptions, SWEEP_SUBSCRIPTIONS),
        ]

    async def return_expired(self) -> None:
        await self.count_returned()

    async def count_returned(self) -> int:
        """Return messages whose leases have expired, and count them.

        Most calls search only what expired since the last call. Once a minute, one searches everything.
        """
        is_full = time.monotonic() >= self._full_search_at
        returned, searched_until = await self._store.return_expired(None if is_full else self._searched_until)
        if is_full:
            self._full_search_at = time.monotonic() + _FULL_SEARCH
        self._searched_until = searched_until - _LATE_COMMITS
        if returned:
            event(logging.WARNING, "lease.expired", messages=returned)
        return returned

    async def sweep_log(self) -> float | None:
        began = time.monotonic()
        self._log_has_more = await self._store.sweep_log(if_due=not self._log_has_more)
        took = time.monotonic() - began
        await log_group_events(self._store)
        # After a slow step, such as a large delete, leave the database to others for a while.
        return max(_AT_ONCE, 2 * took) if self._log_has_more else None

    async def sweep(self) -> float | None:
        self._has_more = (await self._store.sweep(if_due=not self._has_more))["more"]
        return _AT_ONCE if self._has_more else None

    async def sweep_subscriptions(self) -> None:
        removed = await self._store.sweep_subscriptions(if_due=True)
        if removed:
            event(logging.INFO, "subscriptions.removed", count=removed)


async def log_group_events(store: Store) -> None:
    """Log what happened to groups. The results of a planned stop are no warning, unless messages are skipped."""
    for one in await store.take_group_events():
        fields = json.loads(one["fields"])
        is_planned = fields.get("after") == "stop" and not fields.get("skipped")
        level = logging.INFO if is_planned else logging.WARNING
        event(level, one["name"], topic=one["topic"], group=one["group_name"], **fields)
