"""Inspecting topics, groups and messages over HTTP, and subscribing groups."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from postbus.http_client.wire import Wire, path_of
from postbus.options import Duration, OnFailure, as_timedelta
from postbus.start import Start

_MOST_ON_PAGE = 1000


class HttpAdmin:
    """Topics, groups and messages as the server describes them. Reached as `bus.admin`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def topics(self) -> list[dict[str, Any]]:
        """All topics that the caller may see, with options and message counts."""
        return await self._all(path_of("topics"), "topics")

    async def topic(self, name: str) -> dict[str, Any]:
        """A topic."""
        return dict(await self._wire.get(path_of("topics", name)))

    async def groups(self, topic: str | None = None) -> list[dict[str, Any]]:
        """Groups, of all topics or of one, with lag and state."""
        path = path_of("groups") if topic is None else path_of("topics", topic, "groups")
        return await self._all(path, "groups")

    async def group(self, topic: str, name: str) -> dict[str, Any]:
        """A group of a topic."""
        return dict(await self._wire.get(path_of("topics", topic, "groups", name)))

    async def health(self, stuck_after: Duration = timedelta(hours=1)) -> dict[str, Any]:
        """Problems of groups that the caller may see and, for callers of all topics, whether sweeping keeps up."""
        longest = as_timedelta(stuck_after, name="stuck_after").total_seconds()
        return dict(await self._wire.get(path_of("health"), stuck_after=longest))

    async def subscribe_group(
        self, group: str, topic: str, *, start: Start | str | int = Start.NOW, on_failure: OnFailure = "block"
    ) -> dict[str, Any]:
        """Subscribe a group to a PUB_SUB topic. A group that is subscribed already keeps its position."""
        body = Start.of(start).as_fields() | {"on_failure": on_failure}
        path = path_of("topics", topic, "groups", group)
        return dict((await self._wire.ask("PUT", path, body, is_repeatable=True)).as_json())

    async def messages(
        self, topic: str, *, after_id: int = 0, limit: int = 100, newest: bool = False
    ) -> list[dict[str, Any]]:
        """Retained messages of a topic by id: the first ones, or the newest."""
        path = path_of("topics", topic, "messages")
        found = await self._all(path, "messages", after_id=after_id, most=limit, newest=newest)
        return sorted(found, key=lambda one: int(one["id"])) if newest else found

    async def message(self, topic: str, message_id: int) -> dict[str, Any]:
        """The state and the history of a message."""
        return dict(await self._wire.get(path_of("topics", topic, "messages", str(message_id))))

    async def dead_letters(self, topic: str, *, after_id: int = 0, limit: int = 100) -> list[dict[str, Any]]:
        """The dead letters of a topic."""
        path = path_of("topics", topic, "dead-letters")
        return await self._all(path, "dead_letters", after_id=after_id, most=limit)

    async def _all(self, path: str, name: str, *, most: int | None = None, **params: Any) -> list[dict[str, Any]]:
        """The entries of a list, page after page: all of them, or the first `most`."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            limit = None if most is None else min(most - len(found), _MOST_ON_PAGE)
            page = await self._wire.get(path, cursor=cursor, limit=limit, **params)
            found += page[name]
            cursor = page.get("next")
            if cursor is None or (most is not None and len(found) >= most):
                return found
