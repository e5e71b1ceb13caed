"""Connections to one database, and transactions on them: the way of every statement."""

from __future__ import annotations

import contextlib
import copy
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self, overload

import asyncpg

from postbus._db import migrator
from postbus._db.actor import SET_ACTOR
from postbus._db.commit import begin, commit, committed, is_lost, roll_back
from postbus._db.connect import connect
from postbus._db.error_map import DRIVER_ERRORS, dsn_errors, translated_errors
from postbus._db.pool import IDLE, Borrowed, Connections

Connection = asyncpg.Connection
PoolConnection = asyncpg.pool.PoolConnectionProxy

# For statements that a crash of the server may undo without harm: their commits do not wait for the disk. It is part of
# the statement, since behind a connection pooler a session's settings are not ours.
RELAXED = "pg_catalog.set_config('synchronous_commit', 'off', true)"

_ACQUIRE = 10  # seconds
_RESET = 5  # seconds


class Database:
    """Connections to one database."""

    def __init__(self, pool: asyncpg.Pool, connections: Connections, source: str, actor: str = "") -> None:
        self._identity = {"source": source}
        self.actor = actor
        """The actor for the audit log, or an empty string if it is not known."""
        self._pool = pool
        """Connections for transactions of users."""
        self._connections = connections
        connections.watch.on_deposed.append(lambda _: pool.expire_connections())

    @classmethod
    async def open(
        cls, dsn: str, *, size: int = 10, actor: str = "", migrate: bool = False, data_dir: Path | None = None
    ) -> Self:
        """Connect. Refuses a database whose schema does not fit, unless `migrate` lets it be migrated first.

        data_dir: the folder of an embedded server, for errors to name.
        """
        if migrate:
            async with connected(dsn) as conn:
                await migrator.migrate_if_needed(conn, actor, folder=data_dir)
        with translated_errors(), dsn_errors():
            connections = Connections(dsn, size)
            try:
                await connections.open()
                async with connections.one() as conn:
                    await migrator.check(conn)
                    source = await conn.fetchval("select postbus.source()::pg_catalog.text")
                # As a startup parameter: after a user's transaction the session is reset to those.
                settings = {} if connections.is_pooled else {"idle_session_timeout": "0"}
                connecting = partial(
                    connect, caches=not connections.is_pooled, for_users=True, server_settings=settings
                )
                pool = await asyncpg.create_pool(
                    dsn,
                    min_size=0,
                    max_size=size,
                    max_inactive_connection_lifetime=IDLE,
                    reset=_no_reset,
                    connect=connecting,
                )
            except BaseException:
                await connections.close()
                raise
        return cls(pool, connections, source, actor)

    def acting_as(self, actor: str) -> Self:
        """The same connections, with statements in the name of another actor."""
        other = copy.copy(self)
        other.actor = actor
        return other

    @property
    def source(self) -> str:
        """The identity of the database: see `Message.event_id`. A rebase of a copy changes it."""
        return self._identity["source"]

    @source.setter
    def source(self, source: str) -> None:
        self._identity["source"] = source

    @property
    def tells_crashes(self) -> bool:
        """Whether statements detect a crash of the server: see `statements.log`. Otherwise broken connections must."""
        return self.is_pooled or self._connections.server_version >= 15

    @property
    def is_pooled(self) -> bool:
        """Whether connections go through a pooler, such as pgbouncer."""
        return self._connections.is_pooled

    async def close(self) -> None:
        await self._connections.close()
        await self._pool.close()

    def terminate(self) -> None:
        """Close without waiting for anything."""
        self._connections.terminate()
        self._pool.terminate()

    def connection(self, *, repeatable: bool = True) -> Borrowed:
        """A connection for our statements in which each name is qualified; see `pinned`."""
        return self._connections.one(repeatable=repeatable)

    def pinned(self, *, repeatable: bool = True) -> Borrowed:
        """A connection with a pinned search path, for our other statements: their names mean no other schema's objects.

        Behind a pooler, where the session is not ours, that takes a transaction: two round trips.
        """
        return self._connections.one(pinned=True, repeatable=repeatable)

    @asynccontextmanager
    async def transaction(self, mark: str | None = None) -> AsyncIterator[PoolConnection]:
        """A transaction for the work of users. Their errors are not translated, and their settings are reset.

        mark: as in `begin`, for callers that check it themselves before the end. Otherwise COMMIT checks one.
        """
        own_mark = secrets.token_hex(8) if mark is None else None
        with translated_errors():
            conn = await self._pool.acquire(timeout=_ACQUIRE)
        self._connections.watch.begin(conn)
        try:
            with translated_errors():
                await begin(conn, for_user=True, mark=mark or own_mark)
            try:
                yield conn
            except BaseException:
                if not is_lost(conn):
                    with contextlib.suppress(*DRIVER_ERRORS):  # the caller needs the error of the body
                        await roll_back(conn)
                raise
            with translated_errors():
                await commit(conn, own_mark)
        finally:
            self._connections.watch.end(conn)
            await self._take_back(conn)

    async def _take_back(self, conn: PoolConnection) -> None:
        """Reset the user's settings. Drop a connection that cannot be reset, or is still busy."""
        try:
            if not is_lost(conn):
                await conn.reset(timeout=_RESET)
        except BaseException as error:
            if not is_lost(conn):
                conn.terminate()
            if not isinstance(error, DRIVER_ERRORS):
                raise
        finally:
            with contextlib.suppress(*DRIVER_ERRORS):
                await self._pool.release(conn)

    @asynccontextmanager
    async def acting(self, *, repeatable: bool = False) -> AsyncIterator[Connection]:
        """A connection for an action that the audit log shows, with the actor if it is known.

        repeatable: the action is harmless to do twice.
        """
        async with self.pinned(repeatable=repeatable) as conn:
            if not self.actor:
                yield conn
                return
            async with committed(conn, repeatable=repeatable):
                await conn.execute(SET_ACTOR, self.actor)
                yield conn

    async def _act(self, sql: str, *args: Any) -> Any:
        async with self.acting() as conn:
            return await conn.fetchval(sql, *args)

    async def _act_rows(self, sql: str, *args: Any, repeatable: bool = False) -> list[dict[str, Any]]:
        async with self.acting(repeatable=repeatable) as conn:
            return [dict(row) for row in await conn.fetch(sql, *args)]

    async def _run(self, sql: str, *args: Any) -> Any:
        async with self.pinned() as conn:
            return await conn.fetchval(sql, *args)

    async def _rows(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        async with self.pinned() as conn:
            return [dict(row) for row in await conn.fetch(sql, *args)]


async def _no_reset(conn: Any) -> None:
    """Do nothing: `_take_back` has reset the session already."""


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    """A connection outside of any pool, for a moment."""
    with translated_errors(), dsn_errors():
        conn = await connect(dsn)
        try:
            yield conn
        finally:
            await conn.close()


@overload
def clean(text: str) -> str: ...


@overload
def clean(text: None) -> None: ...


def clean(text: str | None) -> str | None:
    """A text made fit for PostgreSQL to store: the text of an error may contain anything."""
    if text is None:
        return None
    return text.replace("\0", "\\0").encode("utf-8", "replace").decode("utf-8")[:4000]
