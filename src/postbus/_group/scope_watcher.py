"""Consuming for scopes: each topic in one has a consumer of its own, also those that come later."""

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

_LOOK = 1.0  # seconds between looks at what has come into scopes, while nobody rings …
_LONGEST_LOOK = 30.0  # … or longer, where there are many topics,
_SHARE = 50  # so that looking takes no more than a fiftieth of the time


class ScopeWatcher:
    """Finds the topics of groups that have a scope, and consumes them."""

    def __init__(
        self,
        store: Store,
        known: Callable[[], Collection[int]],
        consume: Callable[[Group, Joined], None],
        joined: Callable[[], Awaitable[object]],
    ) -> None:
        self._store = store
        self._known = known
        """The subscriptions that this process consumes for."""
        self._consume = consume
        self._joined = joined
        """Takes lanes of what is new."""
        self._groups: dict[Group, Start] = {}

    async def add(self, group: Group, start: Start) -> None:
        """Subscribe a group to its scope, and consume for all that is in it, now and later."""
        joined = await self._store.subscribe_scope(group.name, group.scope, start, group.on_failure, group.catch_up)
        for one in joined:
            if one.is_new:
                tell_bounded(group.name, one.topic, one.missed, one.skipped)
        await log_group_events(self._store)
        if group.scope.is_wide:
            self._groups[group] = start
        self._begin([(group, one) for one in joined])

    def remove(self, group: Group) -> None:
        self._groups.pop(group, None)

    async def tick(self) -> float:
        """Look once what has come into scopes. Returns after how many seconds to look again."""
        groups = list(self._groups)
        if not groups:
            return _LOOK
        began = time.monotonic()
        news = await self._store.scope_news([(one.name, one.scope) for one in groups], list(self._known()))
        self._begin([(groups[place], one) for place, one in news.joined if groups[place] in self._groups])
        for place in news.not_joined:
            if groups[place] in self._groups:
                await self._add_again(groups[place])
        if news.joined or news.not_joined:
            await self._joined()
            return _LOOK
        return min(max(_LOOK, _SHARE * (time.monotonic() - began)), _LONGEST_LOOK)

    async def _add_again(self, group: Group) -> None:
        try:
            await self.add(group, self._groups[group])
        except DatabaseUnavailable:
            raise
        except PostbusError as error:  # others must not end with it; it is tried at the next look
            event(logging.ERROR, "consumer.failed", topic=str(group.scope), group=group.name, error=str(error))

    def _begin(self, joined: Sequence[tuple[Group, Joined]]) -> None:
        for group, one in joined:
            if one.subscription_id not in self._known():  # as another group of the same name may, in this process
                self._consume(group.part(one.topic), one)


def tell_bounded(group: str, topic: str, missed: int | None, skipped: int | None) -> None:
    """Tell that a new group does not get all of the history that it asked for."""
    if skipped:
        event(logging.WARNING, "catch_up.bounded", group=group, topic=topic, messages=missed, skipped=skipped)
