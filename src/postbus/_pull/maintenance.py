"""Maintenance by a process that only pops: it may be the only process that uses the database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from postbus._db.error_map import DRIVER_ERRORS
from postbus._db.store import Store
from postbus._maintenance.sweeper import RETURN_EXPIRED, Sweeper
from postbus._runtime.log_events import event
from postbus._wakeup.waiters import Wakers
from postbus.errors import DatabaseUnavailable, PostbusError

StartTask = Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]]


class PopMaintenance:
    """Returns expired messages and sweeps, as workers do, whenever a pop finds that this is due."""

    def __init__(self, store: Store, wakers: Wakers) -> None:
        self._sweeper = Sweeper(store)
        self._wakers = wakers
        self._jobs = self._sweeper.removal_jobs
        self._due_at = {job.name: 0.0 for job in self._jobs}
        self._began = 0.0
        self._returning: asyncio.Task[bool] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def start_due(self, start: StartTask) -> None:
        """Start the jobs that are due, beside the caller's work. Expired leases are due once a second."""
        now = time.monotonic()
        if self._returning is None or (self._returning.done() and now >= self._began + RETURN_EXPIRED):
            self._began = now
            self._returning = start(self._return_expired(), "return-expired")
        if (self._sweeping is None or self._sweeping.done()) and now >= min(self._due_at.values()):
            self._sweeping = start(self._sweep(), "sweep")

    async def has_returned_messages(self, *, since: float) -> bool:
        """Whether messages whose lease has expired came back since then."""
        if self._returning is None or (self._returning.done() and self._began < since):
            return False
        return await asyncio.shield(self._returning)

    async def _return_expired(self) -> bool:
        returned = await self._attempt(self._sweeper.count_returned)
        if returned:
            self._wakers.wake_all()
        return bool(returned)

    async def _sweep(self) -> None:
        for job in self._jobs:
            if time.monotonic() >= self._due_at[job.name]:
                wait = await self._attempt(job.tick)
                self._due_at[job.name] = time.monotonic() + (job.every if wait is None else wait)

    async def _attempt(self, tick: Callable[[], Awaitable[Any]]) -> Any:
        """Run a job. Its failure is logged, for it is no concern of the pop that started it."""
        try:
            return await tick()
        except (PostbusError, *DRIVER_ERRORS) as error:
            level = logging.DEBUG if isinstance(error, DatabaseUnavailable) else logging.WARNING
            event(level, "upkeep.failed", error=error)
            return None
