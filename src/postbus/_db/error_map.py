"""Translating errors of the driver into errors of Postbus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from postbus._db.addresses import ENCODE
from postbus.errors import (
    AccessDenied,
    DatabaseUnavailable,
    InvalidInput,
    PostbusError,
    SchemaMissing,
    from_database,
)

# On a connection that the server ends at the wrong moment, asyncpg raises InternalClientError.
LOST = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
DRIVER_ERRORS = (asyncpg.PostgresError, *LOST)
"""All errors that a statement may raise."""

MIGRATE = "run, with the DSN of this database: postbus migrate --dsn DSN"
DSN_REMEDY = f"it looks like postgresql://user:password@host:5432/database; {ENCODE}"
_AWAY = (
    asyncpg.PostgresConnectionError,
    OSError,
    TimeoutError,
)
_NOT_LET_IN = (asyncpg.exceptions.InvalidAuthorizationSpecificationError, asyncpg.exceptions.InvalidPasswordError)
_AGAIN = "try again; workers do so automatically"
_AGAIN_THEN = {
    "25006": "use the DSN of a server and a user that may write: standbys are read-only",
    "53100": "free space on the server's disk, and try again",
    "53300": "end some connections or raise max_connections, and try again",
}

_MEANINGS: tuple[tuple[tuple[type[BaseException], ...], type[PostbusError], str, str], ...] = (
    (
        _NOT_LET_IN,
        AccessDenied,
        "the database refused: {}",
        "check the user and the password of the DSN (--dsn, POSTBUS_DSN)",
    ),
    (
        (asyncpg.exceptions.InsufficientPrivilegeError,),
        AccessDenied,
        "the database refused: {}",
        "grant the user a role of this database that may do it: postbus_producer_DATABASE, "
        "postbus_consumer_DATABASE, postbus_observer_DATABASE, postbus_operator_DATABASE or postbus_admin_DATABASE; "
        "to migrate, be the owner of the schema",
    ),
    (
        (asyncpg.exceptions.InvalidCatalogNameError,),
        InvalidInput,
        "{}",
        "create the database, or correct the DSN (--dsn, POSTBUS_DSN)",
    ),
    (
        (asyncpg.exceptions.InvalidSchemaNameError, asyncpg.exceptions.UndefinedFunctionError),
        SchemaMissing,
        "{}",
        MIGRATE,
    ),
    (
        _AWAY,
        DatabaseUnavailable,
        "the database cannot be reached: {}",
        "check that the server runs and that the DSN (--dsn, POSTBUS_DSN) is right",
    ),
    ((asyncpg.exceptions.ClientConfigurationError,), InvalidInput, "bad DSN: {}", DSN_REMEDY),
    (
        (asyncpg.exceptions.DataError,),
        InvalidInput,
        "invalid value: {}",
        "correct the value that the message names",
    ),
    (
        (asyncpg.InterfaceError, asyncpg.InternalClientError),
        DatabaseUnavailable,
        "the connection is lost: {}",
        _AGAIN,
    ),
)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn errors of the driver into errors of Postbus."""
    try:
        yield
    except DRIVER_ERRORS as error:
        if (translated := translate(error)) is None:
            raise
        raise translated from error


def translate(error: BaseException) -> PostbusError | None:
    """The error of Postbus for an error of asyncpg, or None if there is none."""
    # str() of an error of the server would include the hint.
    nameless = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    text = getattr(error, "message", None) or str(error) or nameless
    ours = from_database(getattr(error, "sqlstate", None), text, getattr(error, "hint", None))
    if ours is not None:
        return ours
    if isinstance(error, asyncpg.PostgresError) and _is_transient(error.sqlstate or ""):
        remedy = _AGAIN_THEN.get(error.sqlstate or "", _AGAIN)
        return DatabaseUnavailable(f"the database cannot do this now: {error}", remedy=remedy)
    for kinds, kind, message, remedy in _MEANINGS:
        if isinstance(error, kinds):
            return kind(message.format(text), remedy=remedy)
    return None


def is_deadlock(error: DatabaseUnavailable) -> bool:
    """Whether the server ended a statement because of a deadlock."""
    return isinstance(error.__cause__, asyncpg.DeadlockDetectedError)


def sqlstate_behind(error: BaseException | None) -> str:
    """The SQLSTATE with which the server caused an error of Postbus. Empty if something else caused it."""
    cause = None if error is None else error.__cause__
    return (cause.sqlstate or "") if isinstance(cause, asyncpg.PostgresError) else ""


def may_have_crashed(error: DatabaseUnavailable) -> bool:
    """Whether the server may have gone down, instead of having refused something for the moment.

    Positions that only this process knows may be wrong after that: the server gives out transaction ids and sequences
    again that were not on disk yet.
    """
    cause = error.__cause__
    if not isinstance(cause, asyncpg.PostgresError):
        return True
    ending = (
        cause.__cause__ if isinstance(cause.__cause__, asyncpg.PostgresError) else cause
    )  # the error that ended the connection
    sqlstate = ending.sqlstate or ""
    return sqlstate[:2] in ("08", "58") or sqlstate in ("57P02", "57P03")


def _is_transient(sqlstate: str) -> bool:
    """Whether an error is transient: no resources, a deadlock, a shutdown, a timeout, a lock."""
    return sqlstate[:2] in ("40", "53", "57", "58") or sqlstate in ("25006", "25P03", "25P04", "55P03")


@contextmanager
def dsn_errors() -> Iterator[None]:
    """Translate the plain ValueError that the driver raises for some unreadable DSNs."""
    try:
        yield
    except ValueError as error:
        raise InvalidInput(f"bad DSN: {error}", remedy=DSN_REMEDY) from error
