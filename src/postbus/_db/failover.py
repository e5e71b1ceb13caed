"""Notices that a server is no longer the primary although it does not say so."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from postbus._db.connect import is_deposed, one_by_one, origin_of
from postbus._runtime.log_events import event

_PATIENCE = 15.0  # seconds that a connection is in use, before it is asked whether its server is still the primary


class FailoverMonitor:
    """Finds out that a server is not the primary any more, and does not say so.

    Such a server may never answer: its disk hangs, or it is cut off from us. Where the DSN names other hosts, what
    waits for it would wait forever although one of them has taken over. No time limit on statements could tell that
    from one that takes long.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._is_needed = len(one_by_one(dsn)) > 1
        self._since: dict[Any, float] = {}
        self._watching: asyncio.Task[None] | None = None
        self.on_deposed: list[Callable[[str], Awaitable[None]]] = []
        """Called with the origin of connections that are better not used any more."""

    def begin(self, conn: Any) -> None:
        """A connection is in use from now on."""
        if self._is_needed:
            self._since[conn] = time.monotonic()
            if self._watching is None:
                self._watching = asyncio.create_task(self._look(), name="postbus-watch-hosts")

    def end(self, conn: Any) -> None:
        self._since.pop(conn, None)

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def close(self) -> None:
        self.stop()
        if self._watching is not None:
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_PATIENCE / 3)
            now = time.monotonic()
            silent = {origin_of(conn) for conn, since in self._since.items() if now - since > _PATIENCE}
            for origin in filter(None, silent):
                if await is_deposed(origin, self._dsn):
                    event(logging.WARNING, "host.deposed", silent_for=f"{time.monotonic() - now + _PATIENCE:.0f}s")
                    await self._part_from(origin, now)

    async def _part_from(self, origin: str, before: float) -> None:
        for conn, since in list(self._since.items()):
            if since < before and origin_of(conn) == origin:
                conn.terminate()
        for call in self.on_deposed:
            await call(origin)
