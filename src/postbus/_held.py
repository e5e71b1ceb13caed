"""What a pop holds: which messages of a lease are still to be settled, and settling them, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from postbus import _settlement
from postbus._drivers import driver_of
from postbus._queue_store import PulledLease
from postbus._settle import HeldLease
from postbus._store import Store
from postbus._watch import look_now
from postbus.errors import InvalidInput, LeaseLost
from postbus.message import Message
from postbus.publish import Statement


class How(NamedTuple):
    """A kind of settlement, such as ack."""

    statement: Callable[[UUID, Sequence[int]], Statement]
    gives_back: bool = False
    """Others can have the messages then, now or later."""


class Held(HeldLease):
    """A lease that a pop brought.

    A settlement in a transaction of the caller counts when that commits. Until then its messages are `given`; when
    the transaction has ended and is not known to have committed, they are `undone`: they may be settled again.

    In a group, a message that goes back takes those of its key along that are in hand behind it, unless the group lets
    them pass. Which of both it is, we are not told: they are `doubtful`.
    """

    __slots__ = (
        "doubtful",
        "ends_at",
        "ends_in",
        "given",
        "given_to",
        "has_keys",
        "is_of_group",
        "lost",
        "messages",
        "undone",
    )

    def __init__(self, pulled: PulledLease, *, is_of_group: bool) -> None:
        assert pulled.token is not None
        assert pulled.length is not None
        self.is_of_group = is_of_group
        self.messages = pulled.messages
        self.has_keys = any(one.key is not None for one in pulled.messages)
        self.ends_at: datetime | None = pulled.ends_at
        """By the clock of the database, when the messages were popped."""
        self.ends_in = 0.0
        self.given: set[int] = set()
        self.given_to = 0
        """The id of that transaction's connection."""
        self.undone: dict[int, bool] = {}
        """And whether that is certain."""
        self.doubtful: set[int] = set()
        self.lost: set[int] = set()
        """What somebody else had when it was to be settled."""
        super().__init__(pulled.topic, pulled.token, pulled.messages, pulled.length, remaining=pulled.remaining)

    def was_prolonged(self, remaining: timedelta | None = None) -> None:
        super().was_prolonged(remaining)
        self.ends_in = time.monotonic() + (remaining or self.length).total_seconds()

    @property
    def is_needed(self) -> bool:
        # A transaction that settles something of the lease has it locked: prolonging it would wait for that.
        return bool(self.in_hand or self.undone) and not self.given and not self.is_lost

    @property
    def remaining(self) -> timedelta:
        """What is left of the lease, as far as this process knows."""
        return timedelta(seconds=max(self.ends_in - time.monotonic(), 0.0))

    def is_open(self, message_id: int) -> bool:
        """Whether a message is still to be settled."""
        if message_id in self.given:
            look_now()  # whether the caller's transaction has ended
        return message_id in self.in_hand or message_id in self.undone

    @property
    def open_ids(self) -> list[int]:
        """What is to be settled, in the order of the messages."""
        return [one.id for one in self.messages if self.is_open(one.id)]

    def doubt_behind(self, ids: Sequence[int]) -> None:
        """These messages go back: what is behind them in their keys is doubtful."""
        keys: set[str | None] = set()
        for one in self.messages:
            if one.id in ids and one.key is not None:
                keys.add(one.key)
            elif one.key in keys and one.id in self.in_hand:
                self.in_hand.discard(one.id)
                self.doubtful.add(one.id)

    def lose(self) -> list[int]:
        """Somebody else has it. Returns what was open."""
        self.is_lost = True
        lost = self.open_ids
        self.lost.update(lost)
        self.in_hand.clear()
        self.undone.clear()
        self.doubtful.clear()
        return lost

    def check_free(self, conn: Any) -> None:
        """Refuse to wait for the caller's own transaction, which has the lease locked."""
        if self.given:
            look_now()
        if self.given and self.given_to != id(conn):
            raise InvalidInput(
                f"message {min(self.given)}, of the same lease, is being settled in a transaction that is still open",
                remedy="settle the others in it, too, or end it first",
            )

    def undone_of(self, ids: Sequence[int]) -> dict[int, bool]:
        """Those of them whose settlement was undone, or may have been."""
        return {one: self.undone[one] for one in ids if one in self.undone}

    def check_open(self, message_id: int) -> None:
        """Refuse what is settled already."""
        if self.is_open(message_id) or message_id in self.doubtful:
            return
        if message_id in self.lost:
            raise lease_lost([message_id])
        if message_id in self.given:
            raise InvalidInput(
                f"message {message_id} is being settled in a transaction that is still open",
                remedy="commit that, or roll it back, first",
            )
        raise InvalidInput(f"message {message_id} is settled already", remedy="settle each message once")


ACK = How(_settlement.ack)
RELEASE = How(_settlement.release, gives_back=True)


def retry(delay: timedelta | None, error: str | None) -> How:
    return How(partial(_settlement.retry, delay=delay, error=error), gives_back=True)


