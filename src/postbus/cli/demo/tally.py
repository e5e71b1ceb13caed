"""The state of the demo at a moment: counts, rates, and the last events."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from postbus.bus import Bus
from postbus.cli.demo.shop import EVENTS, GROUPS, TOPICS
from postbus.results import GroupInfo, TopicInfo, WorkerInfo

_RATES_OVER = 3.0  # seconds


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    at: datetime
    who: str
    what: str


@dataclass
class Tally:
    """Counts of everything since the demo began. Written by the service and the worker processes, read by the views."""

    began_at: float = field(default_factory=time.monotonic)
    committed: int = 0
    rolled_back: int = 0
    ghosts: int = 0
    """Handled messages without an order: it was rolled back, or the message came twice."""
    retried: int = 0
    dead: int = 0
    published: Counter[str] = field(default_factory=Counter)
    handled: Counter[str] = field(default_factory=Counter)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=100))
    dead_letters: deque[Event] = field(default_factory=lambda: deque(maxlen=100))
    topics: list[TopicInfo] = field(default_factory=list)
    groups: dict[str, GroupInfo] = field(default_factory=dict)
    workers: list[WorkerInfo] = field(default_factory=list)
    _history: deque[tuple[float, Counter[str], Counter[str], Counter[str]]] = field(default_factory=deque)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began_at

    def tell(self, who: str, what: str) -> None:
        self.events.append(Event(datetime.now(), who, what))

    def add_report(self, who: str, report: dict[str, Any]) -> None:
        """Add the report of a worker process."""
        self.published.update(report.get("published", {}))
        self.handled.update(report.get("handled", {}))
        self.ghosts += report.get("ghosts", 0)
        if name := report.get("event"):
            self._add_event(who, name, report["fields"])

    def _add_event(self, who: str, name: str, fields: dict[str, Any]) -> None:
        self.retried += name == "message.retried"
        if name == "message.dead":
            self.dead += 1
            self.dead_letters.append(Event(datetime.now(), str(fields["topic"]), f"{fields['id']} {fields['error']}"))
        self.tell(who, _in_words(name, fields))

    async def look(self, bus: Bus) -> None:
        """Read topics, groups and workers from the database."""
        self.topics = [topic for topic in await bus.admin.topics() if topic.name in TOPICS]
        self.groups = {group.group_name: group for group in await bus.admin.groups(EVENTS)}
        self.workers = [
            worker for worker in await bus.admin.workers() if set(worker.topics) & TOPICS.keys() and worker.is_alive
        ]
        self._note_history()

    def _note_history(self) -> None:
        passed = Counter({name: int(group.passed or 0) for name, group in self.groups.items()})
        self._history.append((time.monotonic(), self.published.copy(), self.handled.copy(), passed))
        while self._history[0][0] < time.monotonic() - _RATES_OVER:
            self._history.popleft()

    def rates(self) -> tuple[Counter[str], Counter[str], Counter[str]]:
        """Messages published and handled, by topic, and passed, by group, per second over the last seconds."""
        if len(self._history) < 2:
            return Counter(), Counter(), Counter()
        (began, *before), (ended, *after) = self._history[0], self._history[-1]
        span = ended - began
        published, handled, passed = (
            Counter({name: round((new[name] - old[name]) / span) for name in (*TOPICS, *GROUPS)})
            for old, new in zip(before, after, strict=True)
        )
        return published, handled, passed

    def count_in(self, state: str) -> int:
        """How many messages of the shop's topics are in a state."""
        return sum(int(getattr(topic, state)) for topic in self.topics)


def _in_words(name: str, fields: dict[str, Any]) -> str:
    match name:
        case "message.retried":
            error = str(fields["error"]).rpartition(": ")[2]
            return f"tries {fields['topic']} {fields['id']} again: {error}"
        case "message.dead":
            return f"gives up {fields['topic']} {fields['id']}: {fields['error']}"
        case "lease.expired":
            return f"returns {fields['messages']} messages of a worker that died"
        case "worker.started":
            return "has started"
        case _:
            return " ".join((name, *(f"{key}={value}" for key, value in fields.items())))
