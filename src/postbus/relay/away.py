"""Telling the database that a sink is away, so that operators see it wherever they look."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from postbus.errors import DatabaseUnavailable

T = TypeVar("T")

_SLOW = 10.0  # seconds without an answer after which a sink counts as away; and between two reports, at most


class Reports(Protocol):
    """Where it is noted."""

    async def note_sink_away(self, topic: str, group: str | None, process: str, sink: str, error: str) -> None: ...

    async def forget_sink_away(self, topic: str, group: str | None, process: str) -> None: ...


class Away:
    """Record that a relay's sink is away. If the database is away too, the relay continues."""

    def __init__(self, reports: Reports, topic: str, group: str | None, sink: str) -> None:
        self._reports = reports
        self._topic = topic
        self._group = group
        self._sink = sink
        self._process = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._is_noted = False

    async def note(self, error: str) -> None:
        """It is away; told again while it is, or the report is taken to be that of a process that died."""
        with contextlib.suppress(DatabaseUnavailable):
            await self._reports.note_sink_away(self._topic, self._group, self._process, self._sink, error)
            self._is_noted = True

    async def is_back(self) -> None:
        """It has taken something, or nobody wants to send any more."""
        if self._is_noted:
            with contextlib.suppress(DatabaseUnavailable):
                await self._reports.forget_sink_away(self._topic, self._group, self._process)
                self._is_noted = False

    async def watch(self, sending: Awaitable[T]) -> T:
        """Wait for an answer of the sink. One that does not come for long is told of."""
        task = asyncio.ensure_future(sending)
        waited = 0.0
        try:
            while not (await asyncio.wait([task], timeout=_SLOW))[0]:
                waited += _SLOW
                await self.note(f"no answer for {waited:.0f} s")
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        return task.result()
