"""Connections for our own statements, kept open while they are needed and lent one at a time.

A server has few connections for all its clients. So connections that were needed for a burst are closed soon after it,
and when the server refuses another one, the pool makes do with those it has.

asyncpg's pool resets its connections and guards what users do with them. Our statements leave nothing behind, and
without those guards a statement costs half as much in the client.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from typing import Any

import asyncpg

from postbus._db.commit import begin, commit, is_lost, repeatable_commit, roll_back
from postbus._db.connect import connect, is_pooled, needs_transaction, origin_of
from postbus._db.error_map import DRIVER_ERRORS, translate, translated_errors
from postbus._db.failover import FailoverMonitor

_TIMEOUT = 10.0  # seconds until a connection is free, or made

IDLE = 10.0  # seconds without use after which a connection is closed
_KEPT = 2  # connections that stay open nevertheless
_FEWER = 5.0  # seconds with one connection less, after the server had none left


class Connections:
    """Up to `size` connections, made when they are needed. The one that was used last is used next."""

    def __init__(self, dsn: str, size: int) -> None:
        self._dsn = dsn
        self.is_pooled = False
        """Whether connections go through a pooler: then a session is ours for one transaction only."""
        self.server_version = 0
        self._idle: list[tuple[Any, float]] = []
        """Idle connections, each with the time since when it is idle; the longest idle first."""
        self._used: set[Any] = set()
        self._slots = asyncio.Semaphore(size)
        self._is_closed = False
        self._closing_idle: asyncio.TimerHandle | None = None
        self.watch = FailoverMonitor(dsn)
        self.watch.on_deposed.append(self._drop_idle)

    async def open(self) -> None:
        """Connect, and learn whether connections are pooled."""
        conn = await connect(self._dsn, caches=True)
        self.is_pooled = is_pooled(conn)
        self.server_version = int(conn.get_server_version().major)
        if self.is_pooled:
            await conn.close()
        else:
            self._keep(conn)

    def one(self, *, pinned: bool = False, repeatable: bool = True) -> Borrowed:
        """A connection for the time of a block.

        pinned: its search path is pinned even behind a pooler.
        repeatable: the work is harmless to do twice, as for nearly all of our statements.
        """
        return Borrowed(self, pinned=pinned, repeatable=repeatable)

    async def lend(self) -> Any:
        """Lend a connection. `take_back` returns it."""
        await self._take_slot()
        try:
            return self._idle_one() or await self._new_one()
        except BaseException:
            self._slots.release()
            raise

    async def _take_slot(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._slots.acquire()
        except TimeoutError:
            raise TimeoutError(f"all connections of this process were in use for {_TIMEOUT:g} s") from None

    def _idle_one(self) -> Any:
        if self._is_closed:
            raise asyncpg.InterfaceError("the bus is closed")
        while self._idle:
            conn, _ = self._idle.pop()
            if not conn.is_closed():
                return self._lent(conn)
        return None

    async def _new_one(self) -> Any:
        """A new connection or, if the server has none left, one that another task returns."""
        while True:
            try:
                return self._lent(await connect(self._dsn, caches=not self.is_pooled))
            except asyncpg.TooManyConnectionsError:
                if not self._used:
                    raise
                await self._wait_for_return()
            if (conn := self._idle_one()) is not None:
                return conn

    async def _wait_for_return(self) -> None:
        """Wait until another task returns a connection. For a while the pool has one slot less."""
        await self._take_slot()
        asyncio.get_running_loop().call_later(_FEWER, self._slots.release)

    def _lent(self, conn: Any) -> Any:
        self._used.add(conn)
        self.watch.begin(conn)
        return conn

    def take_back(self, conn: Any) -> None:
        """Take a lent connection back."""
        self._used.discard(conn)
        self.watch.end(conn)
        if not conn.is_closed():
            if self._is_closed:
                conn.terminate()
            else:
                self._keep(conn)
        self._slots.release()

    def _keep(self, conn: Any) -> None:
        self._idle.append((conn, time.monotonic()))
        if self._closing_idle is None and len(self._idle) > _KEPT:
            self._closing_idle = asyncio.get_running_loop().call_later(IDLE, self._close_idle)

    def _close_idle(self) -> None:
        """Close connections that were idle for a while. As the one used last is used next, the others are too many."""
        self._closing_idle = None
        now = time.monotonic()
        while len(self._idle) > _KEPT:
            conn, since = self._idle[0]
            if (wait := since + IDLE - now) > 0:
                self._closing_idle = asyncio.get_running_loop().call_later(wait, self._close_idle)
                break
            del self._idle[0]
            conn.terminate()

    async def _drop_idle(self, origin: str) -> None:
        for conn, _ in self._idle:
            if origin_of(conn) == origin:
                conn.terminate()

    async def close(self) -> None:
        """Close the idle connections now, and the others when they are returned."""
        self._stop()
        await self.watch.close()
        idle, self._idle = self._idle, []
        for conn, _ in idle:
            try:
                await conn.close(timeout=2)
            except DRIVER_ERRORS:
                conn.terminate()

    def terminate(self) -> None:
        """Close everything without waiting."""
        self._stop()
        self.watch.stop()
        for conn in (*(conn for conn, _ in self._idle), *self._used):
            conn.terminate()
        self._idle.clear()

    def _stop(self) -> None:
        self._is_closed = True
        if self._closing_idle is not None:
            self._closing_idle.cancel()


class Borrowed:
    """A connection for the time of a block, in which errors of the driver are translated.

    After any other error than one of the server, the connection is dropped. This is no generator, because it is on the
    path of each message.
    """

    __slots__ = ("_conn", "_connections", "_is_begun", "_pinned", "_repeatable")

    def __init__(self, connections: Connections, *, pinned: bool, repeatable: bool) -> None:
        self._connections = connections
        self._pinned = pinned
        self._repeatable = repeatable
        self._is_begun = False

    async def __aenter__(self) -> Any:
        with translated_errors():
            self._conn = await self._connections.lend()
            if self._connections.is_pooled and (self._pinned or needs_transaction(self._conn)):
                await self._begin()
        return self._conn

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and not isinstance(error, asyncpg.PostgresError):  # a statement may still be running
            self._conn.terminate()
        try:
            if self._is_begun:
                with translated_errors():
                    await self._end(error)
        finally:
            self._connections.take_back(self._conn)
        if isinstance(error, DRIVER_ERRORS) and (translated := translate(error)) is not None:
            raise translated from error

    async def _begin(self) -> None:
        try:
            await begin(self._conn)
        except BaseException:
            self._conn.terminate()
            self._connections.take_back(self._conn)
            raise
        self._is_begun = True

    async def _end(self, error: BaseException | None) -> None:
        try:
            if error is None:
                with repeatable_commit() if self._repeatable else nullcontext():
                    await commit(self._conn)
            elif not is_lost(self._conn):
                await roll_back(self._conn)
        except BaseException:
            self._conn.terminate()
            if error is None:
                raise
