"""Connections and sessions of SQLAlchemy, synchronous and asynchronous."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

from postbus._drivers.base import is_over, with_names
from postbus._drivers.transaction_end import Action, IsOver, when_over


class SqlAlchemyDriver:
    """A Connection. Its commit event comes before the commit and not after it, so the connection is checked."""

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
        return text(with_names(sql)), {f"p{number}": value for number, value in enumerate(args, 1)}


class AsyncSqlAlchemyDriver(SqlAlchemyDriver):
    """An AsyncConnection."""

    is_async = True

    async def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        return (await conn.execute(*self._statement(sql, args))).scalar_one()


class SqlAlchemySessionDriver(SqlAlchemyDriver):
    """A Session. It has one listener for good, because a listener that is being called cannot be removed."""

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
        session = (
            conn.registry() if hasattr(conn, "session_factory") else conn
        )  # a scoped_session stands for a session of each thread or task
        return getattr(session, "sync_session", session)

    def _ended(self, session: Any, transaction: Any) -> None:
        if transaction.parent is None:  # not a savepoint
            waiting, self._waiting[session] = self._waiting[session], []
            for connection, is_over, action in waiting:
                # The connection's transaction ends with it, unless the session is part of a larger one.
                when_over(connection, is_over, action)


class AsyncSqlAlchemySessionDriver(AsyncSqlAlchemyDriver, SqlAlchemySessionDriver):
    """An AsyncSession."""


def _end_of_transaction(conn: Any) -> IsOver:
    """A function that says whether the current transaction of a Connection has ended."""
    transaction = conn.get_transaction()
    if transaction is None or _is_autocommit(conn):
        return lambda _: True
    this = weakref.ref(transaction)
    return lambda conn: conn.closed or conn.get_transaction() is None or conn.get_transaction() is not this()


def _is_autocommit(conn: Any) -> bool:
    """Whether a Connection that is in a transaction for SQLAlchemy has none in the database."""
    try:
        return is_over(conn.connection.driver_connection)
    except AttributeError:
        return False  # of another driver
