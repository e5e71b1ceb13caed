"""Statements about messages and dead letters, for people who look after them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from postbus._db.database import Database
from postbus._db.patterns import likes
from postbus._db.rows import as_struct, as_structs
from postbus.message import DEFAULT_PRIORITY, Message
from postbus.results.messages import (
    DeadLetterInfo,
    DeliveryInfo,
    DeliveryStatus,
    LogMessage,
    MessageProgress,
    QueueMessage,
)


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A group's own copy of a message of the log, with its delivery to that group."""

    published_at: datetime
    key: str | None
    correlation_id: str | None
    content_type: str
    headers: dict[str, str]
    payload: bytes
    subscription_id: int
    group_name: str
    status: DeliveryStatus
    settled_at: datetime | None
    attempts: int
    last_error: str | None
    holder: str | None


class MessageStore(Database):
    """Looks at messages, and redrives dead letters."""

    async def messages(self, topic: str, *, after_id: int, limit: int, newest: bool) -> list[QueueMessage]:
        chosen = "select * from postbus.messages where topic_id = postbus.topic_id($1) and id > $2 order by id"
        if newest:
            chosen += " desc"
        rows = await self._rows(f"select * from ({chosen} limit $3) as chosen order by id", topic, after_id, limit)
        return as_structs(QueueMessage, rows)

    async def dead_letters(
        self,
        topic: str | None,
        group: str | None = None,
        *,
        groups: Sequence[str] | None = None,
        limit: int,
        after_id: int = 0,
    ) -> list[DeadLetterInfo]:
        # With ties: several groups may have given up the same message, and the next page begins after its id.
        rows = await self._rows(
            "select * from (select * from postbus.dead_letters "
            "where ($1::text is null or topic_id = postbus.topic_id($1)) and ($4::text is null or group_name = $4) "
            "and ($5::text[] is null or group_name is null or group_name like any ($5)) "
            "and id > $2 order by id fetch first $3 rows with ties) as page "
            "order by id, topic, group_name",
            topic,
            after_id,
            limit,
            group,
            likes(groups),
        )
        return as_structs(DeadLetterInfo, rows)

    async def dead_letters_by_id(self, message_id: int, groups: Sequence[str] | None = None) -> list[DeadLetterInfo]:
        """The dead letters of a message: one for each group that gave it up."""
        rows = await self._rows(
            "select * from postbus.dead_letters where id = $1 "
            "and ($2::text[] is null or group_name is null or group_name like any ($2)) order by topic, group_name",
            message_id,
            likes(groups),
        )
        return as_structs(DeadLetterInfo, rows)

    async def redrive(self, topic: str, filters: Mapping[str, Any]) -> int:
        named = ", ".join(f"{name} => ${number}" for number, name in enumerate(filters, 2))
        return int(
            await self._act(f"select postbus.redrive($1{', ' if named else ''}{named})", topic, *filters.values())
        )

    async def purge_dead_letters(
        self, topic: str, *, ids: Sequence[int] | None, died_before: datetime | None, dry_run: bool, group: str | None
    ) -> int:
        sql = "select postbus.purge_dead_letters($1, $2, $3, $4, $5)"
        return int(await self._act(sql, topic, ids, died_before, dry_run, group))

    async def deliveries(self, topic: str, message_id: int) -> list[DeliveryInfo]:
        return as_structs(
            DeliveryInfo, await self._rows("select * from postbus.deliveries_of($1, $2)", topic, message_id)
        )

    async def message_state(self, topic: str, message_id: int) -> MessageProgress:
        [row] = await self._rows("select * from postbus.message_state($1, $2)", topic, message_id)
        return as_struct(MessageProgress, row)

    async def log_message(self, topic: str, message_id: int) -> LogMessage:
        [row] = await self._rows("select * from postbus.log_message($1, $2)", topic, message_id)
        return as_struct(LogMessage, row)

    async def copies_of(self, topic: str, message_id: int) -> list[Copy]:
        """The copies that groups keep of a message, to retry it or because they gave it up."""
        return as_structs(Copy, await self._rows("select * from postbus.copies_of($1, $2)", topic, message_id))

    async def queue_message(self, topic: str, message_id: int) -> QueueMessage | None:
        rows = await self._rows(
            "select * from postbus.messages where topic_id = postbus.topic_id($1) and id = $2", topic, message_id
        )
        return as_struct(QueueMessage, rows[0]) if rows else None

    async def log(
        self, topic: str, *, after_id: int, after: tuple[int, int] | None, limit: int, newest: bool
    ) -> list[LogMessage]:
        sequence, index = after or (0, -1)
        order = "sequence desc, index desc" if newest else "sequence, index" if after else "id"
        rows = await self._rows(
            "select * from (select * from postbus.log where topic = $1 and id > $2 "
            f"and sequence >= $3 and (sequence > $3 or index > $4) order by {order} limit $5) as chosen "
            f"order by {'sequence, index' if newest or after else 'id'}",
            topic,
            after_id,
            sequence,
            index,
            limit,
        )
        return as_structs(LogMessage, rows)

    async def retained(
        self, topic: str, filters: Mapping[str, Any], after: tuple[int, int], limit: int
    ) -> list[tuple[tuple[int, int], Message]]:
        """Messages that are still there, each with its sequence and index."""
        given = {**filters, "after_sequence": after[0], "after_index": after[1], "max_count": limit}
        named = ", ".join(f"{name} => ${number}" for number, name in enumerate(given, 2))
        rows = await self._rows(f"select * from postbus.retained($1, {named})", topic, *given.values())
        return [((row["at_sequence"], row["at_index"]), _message(topic, row, self.source)) for row in rows]


def _message(topic: str, row: Mapping[str, Any], source: str) -> Message:
    return Message(
        id=row["id"],
        topic=topic,
        payload=row["payload"],
        content_type=row["content_type"],
        key=row["key"],
        headers=json.loads(row["headers"] or "{}"),
        correlation_id=row["correlation_id"],
        priority=DEFAULT_PRIORITY,
        attempt=1,
        published_at=row["published_at"],
        source=source,
    )
