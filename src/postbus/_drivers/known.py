"""Finding the driver of a connection that the caller owns.

A driver is recognised by the module of the connection's class, so that no library is imported that the caller has not
imported already.
"""

from __future__ import annotations

import weakref
from typing import Any

from postbus._drivers.asyncpg import AsyncpgDriver
from postbus._drivers.base import Driver
from postbus._drivers.django import DjangoDriver
from postbus._drivers.psycopg import AsyncPsycopgDriver, PsycopgDriver
from postbus._drivers.sqlalchemy import (
    AsyncSqlAlchemyDriver,
    AsyncSqlAlchemySessionDriver,
    SqlAlchemyDriver,
    SqlAlchemySessionDriver,
)
from postbus.errors import InvalidInput


def driver_of(conn: Any) -> Driver:
    """The driver for a connection. Refuses connections of unknown libraries."""
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
        "or django.db.connection; or publish by bus.send(), which needs no connection",
    )


_SESSION, _ASYNC_SESSION = SqlAlchemySessionDriver(), AsyncSqlAlchemySessionDriver()

_BY_CLASS: dict[str, Driver] = {
    "asyncpg.Connection": AsyncpgDriver(),
    "asyncpg.PoolConnectionProxy": AsyncpgDriver(),
    "psycopg.Connection": PsycopgDriver(),
    "psycopg.AsyncConnection": AsyncPsycopgDriver(),
    "sqlalchemy.Session": _SESSION,
    "sqlalchemy.scoped_session": _SESSION,
    "sqlalchemy.Connection": SqlAlchemyDriver(),
    "sqlalchemy.AsyncSession": _ASYNC_SESSION,
    "sqlalchemy.async_scoped_session": _ASYNC_SESSION,
    "sqlalchemy.AsyncConnection": AsyncSqlAlchemyDriver(),
    "django.BaseDatabaseWrapper": DjangoDriver(),
    "django.ConnectionProxy": DjangoDriver(),
}
