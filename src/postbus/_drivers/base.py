"""Running statements of Postbus on a connection that the caller owns, of any driver."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from postbus._drivers.transaction_end import Action
from postbus.errors import PostbusError, from_database


class AsyncConnection(Protocol):
    """A connection or session whose `execute` is awaited: asyncpg, psycopg, SQLAlchemy."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...


class Driver(Protocol):
    """Runs statements with $1, $2, … on connections of one library, and notices the end of their transactions."""

    is_async: bool

    def run(self, conn: Any, sql: str, args: Sequence[Any]) -> Any:
        """Run a statement. Returns its one value, or an awaitable of it."""

    def when_ended(self, conn: Any, action: Action) -> None:
        """Call `action` once, soon after the connection's transaction has ended, by COMMIT or ROLLBACK."""

    def has_committed(self, conn: Any) -> bool:
        """Whether the last statement was a transaction of its own, because the connection is in none."""


def translate_from(driver_error: BaseException) -> BaseException:
    """The error of Postbus that SQL raised, or the caller's error as it is if SQL raised none."""
    ours: PostbusError | None = None
    error: BaseException | None = driver_error
    seen = set[int]()
    while error is not None and id(error) not in seen:  # libraries wrap the driver's error, which has the most detail
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


def with_percent_s(sql: str) -> str:
    return _PLACEHOLDER.sub("%s", sql)


def with_names(sql: str) -> str:
    return _PLACEHOLDER.sub(r":p\1", sql).replace("::", r"\:\:")


_IDLE, _UNKNOWN = 0, 4  # of libpq's PGTransactionStatusType; the latter of a broken connection


def is_over(conn: Any) -> bool:
    """Whether a connection of asyncpg or psycopg is in no transaction."""
    if hasattr(conn, "is_in_transaction"):
        return conn.is_closed() or not conn.is_in_transaction()
    return conn.closed or conn.info.transaction_status in (_IDLE, _UNKNOWN)
