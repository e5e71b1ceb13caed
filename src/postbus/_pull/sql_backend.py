"""Settling popped messages by SQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from postbus._db.error_map import is_deadlock
from postbus._db.statements import settlements
from postbus._db.store import Store
from postbus._drivers.known import driver_of
from postbus._drivers.statement import Statement
from postbus._pull.lease import PoppedLease
from postbus._pull.settlements import Settlement
from postbus._wakeup.waiters import Wakers, topic_id
from postbus.errors import DatabaseUnavailable

T = TypeVar("T")
_DEADLOCKS = 3  # in a row, after which the error is raised


class SqlBackend:
    """Settles on a connection of the bus or of the caller, and wakes consumers that may have waited for it."""

    def __init__(self, store: Store, wakers: Wakers, notify: Callable[[str], None]) -> None:
        self._store = store
        self._wakers = wakers
        self._notify = notify

    async def settle(self, settlement: Settlement, lease: PoppedLease, ids: list[int], conn: Any) -> set[int]:
        ask = partial(self._store.settle, _statement(settlement, lease.token, ids), conn)
        return settlements.lost(await (_through_deadlocks(ask) if conn is None else ask()))

    async def ack_leases(self, leases: Sequence[PoppedLease]) -> set[UUID]:
        return await _through_deadlocks(partial(self._store.ack_leases, [lease.token for lease in leases]))

    async def extend(self, leases: Sequence[PoppedLease], length: timedelta) -> set[UUID]:
        return await self._store.extend([lease.token for lease in leases], length)

    def when_ended(self, conn: Any, action: Callable[[], None]) -> None:
        driver_of(conn).when_ended(conn, action)

    def was_settled(self, settlement: Settlement, lease: PoppedLease) -> None:
        if settlement.gives_back or lease.is_of_group:
            self._notify(lease.topic)
        elif lease.has_keys:  # of a queue that may be ordered: other processes poll soon
            self._wakers.wake(topic_id(lease.topic))


async def _through_deadlocks(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again after a deadlock, as with a `reindex`. It changed nothing, and without another try the messages
    would be delivered again."""
    for _ in range(_DEADLOCKS - 1):
        try:
            return await ask()
        except DatabaseUnavailable as error:
            if not is_deadlock(error):
                raise
    return await ask()


def _statement(settlement: Settlement, token: UUID, ids: list[int]) -> Statement:
    match settlement.kind:
        case "ack":
            return settlements.ack(token, ids)
        case "retry":
            return settlements.retry(token, ids, delay=settlement.delay, error=settlement.error)
        case "release":
            return settlements.release(token, ids)
        case _:
            return settlements.dead_letter(token, ids, reason=settlement.reason, error=settlement.error)
