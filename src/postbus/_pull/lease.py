"""Leases of popped messages, and which of these are still to be settled."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from postbus._db.statements.queue import PulledLease
from postbus._drivers.transaction_end import check_now
from postbus.errors import InvalidInput, LeaseLost
from postbus.message import Message


class MessageState(Enum):
    """The state of one message of a lease, as far as this process knows."""

    OPEN = "open"
    """It is to be settled."""
    SETTLED = "settled"
    """It is settled, or its settlement is under way."""
    IN_TRANSACTION = "in transaction"
    """It is settled in a transaction of the caller that is still open."""
    UNCERTAIN = "uncertain"
    """The transaction that settled it has ended, and its outcome is unknown. The message may be settled again."""
    UNDONE = "undone"
    """The transaction that settled it was rolled back. The message may be settled again."""
    DOUBTFUL = "doubtful"
    """A message before it in its key went back, and may have taken this one along: the database decides."""
    LOST = "lost"
    """Another consumer had the message when it was to be settled."""


_OPEN = (MessageState.OPEN, MessageState.UNCERTAIN, MessageState.UNDONE)
_TO_SETTLE = (*_OPEN, MessageState.DOUBTFUL)
_OF_TRANSACTIONS = (MessageState.IN_TRANSACTION, MessageState.UNCERTAIN, MessageState.UNDONE)


class PoppedLease:
    """A lease that a pop returned, with the state of each of its messages.

    In a group, a message that goes back takes along those of its key that are in hand behind it, unless the group's
    on_failure is "pass". The client does not know which of both it is, so these messages become DOUBTFUL.
    """

    __slots__ = (
        "_ends_in",
        "_in_transaction",
        "_states",
        "_transaction",
        "ends_at",
        "has_keys",
        "is_lost",
        "is_of_group",
        "length",
        "messages",
        "prolong_at",
        "token",
        "topic",
    )

    def __init__(self, pulled: PulledLease, *, is_of_group: bool) -> None:
        assert pulled.token is not None
        assert pulled.length is not None
        self.topic = pulled.topic
        self.token = pulled.token
        self.messages = pulled.messages
        self.length = pulled.length
        self.ends_at: datetime | None = pulled.ends_at
        """The end of the lease that the pop returned, by the clock of the database."""
        self.is_of_group = is_of_group
        self.is_lost = False
        self.has_keys = any(one.key is not None for one in pulled.messages)
        self._states = dict.fromkeys([one.id for one in pulled.messages], MessageState.OPEN)
        self._in_transaction = 0
        """The number of messages in the state IN_TRANSACTION."""
        self._transaction = 0
        """The id of the connection of that transaction."""
        self._ends_in = self.prolong_at = 0.0
        self.was_prolonged(pulled.remaining)

    # the lease

    @property
    def remaining(self) -> timedelta:
        """The time left until the lease ends, as far as this process knows."""
        return timedelta(seconds=max(self._ends_in - time.monotonic(), 0.0))

    @property
    def is_needed(self) -> bool:
        """Whether the lease is worth prolonging."""
        # A transaction that settles something of the lease has it locked: prolonging it would wait for that.
        return not self.is_lost and not self._in_transaction and any(state in _OPEN for state in self._states.values())

    def was_prolonged(self, remaining: timedelta | None = None) -> None:
        """Note that the lease ends after its length from now, or after `remaining`."""
        now, seconds = time.monotonic(), (remaining or self.length).total_seconds()
        self._ends_in = now + seconds
        self.prolong_at = now + seconds / 3

    def lose(self) -> list[int]:
        """Note that another consumer has the lease. Returns the messages that were open."""
        self.is_lost = True
        lost = self.open_ids
        self.were_lost(lost)
        self._states |= dict.fromkeys(self.ids_in(MessageState.DOUBTFUL), MessageState.SETTLED)
        return lost

    # the messages

    @property
    def in_hand(self) -> list[int]:
        """The messages that were never settled."""
        return self.ids_in(MessageState.OPEN)

    @property
    def is_untouched(self) -> bool:
        """Whether no message was ever settled."""
        return [*self._states.values()].count(MessageState.OPEN) == len(self.messages)

    @property
    def open_ids(self) -> list[int]:
        """The messages that are to be settled, in their order."""
        if self._in_transaction:
            check_now()  # whether the caller's transaction has ended
        return [one for one, state in self._states.items() if state in _OPEN]

    def ids_in(self, state: MessageState) -> list[int]:
        """The messages in a state, in their order."""
        return [one for one, known in self._states.items() if known is state]

    def state_of(self, message_id: int) -> MessageState:
        """The state of one message."""
        return self._states[message_id]

    def is_open(self, message_id: int) -> bool:
        """Whether a message is still to be settled."""
        if self._in_transaction and self._states[message_id] is MessageState.IN_TRANSACTION:
            check_now()  # whether the caller's transaction has ended
        return self._states[message_id] in _OPEN

    def start_settling(self, ids: Iterable[int]) -> dict[int, MessageState]:
        """Let nobody else settle these messages. Returns the states to restore if the settlement fails."""
        states = self._states
        before = {one: states[one] for one in ids if states[one] in _TO_SETTLE}
        states |= dict.fromkeys(before, MessageState.SETTLED)
        return before

    def restore(self, before: dict[int, MessageState]) -> None:
        """Undo `start_settling`."""
        self._states |= before

    def were_lost(self, ids: Iterable[int]) -> None:
        """Note that another consumer had these messages when they were to be settled."""
        self._states |= dict.fromkeys(ids, MessageState.LOST)

    def lost_of(self, ids: Iterable[int]) -> list[int]:
        """Those of the messages that are lost."""
        lost = MessageState.LOST
        return [one for one in ids if self._states[one] is lost]

    def doubt_behind(self, ids: Sequence[int]) -> None:
        """Mark as DOUBTFUL the messages behind these in their keys, because these go back."""
        given_back, keys = set(ids), set[str | None]()
        for one in self.messages:
            if one.id in given_back and one.key is not None:
                keys.add(one.key)
            elif one.key in keys and self._states[one.id] is MessageState.OPEN:
                self._states[one.id] = MessageState.DOUBTFUL

    # the transactions of callers that settle messages

    def enter_transaction(self, ids: Collection[int], conn: Any) -> None:
        """Note that messages, just settled, are so if and only if the transaction of `conn` commits."""
        self._states |= dict.fromkeys(ids, MessageState.IN_TRANSACTION)
        self._in_transaction += len(ids)
        self._transaction = id(conn)

    def end_transaction(self, ids: Iterable[int]) -> None:
        """Note that the transaction has ended, by COMMIT or ROLLBACK."""
        self._leave_transaction(
            [one for one in ids if self._states[one] is MessageState.IN_TRANSACTION], MessageState.UNCERTAIN
        )

    def commit_transaction(self, ids: Iterable[int]) -> None:
        """Note that the transaction has committed, and with it the settlement."""
        self._leave_transaction([one for one in ids if self._states[one] in _OF_TRANSACTIONS], MessageState.SETTLED)

    def undo_transaction(self, ids: Iterable[int], *, is_certain: bool) -> None:
        """Note that the transaction was rolled back or, if that is not certain, may have been."""
        self._leave_transaction(ids, MessageState.UNDONE if is_certain else MessageState.UNCERTAIN)

    def _leave_transaction(self, ids: Iterable[int], state: MessageState) -> None:
        for one in ids:
            self._in_transaction -= self._states[one] is MessageState.IN_TRANSACTION
            self._states[one] = state

    def undone_of(self, ids: Iterable[int]) -> list[int]:
        """Those of the messages whose settlement was undone, or may have been."""
        return [one for one in ids if self._states[one] in (MessageState.UNCERTAIN, MessageState.UNDONE)]

    def check_free(self, conn: Any) -> None:
        """Refuse to wait for another transaction of the caller, which has the lease locked."""
        if self._in_transaction:
            check_now()
        if self._in_transaction and self._transaction != id(conn):
            first = min(self.ids_in(MessageState.IN_TRANSACTION))
            raise InvalidInput(
                f"message {first}, of the same lease, is being settled in a transaction that is still open",
                remedy="settle the others in that transaction too, or end it first",
            )

    def check_open(self, message_id: int) -> None:
        """Refuse a message that is settled already."""
        if self.is_open(message_id):
            return
        match self._states[message_id]:
            case MessageState.DOUBTFUL:
                return
            case MessageState.LOST:
                raise lease_lost([message_id])
            case MessageState.IN_TRANSACTION:
                raise InvalidInput(
                    f"message {message_id} is being settled in a transaction that is still open",
                    remedy="commit that transaction, or roll it back, first",
                )
        raise InvalidInput(f"message {message_id} is settled already", remedy="settle each message once")


def lease_lost(ids: Iterable[int]) -> LeaseLost:
    """The error that names messages whose lease is lost."""
    listed = sorted(ids)
    error = LeaseLost(
        f"the lease of {'message' if len(listed) == 1 else 'messages'} {', '.join(map(str, listed[:10]))}"
        f"{', …' if len(listed) > 10 else ''} is lost: another consumer has them, or they are done",
        remedy="discard what you did; next time pop with a longer lease, extend it, or use keep=True",
    )
    error.ids = listed
    return error


def with_leases(pulled: Iterable[PulledLease], *, is_of_group: bool) -> list[tuple[Message, PoppedLease | None]]:
    """Each message with its lease, or without one if it is acked already."""
    paired: list[tuple[Message, PoppedLease | None]] = []
    for one in pulled:
        lease = None if one.token is None else PoppedLease(one, is_of_group=is_of_group)
        paired.extend((message, lease) for message in one.messages)
    return paired
