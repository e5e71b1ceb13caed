"""Readiness: the server asks the database once a second at most, however many requests come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from postbus._db import migrator
from postbus._db.store import Store
from postbus._runtime.log_events import event
from postbus.errors import DatabaseUnavailable, PostbusError, SchemaError

_REMEMBERED = 1.0  # seconds that an answer of the database holds


class Readiness:
    """Remembers for a second whether the database can be reached, and its schema is right."""

    def __init__(self, store: Callable[[], Awaitable[Store]], *, tells_why: bool) -> None:
        self._store = store
        self._tells_why = tells_why
        """Whether answers give the reason, which may name the database's host and port: not to strangers."""
        self._asked_at = float("-inf")
        self._problem: PostbusError | None = None
        self._asking = asyncio.Lock()

    async def check(self) -> None:
        """Raise an error if the server cannot work."""
        async with self._asking:  # requests at the same time share the answer
            if time.monotonic() - self._asked_at >= _REMEMBERED:
                self._problem = await self._ask()
                self._asked_at = time.monotonic()
        if self._problem is not None:
            raise self._problem.with_traceback(None)

    async def _ask(self) -> PostbusError | None:
        try:
            store = await self._store()
            async with store.connection() as conn:
                await migrator.check(conn)
        except PostbusError as error:
            if self._tells_why:
                return error
            event(logging.WARNING, "http.unready", error=error.message)
            if isinstance(error, SchemaError):
                return SchemaError(
                    "the server does not work with the schema of the database", remedy="see the log of the server"
                )
            return DatabaseUnavailable("the database is away", remedy="see the log of the server")
        return None
