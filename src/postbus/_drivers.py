"""Running one of our statements on a connection that the caller owns, whatever driver it is of.

A driver is recognised by the module of the connection's class, so none is imported that the caller has
not imported already.
"""

from __future__ import annotations

import re
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from postbus._watch import Action, IsOver, look_at, weakly, when_over
from postbus.errors import InvalidInput, PostbusError, from_database


class AsyncConnection(Protocol):
    """A connection or session whose `execute` is awaited: asyncpg, psycopg, SQLAlchemy."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...


class Driver(Protocol):
    """How to run a statement with $1, $2, … on a connection, and how to learn of its transaction's end."""

    is_async: bool

    def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        """The statement's one value, or an awaitable of it."""

    def when_ended(self, conn: Any, action: Action) -> None:
        """Call `action` once, soon after the connection's transaction has ended, by COMMIT or ROLLBACK."""

    def has_committed(self, conn: Any) -> bool:
        """Whether the statement that was run last was a transaction of its own."""


def driver_of(conn: Any) -> Driver:
    """The driver that a connection belongs to."""
    kind = type(conn)
    driver = _known.get(kind)
    if driver is None:
        driver = _known[kind] = _driver_of_kind(kind)
    return driver


_known: weakref.WeakKeyDictionary[type[Any], Driver] = weakref.WeakKeyDictionary()


def _driver_of_kind(kind: type[Any]) -> Driver:
    for base in kind.__mro__:
        if driver := _BY_CLASS.get(f"{base.__module__.partition('.')[0]}.{base.__name__}"):
            return driver
    raise InvalidInput(
        f"a {kind.__module__}.{kind.__qualname__} is not a connection that Postbus knows",
        remedy="pass a connection of asyncpg or psycopg 3, a Session or Connection of SQLAlchemy, "
        "or django.db.connection; or publish by bus.send(), which needs none",
    )


def translate_from(driver_error: BaseException) -> BaseException:
    """Our error, where SQL raised one of ours; otherwise the caller's error as it is."""
    ours: PostbusError | None = None
    error: BaseException | None = driver_error
    seen = set[int]()
    while error is not None and id(error) not in seen:  # libraries wrap the driver's error, which says most
        seen.add(id(error))
        ours = _ours(error) or ours
        error = getattr(error, "orig", None) or error.__cause__
    return ours or driver_error


def _ours(error: Any) -> PostbusError | None:
    diagnostics = getattr(error, "diag", None)
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    message = getattr(diagnostics, "message_primary", None) or getattr(error, "message", None) or str(error)
    hint = getattr(diagnostics, "message_hint", None) or getattr(error, "hint", None)
    return from_database(sqlstate, message, hint)


_PLACEHOLDER = re.compile(r"\$(\d+)")


def _percent(sql: str) -> str:
    return _PLACEHOLDER.sub("%s", sql)


def _named(sql: str) -> str:
    return _PLACEHOLDER.sub(r":p\1", sql).replace("::", r"\:\:")


_IDLE, _UNKNOWN = 0, 4  # of libpq's PGTransactionStatusType; the latter of a broken connection


def _is_over(conn: Any) -> bool:
    """Whether a connection of asyncpg or psycopg is in no transaction."""
    if hasattr(conn, "is_in_transaction"):
        return conn.is_closed() or not conn.is_in_transaction()
    return conn.closed or conn.info.transaction_status in (_IDLE, _UNKNOWN)


class _Asyncpg:
    is_async = True

    async def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        return await conn.fetchval(sql, *args)

    def when_ended(self, conn: Any, action: Action) -> None:
        if when_over(conn, _is_over, action, is_told=True) and not _is_over(conn):
            # It tells of each statement that it has run, so also of the one that ends the transaction.
            teller = partial(look_at, id(conn))
            conn.add_query_logger(teller)
            when_over(conn, _is_over, partial(_tell_no_more, weakly(conn), teller), is_told=True)

    def has_committed(self, conn: Any) -> bool:
        return _is_over(conn)


def _tell_no_more(asyncpg_connection: Callable[[], Any], teller: Callable[[object], None]) -> None:
    conn = asyncpg_connection()
    if conn is not None:
        conn.remove_query_logger(teller)


class _Psycopg:
    is_async = False

    def __init__(self) -> None:
        self._transactions: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()

    def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        with self._cursor("Cursor", conn) as cursor:
            cursor.execute(self._with_transaction(sql), args)
            answer, self._transactions[conn] = cursor.fetchone()
        return answer

    def when_ended(self, conn: Any, action: Action) -> None:
        when_over(conn, _is_over, action, transaction=self._transactions.get(conn))

    def has_committed(self, conn: Any) -> bool:
        return _is_over(conn)

    @staticmethod
    def _cursor(kind: str, conn: Any) -> Any:
        """A cursor with %s and tuples, whatever the connection's own are like."""
        return getattr(sys.modules["psycopg"], kind)(conn, row_factory=sys.modules["psycopg.rows"].tuple_row)

    @staticmethod
    def _with_transaction(sql: str) -> str:
        published = f"({_percent(sql)}) as published (answer)"
        return f"select answer, pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text from {published}"


class _AsyncPsycopg(_Psycopg):
    is_async = True

    async def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        async with self._cursor("AsyncCursor", conn) as cursor:
            await cursor.execute(self._with_transaction(sql), args)
            answer, self._transactions[conn] = await cursor.fetchone()
        return answer


