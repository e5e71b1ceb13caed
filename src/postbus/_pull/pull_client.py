"""Popping and settling from this process, with leases prolonged and started work finished in the background."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from postbus._db.statements.queue import PulledLease
from postbus._maintenance.lease_extender import EXTEND_LEASES, LeaseExtender
from postbus._pull.lease import PoppedLease
from postbus._pull.request import PopRequest
from postbus._pull.settlements import LeaseSettler, SettlementBackend
from postbus._runtime.loop import repeat
from postbus.errors import InvalidInput, NotAllowed, PostbusError
from postbus.scope import Scope

_REPORT_TIMEOUT = 2.0  # seconds that closing may take to report that groups were stopped


class PullClient(ABC):
    """Pops messages, prolongs their leases, and owns the tasks that do this."""

    def __init__(self, backend: SettlementBackend) -> None:
        self.settler = LeaseSettler(backend)
        self._backend = backend
        self._tasks: set[asyncio.Task[Any]] = set()
        self._kept: dict[UUID, PoppedLease] = {}
        self._stop_keeping: asyncio.Event | None = None
        """Ends the task that prolongs leases, if it runs."""
        self._popped_for: dict[tuple[Scope, str], str | None] = {}
        """The groups that this process popped for itself, each with the member that it was, if the pop named one."""

    @abstractmethod
    async def pop(self, request: PopRequest) -> list[PulledLease]:
        """Take messages. If there are none, wait for them for as long as the request says."""

    @abstractmethod
    async def _report_stopped(self, scope: Scope, group: str, member: str | None) -> None:
        """Report that a consumer of a group has stopped as planned."""

    async def report_stopped(self) -> None:
        """Report that the groups were stopped as planned. If that fails, their consumer seems to have vanished."""
        with suppress(PostbusError, TimeoutError):
            async with asyncio.timeout(_REPORT_TIMEOUT):
                for (scope, group), member in self._popped_for.items():
                    with suppress(InvalidInput, NotAllowed):  # the group or the topic has gone, or the rights have
                        await self._report_stopped(scope, group, member)
        self._popped_for.clear()

    @contextmanager
    def kept(self, leases: Iterable[PoppedLease]) -> Iterator[None]:
        """Prolong leases in the background until all of their messages are settled."""
        given = {lease.token: lease for lease in leases}
        self._kept |= given
        if self._stop_keeping is None and given:
            self._stop_keeping = asyncio.Event()
            tick = LeaseExtender(_ExtendsByToken(self._backend, self._kept), self._kept).tick
            self._start(repeat(tick, name="leases", every=EXTEND_LEASES, stop=self._stop_keeping), "keep")
        try:
            yield
        finally:
            for token in given:
                self._kept.pop(token, None)
            if not self._kept and self._stop_keeping is not None:
                self._stop_keeping.set()
                self._stop_keeping = None

    async def extend(self, leases: Sequence[PoppedLease], length: timedelta) -> list[int]:
        """Prolong leases, from now on. Returns the messages of those that are lost."""
        lost_tokens = await self._backend.extend(leases, length)
        lost: list[int] = []
        for lease in leases:
            if lease.token in lost_tokens:
                lost += lease.lose()
            else:
                lease.length = length
                lease.was_prolonged()
        return lost

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Finish work even if the caller is cancelled meanwhile."""
        await asyncio.shield(self._start(work, "settle"))

    def _start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=f"postbus-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._has_ended)
        return task

    def _has_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # raised in the caller, which may have been cancelled: then asyncio would log it

    async def close(self) -> None:
        """Finish all work that has begun."""
        if self._stop_keeping is not None:
            self._stop_keeping.set()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


class _ExtendsByToken:
    """Prolongs leases by their tokens, as `LeaseExtender` asks for it."""

    def __init__(self, backend: SettlementBackend, leases: Mapping[UUID, PoppedLease]) -> None:
        self._backend = backend
        self._leases = leases

    async def extend(self, tokens: Sequence[UUID], lease: timedelta) -> set[UUID]:
        return await self._backend.extend([self._leases[token] for token in tokens], lease)
