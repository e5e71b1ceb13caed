"""COMMIT, so that its outcome is known or said to be unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from postbus.errors import CommitUnknown


async def commit(transaction: Any, conn: Any) -> None:
    """Commit a transaction of asyncpg.

    A cancellation that arrives meanwhile is held back until the server has answered: cancelling a COMMIT
    would report an error for a change that may well have happened.
    """
    committing = asyncio.ensure_future(transaction.commit())
    cancelled: asyncio.CancelledError | None = None
    while not committing.done():
        try:
            await asyncio.shield(committing)
        except asyncio.CancelledError as error:
            if committing.cancelled():
                break
            cancelled = error
        except BaseException:
            break  # told below
    error = None if committing.cancelled() else committing.exception()
    if committing.cancelled() or (error is not None and _leaves_open(error, conn)):
        raise CommitUnknown(
            "the connection broke during COMMIT: the change may or may not have happened",
            remedy="look before you repeat it, or publish with a dedup_key, which makes repeating safe",
        ) from error
    if error is not None:
        raise error
    if cancelled is not None:
        raise cancelled


def _leaves_open(error: BaseException, conn: Any) -> bool:
    """Whether the server may have committed nevertheless: it answered nothing, or only that it ends."""
    if isinstance(error, asyncpg.PostgresConnectionError | asyncpg.InterfaceError | OSError):
        return True
    shutdown = asyncpg.exceptions.AdminShutdownError | asyncpg.exceptions.CrashShutdownError
    return isinstance(error, shutdown) or (conn.is_closed() and not isinstance(error, asyncpg.PostgresError))
