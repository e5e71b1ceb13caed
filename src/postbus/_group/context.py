"""The context that the parts of a group's consumer share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from postbus._db.store import Store
from postbus._group.cursor_writer import CursorWriter
from postbus._group.log_reader import LogReader
from postbus._maintenance.heartbeat import ProcessHeartbeat
from postbus._wakeup.waiters import TimedWaker
from postbus.catch_up import CatchUp
from postbus.group import Group
from postbus.middleware import Middleware
from postbus.subscription import Subscription

_LEAST_PREFETCH = 1000  # messages that are read ahead, in two reads: at least, …
_MOST_PREFETCH = 20_000  # … and at most, for handlers that take many


@dataclass(frozen=True)
class GroupContext:
    """For whom a consumer works, and with what: one subscription of a group, and the services of its process."""

    group: Group
    subscription_id: int
    lease: timedelta
    max_attempts: int
    """The limit of the topic."""
    lanes: int
    """How many lanes the topic has."""
    is_limited: bool
    """Whether the group has some keys of the topic only."""
    store: Store
    handler_store: Store
    reader: LogReader
    cursor_writer: CursorWriter
    heartbeat: ProcessHeartbeat
    new_waker: Callable[[], TimedWaker]
    middleware: Sequence[Middleware] = ()
    history_of: int | None = None
    """The group's own subscription, if this one works through its history."""
    catch_up: CatchUp | None = None
    options: Subscription = field(init=False)
    """The options of the group's consumers. Those of its first member stand for all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", next(iter(self.group.members.values())).subscription)

    def for_history(self, subscription_id: int, catch_up: CatchUp) -> GroupContext:
        """The context of the consumer that works through the group's history."""
        return replace(self, subscription_id=subscription_id, history_of=self.subscription_id, catch_up=catch_up)

    @property
    def topic(self) -> str:
        return self.group.topic

    @property
    def prefetch(self) -> int:
        """How many messages are read ahead of the handlers."""
        prefetch = max(_LEAST_PREFETCH, min(16 * self.options.slots, _MOST_PREFETCH))
        return prefetch if self.catch_up is None else max(prefetch, 2 * self.catch_up.batch_size)
