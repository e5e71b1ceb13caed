"""COMMIT, so that its outcome is known or said to be unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from postbus._translate import LOST
from postbus.errors import CommitUnknown, DatabaseUnavailable


async def commit(transaction: Any, conn: Any) -> None:
    """Commit a transaction of asyncpg.

    A cancellation that arrives meanwhile is held back until the server has answered: cancelling a COMMIT
    would report an error for a change that may well have happened.
    """
    if is_lost(conn):
        raise DatabaseUnavailable(
            "the connection was lost before COMMIT: nothing has changed",
            remedy="do the whole transaction again",
        )
    committing = asyncio.ensure_future(transaction.commit())
    cancelled: asyncio.CancelledError | None = None
    while not committing.done():
        try:
            await asyncio.wait([committing])
        except asyncio.CancelledError as error:
            cancelled = error
    failure = asyncio.CancelledError() if committing.cancelled() else committing.exception()
    if failure is not None and _leaves_open(failure, conn):
        raise CommitUnknown(
            "the connection broke during COMMIT: the change may or may not have happened",
            remedy="look before you repeat it, or publish with a dedup_key, which makes repeating safe",
        ) from failure
    if failure is not None:
        raise failure
    if cancelled is not None:
        raise cancelled


def _leaves_open(error: BaseException, conn: Any) -> bool:
    """Whether the server may have committed nevertheless: it answered nothing, or only that it ends."""
    shutdown = (asyncpg.exceptions.AdminShutdownError, asyncpg.exceptions.CrashShutdownError)
    if isinstance(error, (*LOST, asyncpg.PostgresConnectionError, *shutdown)):
        return True
    if isinstance(error, asyncio.CancelledError):  # the loop is shut down, and cancels all tasks
        return True
    return is_lost(conn) and not isinstance(error, asyncpg.PostgresError)


def is_lost(conn: Any) -> bool:
    """Whether a connection is closed, also where its pool has taken it back for that."""
    try:
        return bool(conn.is_closed())
    except asyncpg.InterfaceError:
        return True
