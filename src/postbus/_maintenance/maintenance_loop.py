"""Scheduling of the sweeping jobs, in processes that run no handlers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from postbus._db.process import process_name
from postbus._db.store import Store
from postbus._maintenance.sweeper import Job, Sweeper
from postbus.errors import PostbusError

_REGISTER = 10.0


class MaintenanceLoop:
    """Runs all sweeping jobs in a process that consumes nothing. The database lists the process as a sweeper."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store = store
        self.name = process_name(kind)

    def loops(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        """The loops of all jobs. Each runs until `stop` is set."""
        return [job.run(stop) for job in (Job("sweeper", self.register, _REGISTER), *Sweeper(self._store).jobs)]

    async def register(self) -> None:
        """List this process as a sweeper, or keep it listed."""
        await self._store.note_sweeper(self.name, socket.gethostname(), os.getpid())

    async def end(self) -> None:
        """Take this process off the list. If that fails, the entry expires within half a minute."""
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
