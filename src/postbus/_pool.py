"""Connections for our own statements: kept open, given out one at a time.

asyncpg's pool resets and guards what users do with its connections. Our statements leave nothing behind, and
without those guards a statement costs half as much in the client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from postbus._translate import DRIVER_ERRORS

_TIMEOUT = 10.0  # seconds for a connection to be free, and to be made


class Connections:
    """Up to `size` connections, made when they are needed. The one used last is used next."""

    def __init__(self, dsn: str, size: int) -> None:
        self._dsn = dsn
        self._idle: list[Any] = []
        self._used: set[Any] = set()
        self._free = asyncio.Semaphore(size)
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[Any]:
        """A connection for the time of the block. It is dropped after anything but an error of the server."""
        if self._free.locked():
            async with asyncio.timeout(_TIMEOUT):
                await self._free.acquire()
        else:
            await self._free.acquire()  # at once
        conn = None
        try:
            conn = await self._take()
            yield conn
        except asyncpg.PostgresError:
            raise
        except BaseException:  # a statement may still be under way
            if conn is not None:
                conn.terminate()
            raise
        finally:
            self._give_back(conn)

    async def _take(self) -> Any:
        if self._is_closed:
            raise asyncpg.InterfaceError("the bus is closed")
        while self._idle:
            conn = self._idle.pop()
            if not conn.is_closed():
                self._used.add(conn)
                return conn
        conn = await asyncpg.connect(self._dsn, timeout=_TIMEOUT)
        self._used.add(conn)
        return conn

    def _give_back(self, conn: Any) -> None:
        self._used.discard(conn)
        if conn is not None and not conn.is_closed():
            if self._is_closed:
                conn.terminate()
            else:
                self._idle.append(conn)
        self._free.release()

    async def close(self) -> None:
        """Close what is idle now, and the rest when it is given back."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for conn in idle:
            try:
                await conn.close(timeout=2)
            except DRIVER_ERRORS:
                conn.terminate()

    def terminate(self) -> None:
        """Close everything without waiting."""
        self._is_closed = True
        for conn in (*self._idle, *self._used):
            conn.terminate()
        self._idle.clear()
