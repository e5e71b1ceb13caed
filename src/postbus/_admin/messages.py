"""Looking at messages, and looking after dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from postbus._admin.groups import GroupAdmin
from postbus._content.identity import identity_of
from postbus._db.statements.messages import Copy
from postbus.errors import InvalidInput, MessageNotFound
from postbus.results.messages import (
    DeadLetterInfo,
    DeliveryInfo,
    LogMessage,
    MessageInfo,
    MessageProgress,
    MessageStory,
    QueueMessage,
)


class MessageAdmin(GroupAdmin):
    """Operators' methods for messages. Reached as `bus.admin`."""

    async def messages(
        self, topic: str, *, after_id: int = 0, limit: int = 100, newest: bool = False
    ) -> list[QueueMessage]:
        """Messages of a QUEUE that are still there, in whatever state, by id: the first ones, or the newest."""
        return await (await self._store()).messages(topic, after_id=after_id, limit=limit, newest=newest)

    async def log(
        self,
        topic: str,
        *,
        after_id: int = 0,
        after: tuple[int, int] | None = None,
        limit: int = 100,
        newest: bool = False,
    ) -> list[LogMessage]:
        """Messages of a PUB_SUB topic that are retained: the first ones, or the newest.

        `after`, the sequence and index of a message, is found at once; `after_id` looks at all messages.
        """
        return await (await self._store()).log(topic, after_id=after_id, after=after, limit=limit, newest=newest)

    async def dead_letters(
        self,
        topic: str | None = None,
        *,
        group: str | None = None,
        groups: Sequence[str] | None = None,
        after_id: int = 0,
        limit: int = 100,
    ) -> list[DeadLetterInfo]:
        """Dead letters of a topic, of a group, or of all, by id.

        The dead letters of one message are never split between pages. `groups` are patterns, in which * stands for any
        text; dead letters of other groups are left out.
        """
        store = await self._store()
        return await store.dead_letters(topic, group, groups=groups, limit=limit, after_id=after_id)

    async def dead_letter(
        self,
        message_id: int,
        *,
        topic: str | None = None,
        group: str | None = None,
        groups: Sequence[str] | None = None,
    ) -> DeadLetterInfo:
        """One dead letter, with reason and last error. Give `group` if several groups gave the message up."""
        found = [
            one
            for one in await (await self._store()).dead_letters_by_id(message_id, groups)
            if topic in (None, one.topic) and group in (None, one.group_name)
        ]
        if not found:
            raise MessageNotFound(
                f"there is no dead letter {message_id}" + (f" of group {group!r}" if group else ""),
                remedy="list them: postbus dead-letters list",
            )
        if len(found) > 1:
            whose = ", ".join(" of ".join(filter(None, (one.group_name, one.topic))) for one in found)
            raise InvalidInput(
                f"there are {len(found)} dead letters {message_id}: {whose}",
                remedy="say which one: --group NAME, --topic TOPIC",
            )
        return found[0]

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
        group: str | None = None,
    ) -> int:
        """Put dead letters back: some by id, some by filter, or all; `rate` spreads them, per second.

        Those of a PUB_SUB topic go back to `group` alone.
        """
        given = {
            "ids": ids, "reason_like": reason_like, "died_after": died_after, "died_before": died_before,
            "key": key, "max_count": max_count, "rate": rate, "dry_run": dry_run, "group_name": group,
        }  # fmt: skip
        store = await self._store()
        filters = {name: value for name, value in given.items() if value is not None}
        async with self._explaining(topic):
            return await store.redrive(topic, filters)

    async def purge_dead_letters(
        self,
        topic: str,
        *,
        ids: Sequence[int] | None = None,
        died_before: datetime | None = None,
        dry_run: bool = False,
        group: str | None = None,
    ) -> int:
        """Delete dead letters for good, those of all groups or of one."""
        async with self._explaining(topic):
            return await (await self._store()).purge_dead_letters(
                topic, ids=ids, died_before=died_before, dry_run=dry_run, group=group
            )

    async def deliveries(self, topic: str, message_id: int) -> list[DeliveryInfo]:
        """Return the state of a message of a PUB_SUB topic in each group: who has it, who is done, since when, why."""
        return await (await self._store()).deliveries(topic, message_id)

    async def message_state(self, topic: str, message_id: int) -> MessageProgress:
        """The groups that a message of a PUB_SUB topic is required for, those that are done, and its status."""
        return await (await self._store()).message_state(topic, message_id)

    async def message(self, topic: str, message_id: int) -> QueueMessage | MessageStory:
        """The story of a message: what it is, and where; for a PUB_SUB topic also what became of it at each group.

        If the log no longer has the message (`retained` is false), only groups are known that retry it, or gave it up.
        """
        store = await self._store()
        if await self.semantics(topic) == "PUB_SUB":
            try:
                found = await store.log_message(topic, message_id)
            except MessageNotFound:
                copies = await store.copies_of(topic, message_id)
                if not copies:
                    raise
                return _story_of_copies(store.source, topic, message_id, copies)
            state = await store.message_state(topic, message_id)
            return MessageStory(
                **{name: getattr(found, name) for name in MessageInfo.__struct_fields__},
                **msgspec.structs.asdict(state),
                lane=found.lane,
                retained=True,
                deliveries=await store.deliveries(topic, message_id),
            )
        waiting = await store.queue_message(topic, message_id)
        if waiting is None:
            raise MessageNotFound(
                f"topic {topic!r} has no message {message_id}",
                remedy="it is done and past its retention, or never was there; "
                f"see what there is: postbus tail {topic} --once",
            )
        return waiting


def _story_of_copies(source: str, topic: str, message_id: int, copies: Sequence[Copy]) -> MessageStory:
    """The story of a message that the log has dropped, from the copies that groups keep of it."""
    first = copies[0]
    is_given_up = all(one.status == "DEAD" for one in copies)
    settled = [one.settled_at for one in copies if one.settled_at is not None]
    return MessageStory(
        topic=topic,
        id=message_id,
        event_id=identity_of(source, topic, message_id, first.published_at, first.headers),
        key=first.key,
        published_at=first.published_at,
        correlation_id=first.correlation_id,
        content_type=first.content_type,
        headers=first.headers,
        payload=first.payload,
        lane=None,
        required=[one.group_name for one in copies],
        completed=[],
        status="FAILED" if is_given_up else "PROCESSING",
        settled_at=max(settled) if is_given_up else None,
        retained=False,
        deliveries=[_delivery(one) for one in copies],
    )


def _delivery(copy: Copy) -> DeliveryInfo:
    return DeliveryInfo(
        subscription_id=copy.subscription_id,
        group_name=copy.group_name,
        status=copy.status,
        required=True,
        settled_at=copy.settled_at,
        worker=None,
        attempts=copy.attempts,
        last_error=copy.last_error,
        holder=copy.holder,
    )
