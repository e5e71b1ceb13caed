"""Sweeping: removes what is no longer needed and returns what has expired."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from postbus._db.connect import process_name
from postbus._db.store import Store
from postbus._runtime.log_events import event
from postbus._runtime.loop import repeat
from postbus.errors import PostbusError

# How often the database is asked. What is removed then is decided there, by the interval that all processes obey: see
# set_sweeping. Counting what is published, beginning new leaves, noticing dead groups and ends of catch-ups do not wait
# for that.
SWEEP = 5.0
SWEEP_SUBSCRIPTIONS = 60.0
RETURN_EXPIRED = 1.0
_SHOW = 10.0
_AT_ONCE = 0.05
_LATE_COMMITS = timedelta(minutes=1)
_FULL_LOOK = 60.0


class Sweeper:
    """Gives back expired leases, and removes what is no longer needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._since: datetime | None = None
        self._full_look_at = 0.0
        self._goes_on = self._log_goes_on = False

    async def return_expired(self) -> None:
        await self.give_back()

    async def give_back(self) -> int:
        """How many messages came back. Mostly looks at what ended since the last look; at all from time to time."""
        is_full = time.monotonic() >= self._full_look_at
        returned, looked_at = await self._store.return_expired(None if is_full else self._since)
        if is_full:
            self._full_look_at = time.monotonic() + _FULL_LOOK
        self._since = looked_at - _LATE_COMMITS
        if returned:
            event(logging.WARNING, "lease.expired", messages=returned)
        return returned

    async def sweep_log(self) -> float | None:
        began = time.monotonic()
        self._log_goes_on = await self._store.sweep_log(if_due=not self._log_goes_on)
        took = time.monotonic() - began
        await tell_group_events(self._store)
        # A step that takes long, such as one that deletes much, leaves the database to others for a while.
        return max(_AT_ONCE, 2 * took) if self._log_goes_on else None

    async def sweep(self) -> float | None:
        self._goes_on = (await self._store.sweep(if_due=not self._goes_on))["more"]
        return _AT_ONCE if self._goes_on else None

    async def sweep_subscriptions(self) -> None:
        removed = await self._store.sweep_subscriptions(if_due=True)
        if removed:
            event(logging.INFO, "subscriptions.removed", count=removed)


class MaintenanceLoop:
    """All jobs of sweeping, for a process that consumes nothing. It is counted among those that sweep while it runs."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store = store
        self.name = process_name(kind)

    def loops(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        """What has to run until `stop` is set."""
        sweeper = Sweeper(self._store)
        jobs = (
            ("sweeper", self.show, _SHOW),
            ("return expired", sweeper.return_expired, RETURN_EXPIRED),
            ("sweep log", sweeper.sweep_log, SWEEP),
            ("sweep", sweeper.sweep, SWEEP),
            ("subscriptions", sweeper.sweep_subscriptions, SWEEP_SUBSCRIPTIONS),
        )
        return [repeat(tick, name=name, every=every, stop=stop) for name, tick, every in jobs]

    async def show(self) -> None:
        """Tell that this process sweeps."""
        await self._store.note_sweeper(self.name, socket.gethostname(), os.getpid())

    async def end(self) -> None:
        """Tell that it no longer does. If that fails, others notice within half a minute."""
        with suppress(PostbusError):
            await self._store.forget_sweeper(self.name)

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until `stop` is set, or a job fails."""
        try:
            async with asyncio.TaskGroup() as group:
                for loop in self.loops(stop):
                    group.create_task(loop)
        finally:
            await self.end()


async def tell_group_events(store: Store) -> None:
    """Log what happened to groups. What follows a planned stop is no warning, unless messages are skipped."""
    for one in await store.take_group_events():
        fields = json.loads(one["fields"])
        is_planned = fields.get("after") == "stop" and not fields.get("skipped")
        level = logging.INFO if is_planned else logging.WARNING
        event(level, one["name"], topic=one["topic"], group=one["group_name"], **fields)
