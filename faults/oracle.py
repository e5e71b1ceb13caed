"""The judgement: what the files say must have happened, against what they say has happened.

LOST        committed, and not handled by some group
PHANTOM     handled, and never committed
ATOMIC      a transaction of which a part was handled, and a part was not
DUPLICATE   handled twice, with nothing that happened in between to explain it
EFFECT      the effect of a handler that is transactional, or uses the inbox, more than once
ORDER       begun before an earlier message of its key had been handled
FENCE       two settlements of the same thing, and both were accepted
RETAIN      dropped before a group that lives had had it
RECEIPT     handled by all, and not said to be COMPLETED
DEAD        given up, without being poison
LIVE        not all handled in time after the last fault, or a process that ended by itself
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from faults.journal import (
    AnyRecord,
    Disruption,
    HandlerBegan,
    HandlerEnded,
    Handling,
    PublishAttempt,
    SettlementAccepted,
    TransactionCommitted,
    TransactionFailed,
)
from faults.modes import MODES, Mode

CHECKS = (
    "LOST", "PHANTOM", "ATOMIC", "DUPLICATE", "EFFECT", "ORDER", "FENCE", "RETAIN", "RECEIPT", "DEAD", "LIVE"
)  # fmt: skip


class GroupMessage(NamedTuple):
    """A message in the eyes of one group."""

    mode: str
    group: str
    key: str
    n: int


class Finding(NamedTuple):
    """Something that must not be."""

    check: str
    mode: str
    """Or empty, where it concerns all."""
    what: str


@dataclass
class Facts:
    """Facts that only the database knows, queried when all was quiet again."""

    effects: Counter[GroupMessage] = field(default_factory=Counter)
    dead: set[GroupMessage] = field(default_factory=set)
    lost_by_retention: dict[str, int] = field(default_factory=dict)
    """Messages by mode."""
    not_completed: dict[str, int] = field(default_factory=dict)
    """Messages by mode, of those with receipts."""
    dropped: int = 0
    """Leaves of the log: without any, nothing can be dropped early."""


class RunRecords:
    """The records of a run, put in order."""

    def __init__(self, records: Sequence[AnyRecord], modes: Sequence[Mode]) -> None:
        self.modes = modes
        self.tried: defaultdict[str, list[PublishAttempt]] = defaultdict(list)
        self.done: set[str] = set()
        self.failed: set[str] = set()
        self.begun: defaultdict[GroupMessage, list[HandlerBegan]] = defaultdict(list)
        self.ended: defaultdict[GroupMessage, list[HandlerEnded]] = defaultdict(list)
        self.settled: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self.hurts: list[Disruption] = []
        for record in records:
            self._add(record)
        for begins in self.begun.values():
            begins.sort(key=lambda one: one.at)
        for ends in self.ended.values():
            ends.sort(key=lambda one: one.at)

    def _add(self, record: AnyRecord) -> None:
        match record:
            case PublishAttempt():
                self.tried[record.transaction].append(record)
            case TransactionCommitted():
                self.done.add(record.transaction)
            case TransactionFailed():
                self.failed.add(record.transaction)
            case HandlerBegan():
                self.begun[_place(record)].append(record)
            case HandlerEnded():
                self.ended[_place(record)].append(record)
            case SettlementAccepted():
                self.settled[record.mode, record.what].add(record.by)
            case Disruption():
                self.hurts.append(record)

    def messages(self, transactions: Iterable[str]) -> Iterator[PublishAttempt]:
        for transaction in transactions:
            yield from self.tried[transaction]

    def places(self, message: PublishAttempt) -> list[GroupMessage]:
        groups = MODES[message.mode].groups
        return [GroupMessage(message.mode, group, message.key, message.n) for group in groups]

    def missing(self, handled: set[GroupMessage], dead: set[GroupMessage]) -> list[GroupMessage]:
        """Messages that were committed for certain, and neither handled nor, being poison, given up."""
        return [
            place
            for message in self.messages(self.done)
            for place in self.places(message)
            if place not in handled and not (message.is_poison and place in dead)
        ]

    def handled(self, effects: Counter[GroupMessage]) -> set[GroupMessage]:
        """Where effects are in the database, only those count."""
        plain = {place for place in self.ended if not MODES[place.mode].once}
        return plain | set(effects)

    def explains(self, since: int, until: int) -> bool:
        """Whether something happened in between that lets a message come twice."""
        return any(one.excuses and one.since <= until and one.until >= since for one in self.hurts)

    @property
    def faults(self) -> int:
        """The faults that were injected on purpose: a machine that stalls does so by itself."""
        return sum(one.fault not in ("stalled", "slow database") for one in self.hurts)

    @property
    def duplicates(self) -> int:
        return sum(len(ends) - 1 for place, ends in self.ended.items() if not MODES[place.mode].once)


def _place(record: Handling) -> GroupMessage:
    return GroupMessage(record.mode, record.group, record.key, record.n)


def judge(story: RunRecords, facts: Facts) -> list[Finding]:
    """All that must not be, in the order of CHECKS."""
    findings = [
        *_lost(story, facts),
        *_phantoms(story, facts),
        *_torn(story, facts),
        *_duplicates(story),
        *_effects(story, facts),
        *_out_of_order(story),
        *(
            Finding("FENCE", mode.removeprefix("faults."), f"{what} was settled by {len(by)}")
            for (mode, what), by in story.settled.items()
            if len(by) > 1
        ),
        *(
            Finding("RETAIN", mode, f"{count} messages were dropped early")
            for mode, count in facts.lost_by_retention.items()
        ),
        *(
            Finding("RECEIPT", mode, f"{count} messages are not COMPLETED")
            for mode, count in facts.not_completed.items()
        ),
        *_given_up(story, facts),
    ]
    return sorted(findings, key=lambda one: CHECKS.index(one.check))


def _lost(story: RunRecords, facts: Facts) -> Iterator[Finding]:
    for place in story.missing(story.handled(facts.effects), facts.dead):
        yield Finding("LOST", place.mode, _name(place))


def _phantoms(story: RunRecords, facts: Facts) -> Iterator[Finding]:
    unknown = set(story.tried) - story.failed
    possible = {place for message in story.messages(unknown) for place in story.places(message)}
    for place in (set(story.begun) | set(facts.effects)) - possible:
        yield Finding("PHANTOM", place.mode, _name(place))


def _torn(story: RunRecords, facts: Facts) -> Iterator[Finding]:
    handled = story.handled(facts.effects) | facts.dead
    for transaction, messages in story.tried.items():
        parts = {place in handled for message in messages for place in story.places(message)}
        if len(parts) > 1 and transaction not in story.done:
            yield Finding("ATOMIC", messages[0].mode, f"transaction {transaction}: a part of it came")


def _duplicates(story: RunRecords) -> Iterator[Finding]:
    for place, ends in story.ended.items():
        if len(ends) == 1 or MODES[place.mode].once:
            continue
        begins = story.begun[place]
        for first, second in pairwise(begins):
            was_handled = any(first.at <= end.at <= second.at and end.pid == first.pid for end in ends)
            if was_handled and not story.explains(first.at, second.at):
                yield Finding("DUPLICATE", place.mode, f"{_name(place)}, by {first.pid} and by {second.pid}")


def _effects(story: RunRecords, facts: Facts) -> Iterator[Finding]:
    for place, count in facts.effects.items():
        if count > 1:
            yield Finding("EFFECT", place.mode, f"{_name(place)} took effect {count} times")


def _out_of_order(story: RunRecords) -> Iterator[Finding]:
    keys: defaultdict[tuple[str, str, str], list[GroupMessage]] = defaultdict(list)
    for place in story.begun:
        if MODES[place.mode].in_order:
            keys[place[:3]].append(place)
    for places in keys.values():
        places.sort(key=lambda one: one.n)
        handled = [place for place in places if place in story.ended]  # others were given up, or lost
        for before, after in pairwise(handled):
            if story.begun[after][0].at < story.ended[before][0].at:
                yield Finding("ORDER", after.mode, f"{_name(after)} began before {before.n} had been handled")


def _given_up(story: RunRecords, facts: Facts) -> Iterator[Finding]:
    poison = {
        place for messages in story.tried.values() for one in messages if one.is_poison for place in story.places(one)
    }
    for place in facts.dead - poison:
        yield Finding("DEAD", place.mode, _name(place))


def _name(place: GroupMessage) -> str:
    group = f" in group {place.group}" if place.group else ""
    return f"message {place.n} of key {place.key}{group}"
