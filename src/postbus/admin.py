"""Managing topics and dead letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Unpack

from postbus._store import Store
from postbus.errors import MessageNotFound, TopicNotFound
from postbus.options import TopicOptions, as_json
from postbus.publish import check_topic_name


class Admin:
    """What operators do, as methods. Reached as `bus.admin`."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store

    async def create_topic(self, name: str, **options: Unpack[TopicOptions]) -> None:
        """Create a topic. Needed only where its options differ from the defaults."""
        check_topic_name(name)
        await (await self._store()).create_topic(name, as_json(options))

    async def set_topic(self, name: str, **options: Unpack[TopicOptions]) -> None:
        """Change options of a topic."""
        await (await self._store()).set_topic(name, as_json(options))

    async def topics(self) -> list[dict[str, Any]]:
        """All topics, with options and what they hold."""
        return await (await self._store()).topics()

    async def topic(self, name: str) -> dict[str, Any]:
        """One topic, with options and what it holds."""
        found = await (await self._store()).topics(name)
        if not found:
            raise TopicNotFound(f"there is no topic {name!r}", remedy=f"create it: postbus topics create {name}")
        return found[0]

    async def pause_topic(self, name: str) -> None:
        """Stop delivery of a topic; publishing goes on."""
        await (await self._store()).pause_topic(name)

    async def resume_topic(self, name: str) -> None:
        """Start delivery of a paused topic again."""
        await (await self._store()).resume_topic(name)

    async def purge_topic(self, name: str, *, dry_run: bool = False) -> int:
        """Delete what waits in a topic. Returns how many messages that is."""
        return await (await self._store()).purge_topic(name, dry_run=dry_run)

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic; with `force` also its messages."""
        await (await self._store()).delete_topic(name, force=force)

    async def workers(self) -> list[dict[str, Any]]:
        """The processes that consume."""
        return await (await self._store()).workers()

    async def messages(
        self, topic: str, *, after_id: int = 0, limit: int = 100, newest: bool = False
    ) -> list[dict[str, Any]]:
        """Messages of a topic that are still there, in whatever state, by id: the first ones, or the newest."""
        return await (await self._store()).messages(topic, after_id=after_id, limit=limit, newest=newest)

    async def dead_letters(
        self, topic: str | None = None, *, after_id: int = 0, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Dead letters of a topic, or of all topics, by id."""
        return await (await self._store()).dead_letters(topic, limit=limit, after_id=after_id)

    async def dead_letter(self, message_id: int) -> dict[str, Any]:
        """One dead letter, with reason and last error."""
        found = await (await self._store()).dead_letter_by_id(message_id)
        if found is None:
            raise MessageNotFound(
                f"there is no dead letter {message_id}", remedy="list them: postbus dead-letters list"
            )
        return found

    async def redrive(
        self,
        topic: str,
        *,
        ids: Sequence[int] | None = None,
        reason_like: str | None = None,
        died_after: datetime | None = None,
        died_before: datetime | None = None,
        key: str | None = None,
        max_count: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> int:
        """Put dead letters back: some by id, some by filter, or all; `rate` spreads them, per second."""
        given = {
            "ids": ids, "reason_like": reason_like, "died_after": died_after, "died_before": died_before,
            "key": key, "max_count": max_count, "rate": rate, "dry_run": dry_run,
        }  # fmt: skip
        store = await self._store()
        return await store.redrive(topic, {name: value for name, value in given.items() if value is not None})

    async def purge_dead_letters(
        self,
        topic: str,
        *,
        ids: Sequence[int] | None = None,
        died_before: datetime | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete dead letters for good."""
        store = await self._store()
        return await store.purge_dead_letters(topic, ids=ids, died_before=died_before, dry_run=dry_run)
