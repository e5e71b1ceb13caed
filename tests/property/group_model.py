"""What a group of the log is, as simply as it can be said: the model that the life cycle is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Sent:
    """A message that is in the log."""

    id: int
    lane: int
    published_at: datetime


@dataclass
class Reading:
    """A subscription that reads: that of the group, or of its history."""

    id: int
    unread: set[int]
    held: dict[int, Any] = field(default_factory=dict)
    """The lanes that the current worker has, by number."""
    worker: str = ""
    status: str = "IN_PROGRESS"
    """Of a catch-up."""
    at_end: set[int] = field(default_factory=set)
    """Of a catch-up: the lanes in which it has come to its end."""
    is_final: bool = False
    """Of a catch-up: it cannot be resumed any more."""
    settled: int = 0


@dataclass
class Group:
    """A group that is subscribed."""

    name: str
    live: Reading
    not_required: set[int]
    beside_from: int
    max_messages: int | None
    since_at: datetime | None
    since_id: int | None
    state: str = "ACTIVE"
    is_lag_exact: bool = True
    """It counts too much while a group that begins later passes by what is published before that."""
    completed: set[int] = field(default_factory=set)
    by_history: set[int] = field(default_factory=set)
    """Completed by a catch-up, which a later seek does not undo."""
    catch_ups: list[Reading] = field(default_factory=list)

    def status(self, id: int) -> str:
        """What became of a message."""
        in_progress = [one for one in self.catch_ups if one.status == "IN_PROGRESS"]
        if any(id in one.unread for one in (self.live, *in_progress)):
            return "PENDING"
        return "COMPLETED" if id in self.completed | self.by_history else "SKIPPED"

    def requires(self, id: int) -> bool:
        return self.state in ("ACTIVE", "PAUSED") and id not in self.not_required and self.status(id) != "SKIPPED"

    def wants(self, sent: Sent) -> bool:
        """Whether it gets what is published now."""
        return (self.since_at is None or sent.published_at >= self.since_at) and (
            self.since_id is None or sent.id >= self.since_id
        )

    def bound(self) -> tuple[int, int, set[int] | None]:
        """Keep what is before it within bounds: how many there are, how many go, and what a catch-up gets."""
        missed = len(self.live.unread)
        most = missed if self.max_messages is None else self.max_messages
        if missed <= min(most, self.beside_from):
            return missed, 0, None
        self.live.held = {}
        skipped = max(missed - most, 0)
        left = set(sorted(self.live.unread)[skipped:])
        self.live.unread = set()
        self.since_at = self.since_id = None
        return missed, skipped, left

    def seek(self, unread: set[int]) -> None:
        """Be set to a place: what is before it then is open again, and no catch-up goes on."""
        self.is_lag_exact = True
        self.completed -= unread
        self.live.unread = unread
        self.live.held = {}
        for one in self.catch_ups:
            one.held = {}
            one.is_final = True
            if one.status == "IN_PROGRESS":
                one.status = "CANCELLED"
                one.unread = set()

    @property
    def catch_up(self) -> Reading | None:
        """The one that can be cancelled, or resumed."""
        return next((one for one in reversed(self.catch_ups) if one.status != "COMPLETED" and not one.is_final), None)
