"""Groups: consumers that share one position in a PUB_SUB topic."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from postbus._content.names import NAME_RULE, is_name
from postbus.catch_up import CatchUp
from postbus.errors import DuplicateHandler, InvalidGroup, InvalidOption, InvalidTopicName
from postbus.events import WantedEvents
from postbus.message import Message
from postbus.options import Duration, OnFailure
from postbus.results.groups import GroupState
from postbus.scope import Scope
from postbus.start import Default, Mode, Start
from postbus.subscription import Handler, HandlerCall, HandlerOptions, Maker, Subscription

Filter = Callable[[Message], bool]


class GroupOptions(HandlerOptions, total=False):
    """Options of a group beside its topic. The default of each is in brackets."""

    key: str | None
    """Only messages of this key (None: all)."""
    namespace: str | None
    """All topics of this namespace, instead of a topic."""
    task: str | None
    """All topics of this task, instead of a topic."""
    filter: Filter | None
    """Messages that it rejects count as done (None: it takes all)."""
    on_failure: OnFailure
    """Whether later messages of its key wait for a message that fails, or pass it ("block")."""
    catch_up: CatchUp | None
    """How fast the group works through history (None: as `CatchUp()` says)."""


class SubscribeOptions(GroupOptions, total=False):
    """Options of `bus.subscribe()` beside the topic. The default of each is in brackets."""

    name: str | None
    """The name of the handler, as operators see it (None: that of the function)."""
    group: str | None
    """The group that consumes a PUB_SUB topic (None: the topic is a QUEUE)."""
    lease: Duration | None
    """The lease, for queues (None: as the topic says)."""
    start: Start | str | datetime | int | None
    """The position at which a new group begins (None: by the default of the bus)."""
    mode: Mode | None
    """The same by name: new, all, or timestamp with a time as `start` (None: see `start`)."""
    look_back: Duration | None
    """The time before now at which mode new begins (4 seconds)."""


class GroupHost(Protocol):
    """Starts and stops groups for their methods."""

    default: Default

    async def start_group(self, group: Group, start: Start) -> None: ...

    async def stop_group(self, group: Group) -> None: ...

    async def set_group_state(self, group: Group, state: GroupState) -> None: ...


@dataclass
class Counts:
    """The messages that a member, or a group, has handled in this process."""

    processed: int = 0
    failed: int = 0
    filtered: int = 0
    in_flight: int = 0
    handling_seconds: float = 0.0
    """The total time that handlers took for processed and failed messages."""

    @contextmanager
    def running(self, count: int) -> Iterator[None]:
        """Count messages as in flight while a handler has them, and the time that it takes."""
        self.in_flight += count
        began = time.monotonic()
        try:
            yield
        finally:
            self.in_flight -= count
            self.handling_seconds += time.monotonic() - began

    def become(self, other: Counts) -> None:
        """Take the values of other counts."""
        self.processed, self.failed, self.filtered = other.processed, other.failed, other.filtered
        self.in_flight, self.handling_seconds = other.in_flight, other.handling_seconds


def _unreported() -> Counts:
    """Counts unlike any real ones, so that a member is reported before it has handled anything."""
    return Counts(in_flight=-1)


@dataclass(eq=False)
class Member:
    """One consumer of a group: a handler and a filter."""

    name: str
    subscription: Subscription
    filter: Filter | None = None
    counts: Counts = field(default_factory=Counts)
    reported: Counts = field(default_factory=_unreported)
    """The counts that the database knows."""


class Group:
    """Consumers of a topic, or of all topics in a scope, that share one position in each. `bus.group()` makes one.

    Messages of one key are handled one after the other, messages of different keys at the same time, up to
    `concurrency`.
    """

    def __init__(
        self,
        host: GroupHost,
        name: str,
        scope: Scope | str,
        make: Maker,
        *,
        filter: Filter | None = None,
        on_failure: OnFailure = "block",
        catch_up: CatchUp | None = None,
    ) -> None:
        if not is_name(name):
            raise InvalidTopicName(
                f"bad group name {name!r}",
                remedy=NAME_RULE,
            )
        _check_filter(filter)
        if on_failure not in ("block", "pass"):
            raise InvalidOption(f"on_failure {on_failure!r} is not known", remedy="use 'block' or 'pass'")
        if catch_up is not None and not isinstance(catch_up, CatchUp):
            raise InvalidOption(
                f"catch_up {catch_up!r} is not a CatchUp", remedy="use CatchUp(…) or one of its presets"
            )
        self.name = name
        self.scope = Scope(scope) if isinstance(scope, str) else scope
        self.topic = str(scope)
        """The name of its topic, or its scope in words."""
        self.filter = filter
        self.on_failure = on_failure
        self.catch_up = CatchUp() if catch_up is None else catch_up
        self.is_started = False
        self.members: dict[str, Member] = {}
        self.parts: dict[str, Group] = {}
        """For a wide scope: a group for each topic, with the same members and counts of its own."""
        self._removed: list[Member] = []
        self._filtered = Counts()
        self._filtered_reported = Counts()
        self._host = host
        self._make = make

    def add_member(self, name: str, handler: Handler, filter: Filter | None = None) -> None:
        """Add a consumer. Each message goes to one of the members whose filters accept it, chosen by its key."""
        if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
            raise InvalidOption(f"bad member name {name!r:.220}", remedy="give 1 to 200 printable characters")
        _check_filter(filter)
        if name in self.members:
            raise DuplicateHandler(
                f"group {self.name!r} has a member {name!r} already", remedy="give each member a name of its own"
            )
        subscription = self._make(f"{self.name}/{name}", handler)
        others = [member.subscription for member in self.members.values()]
        if others and others[0].transactional != subscription.transactional:
            raise InvalidGroup(
                f"member {name!r} is transactional and others of group {self.name!r} are not, or the other way round",
                remedy="make all members alike",
            )
        self.members[name] = Member(name, subscription, _both(filter, HandlerCall.of(subscription).events))
        for part in self.parts.values():
            part._share(self.members[name])

    def part(self, topic: str) -> Group:
        """The part of the group for one topic of its scope."""
        if not self.scope.is_wide:
            return self
        if topic not in self.parts:
            self.parts[topic] = part = Group(
                self._host,
                self.name,
                topic,
                self._make,
                filter=self.filter,
                on_failure=self.on_failure,
                catch_up=self.catch_up,
            )
            for member in self.members.values():
                part._share(member)
        return self.parts[topic]

    def _share(self, member: Member) -> None:
        shared = Member(member.name, replace(member.subscription, topic=self.topic), member.filter)
        self.members[member.name] = shared

    def remove_member(self, name: str) -> None:
        """Remove a consumer. The last one of a started group cannot be removed."""
        if name not in self.members:
            raise InvalidGroup(f"group {self.name!r} has no member {name!r}", remedy="see group.members")
        if self.is_started and len(self.members) == 1:
            raise InvalidGroup(
                f"{name!r} is the last member of group {self.name!r}, which is started",
                remedy="stop the group first, or add another member",
            )
        for group in (self, *self.parts.values()):
            group._removed.append(group.members.pop(name))

    async def start(
        self,
        position: Start | str | datetime | int | None = None,
        *,
        mode: Mode | None = None,
        look_back: Duration | None = None,
    ) -> None:
        """Subscribe, and consume while the bus runs. The position or the mode counts only when the group is new.

        They are explained at `bus.subscribe()`.
        """
        start = self._host.default.start_of(
            position, mode, look_back, is_recorded=self.scope.is_recorded, is_wide=self.scope.is_wide
        )
        if not self.members:
            raise InvalidGroup(
                f"group {self.name!r} has no members",
                remedy="add one before it starts: group.add_member(name, handler)",
            )
        await self._host.start_group(self, start)
        self.is_started = True

    async def stop(self) -> None:
        """Stop consuming in this process. The subscription stays and keeps its position."""
        await self._host.stop_group(self)
        self.is_started = False

    async def pause(self) -> None:
        """Stop delivery in all processes. Messages that are published meanwhile are delivered after `resume`.

        After the call, no handler of this process begins another message. Other processes stop within four seconds.
        Running handlers finish.
        """
        await self._host.set_group_state(self, "PAUSED")

    async def resume(self) -> None:
        """Start delivery again."""
        await self._host.set_group_state(self, "ACTIVE")

    async def cancel(self) -> None:
        """End the subscription for good, in all topics of its scope. Starting the group again makes a new one.

        Returns when the handlers of this process have ended. Handlers of other processes begin no further message after
        four seconds.
        """
        await self._host.set_group_state(self, "CANCELLED")
        await self.stop()

    @property
    def counts(self) -> Counts:
        """The messages that the group has handled in this process."""
        each = [member.counts for member in (*self.members.values(), *self._removed)]
        each += [part.counts for part in self.parts.values()]
        return Counts(
            processed=sum(one.processed for one in each),
            failed=sum(one.failed for one in each),
            filtered=self.filtered + sum(part.filtered for part in self.parts.values()),
            in_flight=sum(one.in_flight for one in each),
            handling_seconds=sum(one.handling_seconds for one in each),
        )

    @property
    def filtered(self) -> int:
        """The number of messages that all filters rejected in this process."""
        return self._filtered.filtered

    @filtered.setter
    def filtered(self, count: int) -> None:
        self._filtered.filtered = count

    def report_anew(self) -> None:
        """Report all members again, because a new subscription knows none."""
        for member in self.members.values():
            member.reported.in_flight = _unreported().in_flight

    def unreported(self) -> Iterator[tuple[str, Counts, Counts]]:
        """The members by name, each with its counts and those that the database knows, which the caller updates."""
        for member in (*self.members.values(), *self._removed):
            yield member.name, member.counts, member.reported
        if self.members:  # messages that all filters rejected count for the first member
            yield next(iter(self.members)), self._filtered, self._filtered_reported

    def member_for(self, message: Message) -> Member | None:
        """The member that gets a message, or None if all filters reject it."""
        if self.filter is not None and not self.filter(message):
            return None
        fitting = [one for one in self.members.values() if one.filter is None or one.filter(message)]
        if not fitting:
            return None
        return fitting[stable_hash(message.key or str(message.id)) % len(fitting)]


def _check_filter(filter: object) -> None:
    if filter is not None and not callable(filter):
        raise InvalidOption(f"filter {filter!r:.200} is not a function", remedy="give one that takes a message")


def _both(filter: Filter | None, events: WantedEvents | None) -> Filter | None:
    """A filter that accepts messages which both the member's filter and its handler's events accept."""
    if events is None or filter is None:
        return filter if events is None else events.takes
    return lambda message: events.takes(message) and filter(message)


def stable_hash(text: str) -> int:
    """A hash that is the same in every process, and never negative."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))
