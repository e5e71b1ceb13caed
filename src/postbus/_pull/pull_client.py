"""Holding what was popped: leases are prolonged while they are needed, and work is finished that has begun."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from postbus._db.statements.queue import PulledLease
from postbus._maintenance.lease_extender import LOOK_AT_LEASES, LeaseExtender
from postbus._pull.lease import PoppedLease
from postbus._pull.request import PopRequest
from postbus._pull.settlements import SettlementBackend, Settlements
from postbus._runtime.loop import repeat


class PullClient(ABC):
    """Pops, and looks after the leases that this brings and the tasks that have to do with them."""

    def __init__(self, door: SettlementBackend) -> None:
        self.settlements = Settlements(door)
        self._door = door
        self._tasks: set[asyncio.Task[Any]] = set()
        self._kept: dict[UUID, PoppedLease] = {}
        self._keeping: asyncio.Event | None = None
        """Set to end the task that prolongs leases."""

    @abstractmethod
    async def pop(self, wish: PopRequest) -> list[PulledLease]:
        """Take messages; wait for them if there are none."""

    @contextmanager
    def kept(self, leases: Iterable[PoppedLease]) -> Iterator[None]:
        """Prolong leases in the background while something of them is to be settled."""
        given = {lease.token: lease for lease in leases}
        self._kept |= given
        if self._keeping is None and given:
            self._keeping = asyncio.Event()
            tick = LeaseExtender(_ExtendsByToken(self._door, self._kept), self._kept).tick
            self._start(repeat(tick, name="leases", every=LOOK_AT_LEASES, stop=self._keeping), "keep")
        try:
            yield
        finally:
            for token in given:
                self._kept.pop(token, None)
            if not self._kept and self._keeping is not None:
                self._keeping.set()
                self._keeping = None

    async def extend(self, leases: Sequence[PoppedLease], length: timedelta) -> list[int]:
        """Prolong leases, from now. Returns the messages of those that are lost."""
        lost_tokens = await self._door.extend(leases, length)
        lost: list[int] = []
        for lease in leases:
            if lease.token in lost_tokens:
                lost += lease.lose()
            else:
                lease.length = length
                lease.was_prolonged()
        return lost

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something to its end, also for somebody who is cancelled meanwhile."""
        await asyncio.shield(self._start(work, "settle"))

    def _start(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=f"postbus-{what}")
        self._tasks.add(task)
        task.add_done_callback(self._has_ended)
        return task

    def _has_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waits for it, if somebody still does

    async def close(self) -> None:
        """Finish what has begun."""
        if self._keeping is not None:
            self._keeping.set()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


class _ExtendsByToken:
    """A door to prolong leases by their tokens."""

    def __init__(self, door: SettlementBackend, leases: Mapping[UUID, PoppedLease]) -> None:
        self._door = door
        self._leases = leases

    async def extend(self, tokens: Sequence[UUID], lease: timedelta) -> set[UUID]:
        return await self._door.extend([self._leases[token] for token in tokens], lease)
