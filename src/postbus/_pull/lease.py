"""What a pop holds: which messages of a lease are still to be settled."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from postbus._db.statements.queue import PulledLease
from postbus._drivers.transaction_end import look_now
from postbus._handling.settler import ClaimedLease
from postbus.errors import InvalidInput, LeaseLost
from postbus.message import Message


class PoppedLease(ClaimedLease):
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


def as_held(leases: Iterable[PulledLease], *, is_of_group: bool) -> list[tuple[Message, PoppedLease | None]]:
    """Each message with its lease; without one if it is acked already."""
    paired: list[tuple[Message, PoppedLease | None]] = []
    for pulled in leases:
        held = None if pulled.token is None else PoppedLease(pulled, is_of_group=is_of_group)
        paired.extend((message, held) for message in pulled.messages)
    return paired
