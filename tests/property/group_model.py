"""A group of the log, described as simply as possible: the model that the life cycle is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Sent:
    """A message in the log."""

    id: int
    lane: int
    published_at: datetime


@dataclass
class Reading:
    """A subscription that reads: the group's own, or a catch-up."""

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
    """A subscribed group."""

    name: str
    live: Reading
    beside_from: int
    max_messages: int | None
    since_at: datetime | None
    since_id: int | None
    state: str = "ACTIVE"
    is_lag_exact: bool = True
    """It counts too much while a group that begins later passes by what is published before that."""
    completed: set[int] = field(default_factory=set)
    catch_ups: list[Reading] = field(default_factory=list)

    def has_before_it(self, id: int) -> bool:
        in_progress = [one for one in self.catch_ups if one.status == "IN_PROGRESS"]
        return any(id in one.unread for one in (self.live, *in_progress))

    def wants(self, sent: Sent) -> bool:
        """Return whether it gets new messages."""
        return (self.since_at is None or sent.published_at >= self.since_at) and (
            self.since_id is None or sent.id >= self.since_id
        )

    def bound(self) -> tuple[int, int, set[int] | None]:
        """Bound what is before it: how many messages there are, how many are skipped, and how many a catch-up gets."""
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
        """Seek to a position: everything behind it is open again, and no catch-up continues."""
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
        """Return the catch-up that can be cancelled or resumed."""
        return next((one for one in reversed(self.catch_ups) if one.status != "COMPLETED" and not one.is_final), None)


@dataclass
class Messages:
    """The states of the messages. They are updated after each step, and a completion is never taken back."""

    done_by: dict[str, set[int]] = field(default_factory=dict)
    """The messages that each group has settled, by its name; groups that are gone are included."""
    completed: set[int] = field(default_factory=set)
    wanted: set[int] = field(default_factory=set)
    """Some group was required for it, or has settled it."""

    def settle(self, group: str, ids: list[int]) -> None:
        self.done_by.setdefault(group, set()).update(ids)

    def look(self, groups: dict[str, Group], sent: list[Sent]) -> None:
        for one in sent:
            if self._done(one.id) and not self._waited_for(one.id, groups):
                self.completed.add(one.id)
            if self.required(one.id, groups):
                self.wanted.add(one.id)

    def required(self, id: int, groups: dict[str, Group]) -> list[str]:
        waited_for = set() if id in self.completed else self._waited_for(id, groups)
        return sorted(waited_for | self._done(id))

    def state(self, id: int, groups: dict[str, Group]) -> tuple[list[str], list[str], str]:
        done = sorted(self._done(id))
        status = "COMPLETED" if id in self.completed else "PROCESSING" if done else "PENDING"
        return self.required(id, groups), done, status

    def deliveries(self, id: int, groups: dict[str, Group]) -> set[tuple[int, str, str, bool]]:
        required = self.required(id, groups)
        found = {(id, name, "COMPLETED", True) for name in self._done(id)}
        for group in groups.values():
            if id not in self.done_by.get(group.name, ()):
                status = "PENDING" if group.has_before_it(id) else "SKIPPED"
                found.add((id, group.name, status, group.name in required))
        return found

    def _done(self, id: int) -> set[str]:
        return {name for name, ids in self.done_by.items() if id in ids}

    def _waited_for(self, id: int, groups: dict[str, Group]) -> set[str]:
        live = {
            group.name for group in groups.values() if group.state in ("ACTIVE", "PAUSED") and group.has_before_it(id)
        }
        return live - self._done(id)
