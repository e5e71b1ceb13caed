"""Publishing programs, one for each driver and library that Postbus supports, all used in the same way.

Sync programs run in a thread of their own without an event loop, as they do outside of tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psycopg
import sqlalchemy
import sqlalchemy.orm

from postbus import Bus


class Program:
    """A connection, and how its user works with transactions."""

    def __init__(self, conn: Any, error: type[Exception] | tuple[type[Exception], ...]) -> None:
        self.conn = conn
        self.error = error
        """The class of the errors that the driver raises."""
        self._block: Any = None
        self._savepoint: Any = None

    async def call(self, function: Callable[[], Any]) -> Any:
        answer = function()
        return await answer if isinstance(answer, Awaitable) else answer

    async def publish(self, bus: Bus, topic: str, payload: Any, **options: Any) -> Any:
        return await self.call(lambda: bus.publish(self.conn, topic, payload, **options))

    async def publish_many(self, bus: Bus, topic: str, messages: Any) -> Any:
        return await self.call(lambda: bus.publish_many(self.conn, topic, messages))

    async def execute(self, sql: str) -> Any:
        return await self.call(lambda: self.conn.execute(sql))

    async def begin(self) -> None:
        """Begin a transaction; most drivers do so implicitly."""

    async def commit(self) -> None:
        await self.call(lambda: self.conn.commit())

    async def rollback(self) -> None:
        await self.call(lambda: self.conn.rollback())

    async def savepoint(self) -> None:
        await self.execute("savepoint here")

    async def release(self) -> None:
        await self.execute("release savepoint here")

    async def roll_back_to_savepoint(self) -> None:
        await self.execute("rollback to savepoint here")


class InThread(Program):
    """A program without an event loop."""

    def __init__(self, conn: Any, error: Any, thread: ThreadPoolExecutor) -> None:
        super().__init__(conn, error)
        self._thread = thread

    async def call(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


class Asyncpg(Program):
    async def begin(self) -> None:
        self._block = self.conn.transaction()
        await self._block.start()

    async def commit(self) -> None:
        await self._block.commit()

    async def rollback(self) -> None:
        await self._block.rollback()


class _WithText(Program):
    """SQLAlchemy."""

    async def execute(self, sql: str) -> Any:
        return await self.call(lambda: self.conn.execute(sqlalchemy.text(sql)))

    async def savepoint(self) -> None:
        self._savepoint = await self.call(lambda: self.conn.begin_nested())

    async def release(self) -> None:
        await self.call(lambda: self._savepoint.commit())

    async def roll_back_to_savepoint(self) -> None:
        await self.call(lambda: self._savepoint.rollback())


class SqlAlchemy(_WithText, InThread):
    pass


class AsyncSqlAlchemy(_WithText):
    pass


class Django(InThread):
    async def execute(self, sql: str) -> None:
        def run() -> None:
            with self.conn.cursor() as cursor:
                cursor.execute(sql)

        await self.call(run)

    async def begin(self) -> None:
        from django.db import transaction

        self._block = transaction.atomic()
        await self.call(self._block.__enter__)

    async def commit(self) -> None:
        await self.call(lambda: self._block.__exit__(None, None, None))

    async def rollback(self) -> None:
        error = RuntimeError("roll back")
        await self.call(lambda: self._block.__exit__(RuntimeError, error, None))


@asynccontextmanager
async def asyncpg_connection(dsn: str) -> AsyncIterator[Program]:
    conn: Any = await asyncpg.connect(dsn)
    try:
        yield Asyncpg(conn, (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError))
    finally:
        conn.terminate()


@asynccontextmanager
async def asyncpg_pool(dsn: str) -> AsyncIterator[Program]:
    pool: Any = await asyncpg.create_pool(dsn, min_size=1, max_size=1)
    async with pool.acquire() as conn:
        yield Asyncpg(conn, (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError))
    await pool.close()


@asynccontextmanager
async def psycopg_sync(dsn: str) -> AsyncIterator[Program]:
    with ThreadPoolExecutor(1) as thread, psycopg.connect(dsn) as conn:
        yield InThread(conn, psycopg.Error, thread)
        conn.close()


@asynccontextmanager
async def psycopg_async(dsn: str) -> AsyncIterator[Program]:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        yield Program(conn, psycopg.Error)
        await conn.close()


@asynccontextmanager
async def sqlalchemy_connection(dsn: str) -> AsyncIterator[Program]:
    engine = sqlalchemy.create_engine(_url(dsn, "psycopg"))
    with ThreadPoolExecutor(1) as thread, engine.connect() as conn:
        yield SqlAlchemy(conn, sqlalchemy.exc.SQLAlchemyError, thread)
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_session(dsn: str) -> AsyncIterator[Program]:
    engine = sqlalchemy.create_engine(_url(dsn, "psycopg"))
    with ThreadPoolExecutor(1) as thread, sqlalchemy.orm.Session(engine) as session:
        yield SqlAlchemy(session, sqlalchemy.exc.SQLAlchemyError, thread)
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_scoped_session(dsn: str) -> AsyncIterator[Program]:
    engine = sqlalchemy.create_engine(_url(dsn, "psycopg"))
    scoped = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine))
    with ThreadPoolExecutor(1) as thread:
        program = SqlAlchemy(scoped, sqlalchemy.exc.SQLAlchemyError, thread)
        yield program
        await program.call(scoped.remove)
    engine.dispose()


def _async_sqlalchemy(driver: str, make: Callable[[Any], Any]) -> Callable[[str], Any]:
    @asynccontextmanager
    async def program(dsn: str) -> AsyncIterator[Program]:
        import sqlalchemy.ext.asyncio

        engine = sqlalchemy.ext.asyncio.create_async_engine(_url(dsn, driver))
        async with make(engine) as conn:
            yield AsyncSqlAlchemy(conn, sqlalchemy.exc.SQLAlchemyError)
        await engine.dispose()

    return program


@asynccontextmanager
async def _async_scoped(engine: Any) -> AsyncIterator[Any]:
    from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker

    scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    yield scoped
    await scoped.remove()


def _async_session(engine: Any) -> Any:
    from sqlalchemy.ext.asyncio import AsyncSession

    return AsyncSession(engine)


def _django(name: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def program(dsn: str) -> AsyncIterator[Program]:
        connections = _configured_django(dsn)
        import django.db

        with ThreadPoolExecutor(1) as thread:
            conn = django.db.connection
            if name == "default":
                conn = await asyncio.get_running_loop().run_in_executor(thread, lambda: connections["default"])
            program = Django(conn, django.db.Error, thread)
            yield program
            await program.call(connections.close_all)

    return program


def _configured_django(dsn: str) -> Any:
    import django
    from django.conf import settings

    address = urlsplit(dsn)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": address.path[1:],
        "USER": address.username,
        "HOST": address.hostname or parse_qs(address.query)["host"][0],
        "PORT": str(address.port or 5432),
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": dict(database)}, USE_TZ=True)
        django.setup()
    from django.db import connections

    connections.databases["default"].update(database)
    return connections


def _url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


PROGRAMS: dict[str, Callable[[str], Any]] = {
    "asyncpg": asyncpg_connection,
    "asyncpg pool": asyncpg_pool,
    "psycopg": psycopg_sync,
    "psycopg async": psycopg_async,
    "SQLAlchemy Connection": sqlalchemy_connection,
    "SQLAlchemy Session": sqlalchemy_session,
    "SQLAlchemy scoped_session": sqlalchemy_scoped_session,
    "SQLAlchemy AsyncConnection psycopg": _async_sqlalchemy("psycopg", lambda engine: engine.connect()),
    "SQLAlchemy AsyncConnection asyncpg": _async_sqlalchemy("asyncpg", lambda engine: engine.connect()),
    "SQLAlchemy AsyncSession psycopg": _async_sqlalchemy("psycopg", _async_session),
    "SQLAlchemy AsyncSession asyncpg": _async_sqlalchemy("asyncpg", _async_session),
    "SQLAlchemy async_scoped_session": _async_sqlalchemy("asyncpg", _async_scoped),
    "Django connection": _django("proxy"),
    "Django connections": _django("default"),
}
