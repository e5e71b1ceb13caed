"""Settling popped messages: each once, in a transaction of the caller or at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from postbus._pull.lease import MessageState, PoppedLease, lease_lost
from postbus.errors import CommitUnknown


class Settlement(NamedTuple):
    """A way to settle messages: ack, retry, release or dead_letter."""

    kind: str
    delay: timedelta | None = None
    error: str | None = None
    reason: str = ""

    @property
    def gives_back(self) -> bool:
        """Whether other consumers can have the messages then, now or later."""
        return self.kind in ("retry", "release")


ACK, RELEASE = Settlement("ack"), Settlement("release")


class SettlementBackend(Protocol):
    """Where leases are settled: a database, or a server in front of it."""

    async def settle(self, settlement: Settlement, lease: PoppedLease, ids: list[int], conn: Any) -> set[int]:
        """Settle messages of a lease, in the transaction of `conn` if there is one. Returns those that are lost."""

    async def ack_leases(self, leases: Sequence[PoppedLease]) -> set[UUID]:
        """Ack all messages of leases together. Returns the leases that are lost."""

    async def extend(self, leases: Sequence[PoppedLease], length: timedelta) -> set[UUID]:
        """Prolong leases, from now on. Returns those that are lost."""

    def when_ended(self, conn: Any, action: Callable[[], None]) -> None:
        """Call `action` soon after the transaction of `conn` has ended."""

    def was_settled(self, settlement: Settlement, lease: PoppedLease) -> None:
        """Wake consumers that may have waited for a message of the lease, or for one behind it in its key."""


class LeaseSettler:
    """Settles messages of popped leases, and keeps track of those that transactions of callers settle."""

    def __init__(self, backend: SettlementBackend) -> None:
        self._backend = backend
        self._transactions: dict[int, list[tuple[PoppedLease, list[int]]]] = {}
        """The messages settled in each transaction of the bus, by the id of its connection."""

    async def settle(self, settlement: Settlement, ids_of: dict[PoppedLease, list[int]], conn: Any = None) -> None:
        """Settle messages, lease by lease. Raises LeaseLost for those that another consumer has by now."""
        # Whoever locks several leases locks them in the order of their tokens.
        for lease in sorted(ids_of, key=lambda lease: lease.token):
            await self._settle_lease(settlement, lease, ids_of[lease], conn)
        _raise_if_lost(ids_of)

    async def ack_whole(self, leases: Sequence[PoppedLease]) -> None:
        """Ack leases of which nothing was settled yet: all messages of all leases in one statement."""
        ids_of = {lease: lease.open_ids for lease in leases}
        with _settling(ids_of):
            lost = await self._backend.ack_leases(leases)
        for lease in leases:
            self._backend.was_settled(ACK, lease)
            if lease.token in lost:
                lease.were_lost(ids_of[lease])
        _raise_if_lost(ids_of)

    async def _settle_lease(self, settlement: Settlement, lease: PoppedLease, ids: list[int], conn: Any) -> None:
        lease.check_free(conn)
        # If the earlier transaction did commit after all, that is why the database has these no longer.
        uncertain = {one for one in ids if lease.state_of(one) is MessageState.UNCERTAIN}
        with _settling({lease: ids}):
            lost = await self._backend.settle(settlement, lease, ids, conn)
        lease.were_lost(lost - uncertain)
        if settlement.gives_back and lease.is_of_group:
            lease.doubt_behind(ids)
        if conn is None:
            self._backend.was_settled(settlement, lease)
        else:
            self._await_commit(settlement, lease, [one for one in ids if one not in lost], conn)

    def _await_commit(self, settlement: Settlement, lease: PoppedLease, ids: list[int], conn: Any) -> None:
        """Watch the caller's transaction: the messages are settled if and only if it commits."""
        lease.enter_transaction(ids, conn)
        if id(conn) in self._transactions:
            self._transactions[id(conn)].append((lease, ids))

        def ended() -> None:
            self._backend.was_settled(settlement, lease)
            lease.end_transaction(ids)

        self._backend.when_ended(conn, ended)

    @contextmanager
    def noting(self) -> Iterator[Callable[[Any], None]]:
        """Note the outcome of a transaction of the bus: it has committed if the block ends without an error."""
        settled: list[tuple[PoppedLease, list[int]]] = []
        conns: list[Any] = []

        def note(conn: Any) -> None:
            conns.append(conn)
            self._transactions[id(conn)] = settled

        try:
            yield note
        except BaseException as error:
            for lease, ids in settled:
                lease.undo_transaction(ids, is_certain=not isinstance(error, CommitUnknown))
            raise
        else:
            for lease, ids in settled:
                lease.commit_transaction(ids)
        finally:
            for conn in conns:
                self._transactions.pop(id(conn), None)


@contextmanager
def _settling(ids_of: dict[PoppedLease, list[int]]) -> Iterator[None]:
    """Let nobody else settle these messages meanwhile. If the block fails, their states are restored."""
    before = {lease: lease.start_settling(ids) for lease, ids in ids_of.items()}
    try:
        yield
    except BaseException:
        for lease, states in before.items():
            lease.restore(states)
        raise


def _raise_if_lost(ids_of: dict[PoppedLease, list[int]]) -> None:
    if lost := [one for lease, ids in ids_of.items() for one in lease.lost_of(ids)]:
        raise lease_lost(lost)
