"""Finds the topics of groups that subscribe to a scope. Each has a consumer, even if it comes later."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence

from postbus._db.statements.scopes import Joined
from postbus._db.store import Store
from postbus._maintenance.sweeper import log_group_events
from postbus._runtime.log_events import event
from postbus.errors import DatabaseUnavailable, PostbusError
from postbus.group import Group
from postbus.start import Start

_INTERVAL = 1.0  # seconds between two searches for new topics of scopes, if no wake-up comes, …
_LONGEST_INTERVAL = 30.0  # … or more if there are many topics …
_SHARE = 50  # … so that searching takes no more than a fiftieth of the time


class ScopeWatcher:
    """Finds the topics of groups that have a scope, and has them consumed."""

    def __init__(
        self,
        store: Store,
        known: Callable[[], Collection[int]],
        consume: Callable[[Group, Joined], None],
        take_lanes: Callable[[], Awaitable[object]],
    ) -> None:
        self._store = store
        self._known = known
        """The ids of the subscriptions that this process consumes for."""
        self._consume = consume
        self._take_lanes = take_lanes
        """Takes lanes of new subscriptions."""
        self._groups: dict[Group, Start] = {}

    async def add(self, group: Group, start: Start) -> None:
        """Subscribe a group to its scope, and consume all topics in it, now and later."""
        joined = await self._store.subscribe_scope(group.name, group.scope, start, group.on_failure, group.catch_up)
        for one in joined:
            if one.is_new:
                log_bounded_catch_up(group.name, one.topic, one.missed, one.skipped)
        await log_group_events(self._store)
        if group.scope.is_wide:
            self._groups[group] = start
        self._begin([(group, one) for one in joined])

    def remove(self, group: Group) -> None:
        self._groups.pop(group, None)

    async def tick(self) -> float:
        """Search once for new topics. Returns after how many seconds to call again."""
        groups = list(self._groups)
        if not groups:
            return _INTERVAL
        began = time.monotonic()
        news = await self._store.scope_news([(one.name, one.scope) for one in groups], list(self._known()))
        self._begin([(groups[number], one) for number, one in news.joined if groups[number] in self._groups])
        for number in news.not_joined:
            if groups[number] in self._groups:
                await self._resubscribe(groups[number])
        if news.joined or news.not_joined:
            await self._take_lanes()
            return _INTERVAL
        return min(max(_INTERVAL, _SHARE * (time.monotonic() - began)), _LONGEST_INTERVAL)

    async def _resubscribe(self, group: Group) -> None:
        try:
            await self.add(group, self._groups[group])
        except DatabaseUnavailable:
            raise
        except PostbusError as error:  # other groups go on; the next tick tries this one again
            event(logging.ERROR, "consumer.failed", topic=str(group.scope), group=group.name, error=str(error))

    def _begin(self, joined: Sequence[tuple[Group, Joined]]) -> None:
        for group, one in joined:
            if one.subscription_id not in self._known():  # another group of the same name may be known in this process
                self._consume(group.part(one.topic), one)


def log_bounded_catch_up(group: str, topic: str, missed: int | None, skipped: int | None) -> None:
    """Log that a new group does not get all of the history that it asked for."""
    if skipped:
        event(logging.WARNING, "catch_up.bounded", group=group, topic=topic, messages=missed, skipped=skipped)
