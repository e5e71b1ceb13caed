"""Reporting to the database that a sink is away, so that operators see it everywhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from postbus._db.process import process_name
from postbus.errors import DatabaseUnavailable

T = TypeVar("T")

_SLOW = 10.0  # seconds without an answer after which a sink counts as away; also the longest time between two reports


class AwayReports(Protocol):
    """Stores reports of sinks that are away."""

    async def note_sink_away(self, topic: str, group: str | None, process: str, sink: str, error: str) -> None: ...

    async def forget_sink_away(self, topic: str, group: str | None, process: str) -> None: ...


class SinkMonitor:
    """Reports that a relay's sink is away. If the database is away too, the relay goes on without a report."""

    def __init__(self, reports: AwayReports, topic: str, group: str | None, sink: str) -> None:
        self._reports = reports
        self._topic = topic
        self._group = group
        self._sink = sink
        self._process = process_name()
        self._is_reported = False

    async def report(self, error: str) -> None:
        """Report that the sink is away. Repeated while it is: an old report is taken for that of a dead process."""
        with contextlib.suppress(DatabaseUnavailable):
            await self._reports.note_sink_away(self._topic, self._group, self._process, self._sink, error)
            self._is_reported = True

    async def is_back(self) -> None:
        """Withdraw the report, because the sink has accepted messages or the relay sends no more."""
        if self._is_reported:
            with contextlib.suppress(DatabaseUnavailable):
                await self._reports.forget_sink_away(self._topic, self._group, self._process)
                self._is_reported = False

    async def watch(self, sending: Awaitable[T]) -> T:
        """Wait for an answer of the sink. If it takes long, report that the sink is away."""
        task = asyncio.ensure_future(sending)
        waited = 0.0
        try:
            while not (await asyncio.wait([task], timeout=_SLOW))[0]:
                waited += _SLOW
                await self.report(f"no answer for {waited:.0f} s")
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        return task.result()
