"""Connections for our own statements: kept open while they are needed, given out one at a time.

A server has few of them for all its clients. So what was needed in a rush is given up soon afterwards, and who is
refused another one makes do with those he has.

asyncpg's pool resets and guards what users do with its connections. Our statements leave nothing behind, and
without those guards a statement costs half as much in the client.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import nullcontext
from typing import Any

import asyncpg

from postbus._db.commit import begin, commit, is_lost, repeatable_commit, roll_back
from postbus._db.connect import connect, is_pooled, needs_transaction, origin_of
from postbus._db.error_map import DRIVER_ERRORS, translate, translated_errors
from postbus._db.failover import FailoverMonitor

_TIMEOUT = 10.0  # seconds for a connection to be free, and to be made

IDLE = 10.0  # seconds that a connection is not needed, before it is given up
_KEPT = 2  # connections that are not
_FEWER = 5.0  # seconds without asking for more, once the server has none left


class Connections:
    """Up to `size` connections, made when they are needed. The one used last is used next."""

    def __init__(self, dsn: str, size: int) -> None:
        self._dsn = dsn
        self.is_pooled = False
        """Whether a connection pooler is before the server: nothing of a session is ours then, after a transaction."""
        self.server_version = 0
        self._idle: list[tuple[Any, float]] = []
        """Since when; the longest first."""
        self._used: set[Any] = set()
        self._room = Slots(size)
        self._is_closed = False
        self._giving_up: asyncio.TimerHandle | None = None
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
        """A connection for the time of a block; pinned: also behind a pooler its search path is ours.

        repeatable: it is harmless to do the work twice, as it is for nearly all statements of ours.
        """
        return Borrowed(self, pinned=pinned, repeatable=repeatable)

    async def lend(self) -> Any:
        """A connection to be given back."""
        if not self._room.take_at_once():
            await self._room.take()
        try:
            return self._idle_one() or await self._new_one()
        except BaseException:
            self._room.give_back()
            raise

    def _idle_one(self) -> Any:
        if self._is_closed:
            raise asyncpg.InterfaceError("the bus is closed")
        while self._idle:
            conn, _ = self._idle.pop()
            if not conn.is_closed():
                return self._lent(conn)
        return None

    async def _new_one(self) -> Any:
        """Another connection; where the server has none left, one that somebody gives back."""
        while True:
            try:
                return self._lent(await connect(self._dsn, caches=not self.is_pooled))
            except asyncpg.TooManyConnectionsError:
                if not self._used:
                    raise
                await self._be_fewer()
            if (conn := self._idle_one()) is not None:
                return conn

    async def _be_fewer(self) -> None:
        """Wait for a connection that somebody gives back. For a while there is room for one less than before."""
        await self._room.take()
        asyncio.get_running_loop().call_later(_FEWER, self._room.give_back)

    def _lent(self, conn: Any) -> Any:
        self._used.add(conn)
        self.watch.begin(conn)
        return conn

    def take_back(self, conn: Any) -> None:
        self._used.discard(conn)
        self.watch.end(conn)
        if not conn.is_closed():
            if self._is_closed:
                conn.terminate()
            else:
                self._keep(conn)
        self._room.give_back()

    def _keep(self, conn: Any) -> None:
        self._idle.append((conn, time.monotonic()))
        if self._giving_up is None and len(self._idle) > _KEPT:
            self._giving_up = asyncio.get_running_loop().call_later(IDLE, self._give_up)

    def _give_up(self) -> None:
        """Close those that were not needed for a while: the one used last is used next, so the others are too many."""
        self._giving_up = None
        now = time.monotonic()
        while len(self._idle) > _KEPT:
            conn, since = self._idle[0]
            if (wait := since + IDLE - now) > 0:
                self._giving_up = asyncio.get_running_loop().call_later(wait, self._give_up)
                break
            del self._idle[0]
            conn.terminate()

    async def _drop_idle(self, origin: str) -> None:
        for conn, _ in self._idle:
            if origin_of(conn) == origin:
                conn.terminate()

    async def close(self) -> None:
        """Close what is idle now, and the rest when it is given back."""
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
        if self._giving_up is not None:
            self._giving_up.cancel()


class Slots:
    """Places for a number of users. Who finds none waits in line, and is handed the next one.

    A semaphore of asyncio does the same, in five times as many steps where nobody waits.
    """

    def __init__(self, places: int) -> None:
        self._left = places
        self._line: deque[asyncio.Future[None]] = deque()

    def take_at_once(self) -> bool:
        """Take a place if there is one."""
        if self._left == 0:
            return False
        self._left -= 1
        return True

    async def take(self) -> None:
        """Take a place, or wait for one; not longer than the time limit of connections."""
        if self.take_at_once():
            return
        place = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            async with asyncio.timeout(_TIMEOUT):
                await place
        except BaseException:
            if not place.cancel() and not place.cancelled():  # it was handed to us in the moment in which we gave up
                self.give_back()
            raise

    def give_back(self) -> None:
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._left += 1


class Borrowed:
    """A connection for the time of a block, in which errors of the driver become ours.

    It is dropped after anything but an error of the server. Not a generator: this is on the way of each message.
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
        if error is not None and not isinstance(error, asyncpg.PostgresError):  # a statement may still be under way
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
