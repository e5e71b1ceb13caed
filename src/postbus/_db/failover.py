"""Noticing that a server is no longer the primary although its connections stay silent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from postbus._db.connect import hosts_of, is_deposed, origin_of
from postbus._runtime.log_events import event

_PATIENCE = 15.0  # seconds that a connection may be in use before its server is checked


class FailoverMonitor:
    """Detects servers that are no longer the primary, and drops the connections to them.

    Such a server may never answer, because its disk hangs or the network is cut. If another host of the DSN has taken
    over, a statement on the old server would wait forever. No time limit on statements could distinguish that from a
    statement that takes long.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._is_needed = len(hosts_of(dsn)) > 1
        self._since: dict[Any, float] = {}
        self._watching: asyncio.Task[None] | None = None
        self.on_deposed: list[Callable[[str], Awaitable[None]]] = []
        """Called with the origin of the connections that must not be used any more."""

    def begin(self, conn: Any) -> None:
        """Note that a connection is in use from now on."""
        if self._is_needed:
            self._since[conn] = time.monotonic()
            if self._watching is None:
                self._watching = asyncio.create_task(self._watch(), name="postbus-watch-hosts")

    def end(self, conn: Any) -> None:
        """Note that a connection is no longer in use."""
        self._since.pop(conn, None)

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def close(self) -> None:
        self.stop()
        if self._watching is not None:
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_PATIENCE / 3)
            now = time.monotonic()
            silent = {origin_of(conn) for conn, since in self._since.items() if now - since > _PATIENCE}
            for origin in filter(None, silent):
                if await is_deposed(origin, self._dsn):
                    event(logging.WARNING, "host.deposed", silent_for=f"{time.monotonic() - now + _PATIENCE:.0f}s")
                    await self._drop_connections(origin, now)

    async def _drop_connections(self, origin: str, before: float) -> None:
        for conn, since in list(self._since.items()):
            if since < before and origin_of(conn) == origin:
                conn.terminate()
        for call in self.on_deposed:
            await call(origin)