def dead_letter(reason: str, error: str | None) -> How:
    return How(partial(_settlement.dead_letter, reason=reason, error=error))


class Settlements:
    """Settles what pops hold."""

    def __init__(self, store: Store, ring_here: Callable[[str], None], ring: Callable[[str], None]) -> None:
        self._store = store
        self._ring_here = ring_here
        self._ring = ring
        self._transactions: dict[int, list[tuple[Held, list[int]]]] = {}
        """What was settled in transactions of the bus, by their connections."""

    async def settle(self, how: How, ids_of: dict[Held, list[int]], conn: Any = None) -> None:
        """Settle messages, one statement for each lease. Raises LeaseLost for those that somebody else has by now."""
        # In the order of tokens, as all who lock several leases do.
        for lease in sorted(ids_of, key=lambda lease: lease.token):
            await self._settle_lease(how, lease, ids_of[lease], conn)
        _tell_lost(ids_of)

    async def ack_whole(self, leases: Sequence[Held]) -> None:
        """Ack all that is open in leases of which nothing was settled yet: in one statement for all of them."""
        ids_of = {lease: lease.open_ids for lease in leases}
        with _taken(ids_of):
            lost = await self._store.ack_leases([lease.token for lease in leases])
        for lease in leases:
            self._may_go_on(lease, ACK)
            if lease.token in lost:
                lease.lost.update(ids_of[lease])
        _tell_lost(ids_of)

    async def _settle_lease(self, how: How, lease: Held, ids: list[int], conn: Any) -> None:
        lease.check_free(conn)
        unsure = {one for one in ids if lease.undone.get(one) is False}  # a commit explains why they are lost
        with _taken({lease: ids}):
            answer = await self._store.settle(how.statement(lease.token, ids), conn)
        lost = _settlement.lost(answer)
        lease.lost |= lost - unsure
        if how.gives_back and lease.is_of_group:
            lease.doubt_behind(ids)
        if conn is None:
            self._may_go_on(lease, how)
        else:
            self._give(how, lease, [one for one in ids if one not in lost], conn)

    def _give(self, how: How, lease: Held, ids: list[int], conn: Any) -> None:
        """They are settled if the caller's transaction commits."""
        lease.given.update(ids)
        lease.given_to = id(conn)
        if id(conn) in self._transactions:
            self._transactions[id(conn)].append((lease, ids))

        def ended() -> None:
            self._may_go_on(lease, how)
            for one in lease.given.intersection(ids):
                lease.given.discard(one)
                lease.undone[one] = False

        driver_of(conn).after_commit(conn, ended)

    def _may_go_on(self, lease: Held, how: How) -> None:
        """Others may have waited for this: for the message itself, or for one behind it in its key."""
        if how.gives_back or lease.is_of_group:
            self._ring(lease.topic)
        elif lease.has_keys:  # of a queue that may be ordered: other processes look again soon
            self._ring_here(lease.topic)

    @contextmanager
    def noting(self) -> Iterator[Callable[[Any], None]]:
        """Learn what becomes of a transaction of the bus: it has committed if the block ends without an error."""
        settled: list[tuple[Held, list[int]]] = []
        conns: list[Any] = []

        def note(conn: Any) -> None:
            conns.append(conn)
            self._transactions[id(conn)] = settled

        is_committed = False
        try:
            yield note
            is_committed = True
        finally:
            for conn in conns:
                self._transactions.pop(id(conn), None)
            for lease, ids in settled:
                lease.given.difference_update(ids)
                for one in ids:
                    if is_committed:
                        lease.undone.pop(one, None)
                    else:
                        lease.undone[one] = True


@contextmanager
def _taken(ids_of: dict[Held, list[int]]) -> Iterator[None]:
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


def _tell_lost(ids_of: dict[Held, list[int]]) -> None:
    lost = [one for lease, ids in ids_of.items() for one in lease.lost.intersection(ids)]
    if lost:
        raise lease_lost(lost)


def lease_lost(ids: Iterable[int]) -> LeaseLost:
    """Says whose messages these are no longer."""
    listed = sorted(ids)
    error = LeaseLost(
        f"the lease of {'message' if len(listed) == 1 else 'messages'} {', '.join(map(str, listed[:10]))}"
        f"{', …' if len(listed) > 10 else ''} is lost: somebody else has them, or they are done",
        remedy="drop what you did; next time ask for a longer lease, extend it, or pop with keep=True",
    )
    error.ids = listed
    return error


def as_held(leases: Iterable[PulledLease], *, is_of_group: bool) -> list[tuple[Message, Held | None]]:
    """Each message with its lease; without one if it is acked already."""
    paired: list[tuple[Message, Held | None]] = []
    for pulled in leases:
        held = None if pulled.token is None else Held(pulled, is_of_group=is_of_group)
        paired.extend((message, held) for message in pulled.messages)
    return paired