class _SqlAlchemy:
    """A Connection. It tells of a commit before, not after it, so it is looked at."""

    is_async = False

    def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        return conn.execute(*self._statement(sql, args)).scalar_one()

    def when_ended(self, conn: Any, action: Action) -> None:
        conn = getattr(conn, "sync_connection", conn)
        when_over(conn, _end_of_transaction(conn), action)

    def has_committed(self, conn: Any) -> bool:
        conn = getattr(conn, "sync_connection", conn)
        return _end_of_transaction(conn)(conn)

    @staticmethod
    def _statement(sql: str, args: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        text = sys.modules["sqlalchemy"].text
        return text(_named(sql)), {f"p{place}": value for place, value in enumerate(args, 1)}


class _AsyncSqlAlchemy(_SqlAlchemy):
    """An AsyncConnection."""

    is_async = True

    async def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        return (await conn.execute(*self._statement(sql, args))).scalar_one()


class _SqlAlchemySession(_SqlAlchemy):
    """A Session. It tells of its end, to one listener for good: one that is being called cannot be removed."""

    def __init__(self) -> None:
        self._waiting: weakref.WeakKeyDictionary[Any, list[tuple[Any, IsOver, Action]]]
        self._waiting = weakref.WeakKeyDictionary()

    def when_ended(self, conn: Any, action: Action) -> None:
        session = self._session(conn)
        connection = session.connection()
        is_over = _end_of_transaction(connection)
        if is_over(connection):
            action()
            return
        if session not in self._waiting:
            self._waiting[session] = []
            sys.modules["sqlalchemy.event"].listen(session, "after_transaction_end", self._ended)
        self._waiting[session].append((connection, is_over, action))

    def has_committed(self, conn: Any) -> bool:
        return super().has_committed(self._session(conn).connection())

    @staticmethod
    def _session(conn: Any) -> Any:
        session = conn.registry() if hasattr(conn, "session_factory") else conn  # a scoped one stands for many
        return getattr(session, "sync_session", session)

    def _ended(self, session: Any, transaction: Any) -> None:
        if transaction.parent is None:  # not a savepoint
            waiting, self._waiting[session] = self._waiting[session], []
            for connection, is_over, action in waiting:
                # That is at once, unless the session is part of a larger transaction.
                when_over(connection, is_over, action)


class _AsyncSqlAlchemySession(_AsyncSqlAlchemy, _SqlAlchemySession):
    """An AsyncSession."""


def _end_of_transaction(conn: Any) -> IsOver:
    """What tells whether the transaction that a Connection of SQLAlchemy is in now has ended."""
    transaction = conn.get_transaction()
    if transaction is None or _is_autocommit(conn):
        return lambda _: True
    this = weakref.ref(transaction)
    return lambda conn: conn.closed or conn.get_transaction() is None or conn.get_transaction() is not this()


def _is_autocommit(conn: Any) -> bool:
    """Whether a Connection of SQLAlchemy that is in a transaction has none in the database."""
    try:
        return _is_over(conn.connection.driver_connection)
    except AttributeError:
        return False  # of another driver


class _Django:
    """django.db.connection, or one of django.db.connections."""

    is_async = False

    def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        with conn.cursor() as cursor:
            cursor.execute(_percent(sql), args)
            return cursor.fetchone()[0]

    def when_ended(self, conn: Any, action: Action) -> None:
        if conn.in_atomic_block:
            # A hook for COMMIT is all that Django has. On ROLLBACK, also to a savepoint, it drops the hook.
            ended = _Once(action)
            conn.on_commit(ended, robust=True)
            when_over(self._of_this_thread(conn), partial(_has_dropped, ended), ended)
        elif conn.get_autocommit():
            action()
        else:  # transactions by hand, for which Django has no hook
            when_over(conn.connection, _is_over, action)

    def has_committed(self, conn: Any) -> bool:
        return not conn.in_atomic_block and bool(conn.get_autocommit())

    @staticmethod
    def _of_this_thread(conn: Any) -> Any:
        """The connection itself: `django.db.connection` is another one in each thread."""
        return conn._connections[conn._alias] if "_alias" in vars(conn) else conn


class _Once:
    """An action that two may call, of which one does it."""

    def __init__(self, action: Action) -> None:
        self._action = action
        self._is_left = threading.Lock()

    def __call__(self) -> None:
        if self._is_left.acquire(blocking=False):
            self._action()


def _has_dropped(hook: Action, conn: Any) -> bool:
    """Whether a connection of Django has called a hook for COMMIT, or will never do so."""
    return all(one[1] is not hook for one in conn.run_on_commit)


_SESSION, _ASYNC_SESSION = _SqlAlchemySession(), _AsyncSqlAlchemySession()

_BY_CLASS: dict[str, Driver] = {
    "asyncpg.Connection": _Asyncpg(),
    "asyncpg.PoolConnectionProxy": _Asyncpg(),
    "psycopg.Connection": _Psycopg(),
    "psycopg.AsyncConnection": _AsyncPsycopg(),
    "sqlalchemy.Session": _SESSION,
    "sqlalchemy.scoped_session": _SESSION,
    "sqlalchemy.Connection": _SqlAlchemy(),
    "sqlalchemy.AsyncSession": _ASYNC_SESSION,
    "sqlalchemy.async_scoped_session": _ASYNC_SESSION,
    "sqlalchemy.AsyncConnection": _AsyncSqlAlchemy(),
    "django.BaseDatabaseWrapper": _Django(),
    "django.ConnectionProxy": _Django(),
}
