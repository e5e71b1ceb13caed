"""Where leases are settled: the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from postbus import _settle_sql
from postbus._drivers import driver_of
from postbus._held import Held
from postbus._settlements import How
from postbus._store import Store
from postbus._wake import Bells, topic_id
from postbus.errors import DatabaseUnavailable
from postbus.publish import Statement

T = TypeVar("T")
_DEADLOCKS = 3  # in a row, after which the caller is told


class SqlDoor:
    """Settles by SQL, on a connection of the bus or of the caller, and wakes who may have waited for it."""

    def __init__(self, store: Store, bells: Bells, ring: Callable[[str], None]) -> None:
        self._store = store
        self._bells = bells
        self._ring = ring

    async def settle(self, how: How, lease: Held, ids: list[int], conn: Any) -> set[int]:
        ask = partial(self._store.settle, _statement(how, lease.token, ids), conn)
        return _settle_sql.lost(await (_through_deadlocks(ask) if conn is None else ask()))

    async def ack_leases(self, leases: Sequence[Held]) -> set[UUID]:
        return await _through_deadlocks(partial(self._store.ack_leases, [lease.token for lease in leases]))

    async def extend(self, leases: Sequence[Held], length: timedelta) -> set[UUID]:
        return await self._store.extend([lease.token for lease in leases], length)

    def when_ended(self, conn: Any, action: Callable[[], None]) -> None:
        driver_of(conn).when_ended(conn, action)

    def was_settled(self, how: How, lease: Held) -> None:
        if how.gives_back or lease.is_of_group:
            self._ring(lease.topic)
        elif lease.has_keys:  # of a queue that may be ordered: other processes look again soon
            self._bells.ring(topic_id(lease.topic))


async def _through_deadlocks(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again after a deadlock, as with a `reindex`: then nothing was changed, and the messages would come again."""
    for _ in range(_DEADLOCKS - 1):
        try:
            return await ask()
        except DatabaseUnavailable as error:
            if not isinstance(error.__cause__, asyncpg.DeadlockDetectedError):
                raise
    return await ask()


def _statement(how: How, token: UUID, ids: list[int]) -> Statement:
    match how.kind:
        case "ack":
            return _settle_sql.ack(token, ids)
        case "retry":
            return _settle_sql.retry(token, ids, delay=how.delay, error=how.error)
        case "release":
            return _settle_sql.release(token, ids)
        case _:
            return _settle_sql.dead_letter(token, ids, reason=how.reason, error=how.error)
