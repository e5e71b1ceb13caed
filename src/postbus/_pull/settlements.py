"""Settling what pops hold: each message once, in the caller's transaction or at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from postbus._pull.lease import PoppedLease, lease_lost
from postbus.errors import CommitUnknown


class How(NamedTuple):
    """A settlement: ack, retry, release or dead_letter."""

    kind: str
    delay: timedelta | None = None
    error: str | None = None
    reason: str = ""

    @property
    def gives_back(self) -> bool:
        """Others can have the messages then, now or later."""
        return self.kind in ("retry", "release")


ACK, RELEASE = How("ack"), How("release")


class SettlementBackend(Protocol):
    """Where leases are settled: a database, or a server before it."""

    async def settle(self, how: How, lease: PoppedLease, ids: list[int], conn: Any) -> set[int]:
        """Settle messages of a lease, in the transaction of `conn` if there is one. Returns those that are lost."""

    async def ack_leases(self, leases: Sequence[PoppedLease]) -> set[UUID]:
        """Ack all messages of leases, together. Returns the leases that are lost."""

    async def extend(self, leases: Sequence[PoppedLease], length: timedelta) -> set[UUID]:
        """Prolong leases, from now. Returns those that are lost."""

    def when_ended(self, conn: Any, action: Callable[[], None]) -> None:
        """Call `action` soon after the transaction of `conn` has ended."""

    def was_settled(self, how: How, lease: PoppedLease) -> None:
        """Others may have waited for this: for the message itself, or for one behind it in its key."""


class Settlements:
    """Settles what pops hold."""

    def __init__(self, door: SettlementBackend) -> None:
        self._door = door
        self._transactions: dict[int, list[tuple[PoppedLease, list[int]]]] = {}
        """What was settled in transactions of the bus, by their connections."""

    async def settle(self, how: How, ids_of: dict[PoppedLease, list[int]], conn: Any = None) -> None:
        """Settle messages, lease by lease. Raises LeaseLost for those that somebody else has by now."""
        # In the order of tokens, as all who lock several leases do.
        for lease in sorted(ids_of, key=lambda lease: lease.token):
            await self._settle_lease(how, lease, ids_of[lease], conn)
        _tell_lost(ids_of)

    async def ack_whole(self, leases: Sequence[PoppedLease]) -> None:
        """Ack all that is open in leases of which nothing was settled yet: in one go for all of them."""
        ids_of = {lease: lease.open_ids for lease in leases}
        with _taken(ids_of):
            lost = await self._door.ack_leases(leases)
        for lease in leases:
            self._door.was_settled(ACK, lease)
            if lease.token in lost:
                lease.lost.update(ids_of[lease])
        _tell_lost(ids_of)

    async def _settle_lease(self, how: How, lease: PoppedLease, ids: list[int], conn: Any) -> None:
        lease.check_free(conn)
        unsure = {one for one in ids if lease.undone.get(one) is False}  # a commit explains why they are lost
        with _taken({lease: ids}):
            lost = await self._door.settle(how, lease, ids, conn)
        lease.lost |= lost - unsure
        if how.gives_back and lease.is_of_group:
            lease.doubt_behind(ids)
        if conn is None:
            self._door.was_settled(how, lease)
        else:
            self._give(how, lease, [one for one in ids if one not in lost], conn)

    def _give(self, how: How, lease: PoppedLease, ids: list[int], conn: Any) -> None:
        """They are settled if the caller's transaction commits."""
        lease.given.update(ids)
        lease.given_to = id(conn)
        if id(conn) in self._transactions:
            self._transactions[id(conn)].append((lease, ids))

        def ended() -> None:
            self._door.was_settled(how, lease)
            for one in lease.given.intersection(ids):
                lease.given.discard(one)
                lease.undone[one] = False

        self._door.when_ended(conn, ended)

    @contextmanager
    def noting(self) -> Iterator[Callable[[Any], None]]:
        """Learn what becomes of a transaction of the bus: it has committed if the block ends without an error."""
        settled: list[tuple[PoppedLease, list[int]]] = []
        conns: list[Any] = []

        def note(conn: Any) -> None:
            conns.append(conn)
            self._transactions[id(conn)] = settled

        try:
            yield note
        except CommitUnknown:
            _were_undone(settled, is_certain=False)
            raise
        except BaseException:
            _were_undone(settled, is_certain=True)
            raise
        else:
            for lease, ids in settled:
                lease.given.difference_update(ids)
                lease.undone = {one: is_certain for one, is_certain in lease.undone.items() if one not in ids}
        finally:
            for conn in conns:
                self._transactions.pop(id(conn), None)


def _were_undone(settled: list[tuple[PoppedLease, list[int]]], *, is_certain: bool) -> None:
    for lease, ids in settled:
        lease.given.difference_update(ids)
        lease.undone |= dict.fromkeys(ids, is_certain)


@contextmanager
def _taken(ids_of: dict[PoppedLease, list[int]]) -> Iterator[None]:
    """Nobody else settles these messages meanwhile. If it fails they are as they were."""
    before = [
        (lease, lease.in_hand.intersection(ids), lease.doubtful.intersection(ids), lease.undone_of(ids))
        for lease, ids in ids_of.items()
    ]
    for lease, in_hand, doubtful, undone in before:
        lease.in_hand -= in_hand
        lease.doubtful -= doubtful
        lease.undone = {one: is_sure for one, is_sure in lease.undone.items() if one not in undone}
    try:
        yield
    except BaseException:
        for lease, in_hand, doubtful, undone in before:
            lease.in_hand |= in_hand
            lease.doubtful |= doubtful
            lease.undone |= undone
        raise


def _tell_lost(ids_of: dict[PoppedLease, list[int]]) -> None:
    lost = [one for lease, ids in ids_of.items() for one in lease.lost.intersection(ids)]
    if lost:
        raise lease_lost(lost)
