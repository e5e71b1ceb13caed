"""BEGIN and COMMIT whose outcome is known, or reported as unknown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any

import asyncpg

from postbus._db.error_map import LOST
from postbus._db.search_path import PIN
from postbus._runtime.tasks import hold_cancellation
from postbus.errors import CommitUnknown, DatabaseUnavailable, NotCommitted, TransactionEnded

# Limits are lifted for the transaction only: behind a pooler the session belongs to others, and elsewhere a RESET ALL
# of the user would restore those of the session. The user's own statements keep the limits of the server.
_OPEN_ENDED = ("idle_in_transaction_session_timeout", "transaction_timeout")
_UNLIMITED = (*_OPEN_ENDED, "statement_timeout", "lock_timeout")

_MARK = "pg_catalog.current_setting('postbus.transaction', true)"
# Fails in a transaction without the mark, and in one that has failed, so that the COMMIT behind it does not run.
_CHECK = f"select 1 operator(pg_catalog./) case when {_MARK} operator(pg_catalog.=) '{{}}' then 1 else 0 end"


async def begin(conn: Any, *, for_user: bool = False, mark: str | None = None) -> None:
    """Begin a transaction in READ COMMITTED without time limits, and with a pinned search path unless it is `for_user`.

    asyncpg's own `transaction()` would not do: its `commit` hides that the server has rolled back. Inside of this
    transaction it makes savepoints, as it does inside of its own.

    mark: distinguishes the transaction from a later one that a user begins by hand on the same connection; see
    `fetch_marked` and `commit`.
    """
    has_timeout = conn.get_server_version().major >= 17
    limits = [one for one in (_OPEN_ENDED if for_user else _UNLIMITED) if has_timeout or one != "transaction_timeout"]
    settings = [] if for_user else [PIN]
    settings += [f"set local {limit} = 0" for limit in limits]
    if mark is not None:
        settings.append(f"set local postbus.transaction = '{mark}'")
    _note_transaction(conn, conn.transaction(isolation="read_committed"))
    try:
        await conn.execute(";".join(("begin isolation level read committed", *settings)))
    except BaseException:
        _note_transaction(conn, None)
        raise


async def roll_back(conn: Any) -> None:
    _note_transaction(conn, None)
    await conn.execute("rollback")


async def commit(conn: Any, mark: str | None = None) -> None:
    """Commit the transaction that `begin` began; if a mark is given, only the transaction with that mark.

    A cancellation is held back until the server has answered: cancelling a COMMIT would report an error for a change
    that may well have happened.
    """
    if is_lost(conn):
        raise DatabaseUnavailable(
            "the connection was lost before COMMIT: nothing has changed",
            remedy="do the whole transaction again",
        )
    check_open(conn)
    _note_transaction(conn, None)
    sql = "commit" if mark is None else f"{_CHECK.format(mark)};commit"  # in one round trip
    committing = asyncio.ensure_future(conn.execute(sql))
    cancelled = await hold_cancellation(committing)
    failure = asyncio.CancelledError() if committing.cancelled() else committing.exception()
    if failure is not None and _leaves_open(failure, conn):
        raise CommitUnknown(
            "the connection broke during COMMIT: the change may or may not have happened",
            remedy="check before you repeat it, or publish with a dedup_key, which makes repeating safe",
        ) from failure
    has_failed = isinstance(failure, asyncpg.InFailedSQLTransactionError)
    if failure is not None and not is_lost(conn) and conn.is_in_transaction():
        await conn.execute("rollback")  # the check failed, so the server has not run the COMMIT
        if isinstance(failure, asyncpg.DivisionByZeroError):
            raise _ended_inside()
    if failure is not None and not has_failed:
        raise failure
    if has_failed or committing.result() == "ROLLBACK":
        raise NotCommitted(
            "the server rolled the transaction back, because a statement in it had failed: nothing has changed",
            remedy="do not catch errors of statements within the transaction, or put the statement into a "
            "savepoint: async with conn.transaction()",
        )
    if cancelled is not None:
        raise cancelled


@contextmanager
def repeatable_commit() -> Iterator[None]:
    """Turn CommitUnknown into DatabaseUnavailable, for work that is harmless to do twice: loops repeat it then."""
    try:
        yield
    except CommitUnknown as error:
        raise DatabaseUnavailable(error.message, remedy="try again: doing it twice is harmless") from error.__cause__


@asynccontextmanager
async def committed(conn: Any, *, repeatable: bool = False) -> AsyncIterator[None]:
    """A transaction whose COMMIT cancellation does not interrupt. Raises CommitUnknown if its outcome is unknown.

    repeatable: the work is harmless to do twice; see `repeatable_commit`.
    """
    if conn.is_in_transaction():  # `Borrowed` has begun it, and commits it
        yield
        return
    await begin(conn)
    try:
        yield
    except BaseException:
        if not is_lost(conn):
            await roll_back(conn)
        raise
    with repeatable_commit() if repeatable else nullcontext():
        await commit(conn)


async def fetch_marked(conn: Any, mark: str | None, sql: str, *args: Any) -> Any:
    """Run a statement in a transaction that was lent to a user. Refuses if the user has ended that transaction."""
    check_open(conn)
    row = await conn.fetchrow(f"select ({sql}) as answer, {_MARK} as mark", *args)
    check_open(conn, is_same=mark is None or row["mark"] == mark)
    return row["answer"]


def check_open(conn: Any, *, is_same: bool = True) -> None:
    """Refuse to go on if a user has ended the transaction, which only Postbus may end."""
    if not is_same or not conn.is_in_transaction():
        raise _ended_inside()


def _ended_inside() -> TransactionEnded:
    return TransactionEnded(
        "the transaction was ended by a COMMIT or ROLLBACK inside it: what came before cannot be undone, "
        "and what comes after is in no transaction of Postbus",
        remedy="leave COMMIT and ROLLBACK to Postbus; to undo a part, use a savepoint: async with conn.transaction()",
    )


def _note_transaction(conn: Any, transaction: Any) -> None:
    inner = getattr(conn, "_con", conn)  # the proxy of asyncpg's pool wraps it
    if inner is not None:
        inner._top_xact = transaction


def _leaves_open(error: BaseException, conn: Any) -> bool:
    """Whether the server may have committed nevertheless: it did not answer, or only reported its shutdown."""
    shutdown = (asyncpg.exceptions.AdminShutdownError, asyncpg.exceptions.CrashShutdownError)
    if isinstance(error, (*LOST, asyncpg.PostgresConnectionError, *shutdown)):
        return True
    if isinstance(error, asyncio.CancelledError):  # the event loop is shutting down and cancels all tasks
        return True
    return is_lost(conn) and not isinstance(error, asyncpg.PostgresError)


def is_lost(conn: Any) -> bool:
    """Whether a connection is closed, also if its pool has taken it back for that reason."""
    try:
        return bool(conn.is_closed())
    except asyncpg.InterfaceError:
        return True
