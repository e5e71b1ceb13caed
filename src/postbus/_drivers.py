"""Running one of our statements on a connection that the caller owns, whatever driver it is of.

A driver is recognised by the module of the connection's class, so none is imported that the caller has
not imported already.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from postbus.errors import InvalidInput, from_database


class AsyncConnection(Protocol):
    """A connection or session whose `execute` is awaited: asyncpg, psycopg, SQLAlchemy."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...


class Driver(Protocol):
    """How to run a statement with $1, $2, … on a connection, and how to learn of its commit."""

    is_async: bool

    def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        """The statement's one value, or an awaitable of it."""

    def after_commit(self, conn: Any, action: Callable[[], None]) -> None:
        """Call `action` soon after the connection's transaction has ended."""


def driver_of(conn: Any) -> Driver:
    """The driver that a connection belongs to."""
    for kind in type(conn).__mro__:
        if driver := _BY_CLASS.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}"):
            return driver
    raise InvalidInput(
        f"cannot publish on a {type(conn).__module__}.{type(conn).__qualname__}",
        remedy="pass a connection of asyncpg or psycopg 3, a Session or Connection of SQLAlchemy, "
        "or django.db.connection; or use bus.send(), which needs none",
    )


def translate_from(driver_error: BaseException) -> BaseException:
    """Our error, where SQL raised one of ours; otherwise the caller's error as it is."""
    original = getattr(driver_error, "orig", None) or driver_error.__cause__ or driver_error
    for error in (driver_error, original, original.__cause__ or original):
        diagnostics = getattr(error, "diag", None)
        sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        message = getattr(diagnostics, "message_primary", None) or str(error)
        hint = getattr(diagnostics, "message_hint", None) or getattr(error, "hint", None)
        if ours := from_database(sqlstate, message, hint):
            return ours
    return driver_error


_PLACEHOLDER = re.compile(r"\$(\d+)")


def _percent(sql: str) -> str:
    return _PLACEHOLDER.sub("%s", sql)


def _named(sql: str) -> str:
    return _PLACEHOLDER.sub(r":p\1", sql).replace("::", r"\:\:")


def _watch(is_over: Callable[[], bool], action: Callable[[], None]) -> None:
    """Call `action` when `is_over`, which costs nothing to ask. Asks soon at first, then less and less often.

    The drivers have no hook for this. Nothing depends on it: who is not woken up finds the message by polling.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        action()
        return

    def look(wait: float) -> None:
        try:
            over = is_over()
        except Exception:
            over = True  # the connection went back to its pool, or is otherwise no longer the caller's
        if over:
            action()
        elif wait < 30:
            loop.call_later(wait, look, wait * 1.3)

    loop.call_soon(look, 0.0005)


class _Asyncpg:
    is_async = True

    async def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        return await conn.fetchval(sql, *args)

    def after_commit(self, conn: Any, action: Callable[[], None]) -> None:
        _watch(lambda: conn.is_closed() or not conn.is_in_transaction(), action)


class _Psycopg:
    is_async = False

    def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        return conn.execute(_percent(sql), args).fetchone()[0]

    def after_commit(self, conn: Any, action: Callable[[], None]) -> None:
        _watch(lambda: conn.closed or conn.info.transaction_status == 0, action)


class _AsyncPsycopg(_Psycopg):
    is_async = True

    async def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        cursor = await conn.execute(_percent(sql), args)
        return (await cursor.fetchone())[0]


class _SqlAlchemy:
    is_async = False

    def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        return conn.execute(*self._statement(sql, args)).scalar_one()

    def after_commit(self, conn: Any, action: Callable[[], None]) -> None:
        target = getattr(conn, "sync_session", None) or getattr(conn, "sync_connection", None) or conn
        event = sys.modules["sqlalchemy.event"]
        name = "after_commit" if hasattr(target, "sync_session_class") or hasattr(target, "identity_map") else "commit"
        event.listen(target, name, lambda _: action(), once=True)

    @staticmethod
    def _statement(sql: str, args: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        text = sys.modules["sqlalchemy"].text
        return text(_named(sql)), {f"p{place}": value for place, value in enumerate(args, 1)}


class _AsyncSqlAlchemy(_SqlAlchemy):
    is_async = True

    async def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        return (await conn.execute(*self._statement(sql, args))).scalar_one()


class _Django:
    is_async = False

    def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        with conn.cursor() as cursor:
            cursor.execute(_percent(sql), args)
            return cursor.fetchone()[0]

    def after_commit(self, conn: Any, action: Callable[[], None]) -> None:
        conn.on_commit(action, robust=True)


class _DjangoProxy(_Django):
    """django.db.connection, which stands for the connection of the current thread."""

    def after_commit(self, conn: Any, action: Callable[[], None]) -> None:
        sys.modules["django.db"].transaction.on_commit(action, using=conn.alias, robust=True)


_BY_CLASS: dict[str, Driver] = {
    "asyncpg.Connection": _Asyncpg(),
    "asyncpg.PoolConnectionProxy": _Asyncpg(),
    "psycopg.Connection": _Psycopg(),
    "psycopg.AsyncConnection": _AsyncPsycopg(),
    "sqlalchemy.Session": _SqlAlchemy(),
    "sqlalchemy.scoped_session": _SqlAlchemy(),
    "sqlalchemy.Connection": _SqlAlchemy(),
    "sqlalchemy.AsyncSession": _AsyncSqlAlchemy(),
    "sqlalchemy.AsyncConnection": _AsyncSqlAlchemy(),
    "django.BaseDatabaseWrapper": _Django(),
    "django.ConnectionProxy": _DjangoProxy(),
}
