"""Statements for pages: of messages and dead letters, bounded in number and in bytes, and of other lists.

The database leaves out rows that a caller may not see, so the time for a page depends only on the visible rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from postbus._db.database import Database
from postbus._db.patterns import likes
from postbus._db.rows import Row, as_struct, as_structs
from postbus._db.statements.admin import group_info
from postbus.results.access import TokenInfo, WebhookInfo
from postbus.results.groups import CatchUpInfo, GroupInfo
from postbus.results.messages import DeadLetterInfo, LogMessage, QueueMessage
from postbus.results.topics import TopicInfo

LAST = (1 << 63) - 1
MOST_BYTES = 8 << 20
"""The most bytes on a page. A single entry may have more."""

S = TypeVar("S", bound=msgspec.Struct)


class Page(msgspec.Struct, Generic[S]):
    """Some results, and whether there are more."""

    found: list[S]
    more: bool


_WITHOUT_PAYLOAD = (
    "topic, id, key, priority, attempts, published_at, last_error, correlation_id, content_type, headers, "
    "group_name, event_id"
)
_MESSAGE = f"{_WITHOUT_PAYLOAD}, payload"
_SIZE = (
    "coalesce(octet_length(payload), 0) + coalesce(octet_length(headers::text), 0) + coalesce(octet_length(key), 0) "
    "+ coalesce(octet_length(last_error), 0)"
)

# The sizes are computed first, without reading the payloads, then the messages of the page are read as one range.
_QUEUE = """
    with sized as (
        select id, {size} as size from postbus.messages
         where topic_id = postbus.topic_id($1) and id > $2 and id < $3 order by id {order} limit $4 + 1
    ), added as (
        select id, sum(size) over (order by id {order}) as bytes, row_number() over (order by id {order}) as number
          from sized
    ), page as (
        select min(id) as first, max(id) as last, count(*) as count from added
         where number <= $4 and (bytes <= $5 or number = 1)
    )
    select {columns}, state, at, member, (select count(*) from sized) > page.count as more
      from page join postbus.messages m on m.topic_id = postbus.topic_id($1) and m.id between page.first and page.last
     order by m.id
"""

# Of several topics, each is searched in the index. The last column distinguishes the groups of one message.
_OF_TOPICS = """
    select d.* from (
        select topic_id from postbus.topics
         where ($6::text is null or name = $6) and ($7::text[] is null or name like any ($7))
    ) as visible
     cross join lateral (
        select {columns} from postbus.dead_letters d
         where d.topic_id = visible.topic_id and d.id >= $1 and ($8::text is null or d.group_name = $8)
           and ($9::text[] is null or d.group_name is null or d.group_name like any ($9))
           and (d.id > $1 or (d.topic, coalesce(d.group_name, '')) > ($2, $3))
         order by d.id fetch first ($4 + 1) rows with ties) as d
"""
_OF_ALL = """
    select {columns} from postbus.dead_letters d
     where d.id >= $1 and ($8::text is null or d.group_name = $8) and $6::text is null and $7::text[] is null
       and ($9::text[] is null or d.group_name is null or d.group_name like any ($9))
       and (d.id > $1 or (d.topic, coalesce(d.group_name, '')) > ($2, $3))
     order by d.id fetch first ($4 + 1) rows with ties
"""
_DEAD_LETTERS = """
    with sized as (
        select * from ({source}) as d order by id, topic, group_key limit $4 + 1
    ), added as (
        select *, sum(size) over (order by id, topic, group_key) as bytes,
               row_number() over (order by id, topic, group_key) as number
          from sized
    ), page as (
        select * from added where number <= $4 and (bytes <= $5 or number = 1)
    )
    select {columns}, died_at, reason, (select count(*) from sized) > (select count(*) from page) as more
      from postbus.dead_letters d
     where d.id = any (array(select id from page))
       and (d.id, d.topic_id, coalesce(d.group_name, '')) in (select id, topic_id, group_key from page)
     order by d.id, d.topic, d.group_name
"""


class PageStore(Database):
    """Runs statements that return lists page by page."""

    async def queue_page(
        self,
        topic: str,
        *,
        after: int = 0,
        before: int = LAST,
        limit: int,
        max_bytes: int,
        newest: bool = False,
        payloads: bool = True,
    ) -> Page[QueueMessage]:
        """Messages of a QUEUE with ids between two others, in their order: the first ones or the newest."""
        order = "desc" if newest else "asc"
        size, columns = (_SIZE, _MESSAGE) if payloads else ("0", f"{_WITHOUT_PAYLOAD}, ''::bytea as payload")
        sql = _QUEUE.format(size=size, order=order, columns=columns)
        return _page(QueueMessage, await self._rows(sql, topic, after, before, limit, max_bytes))

    async def log_page(
        self,
        topic: str,
        *,
        after: tuple[int, int],
        after_id: int = 0,
        limit: int,
        max_bytes: int,
        newest: bool = False,
        payloads: bool = True,
    ) -> Page[LogMessage]:
        """Messages of a PUB_SUB topic in the order of the log, after a sequence and index; with `newest`, before it."""
        rows = await self._rows(
            "select $1::text as topic, * from postbus.log_page($1, $2, $3, $4, $5, $6, $7, $8)",
            topic, *after, limit, max_bytes, newest, payloads, after_id,
        )  # fmt: skip
        more = bool(rows) and rows[-1]["id"] is None
        found = [
            as_struct(LogMessage, row if payloads else {**row, "payload": b""}) for row in (rows[:-1] if more else rows)
        ]
        return Page(found[::-1] if newest else found, more)

    async def dead_letter_page(
        self,
        *,
        after: tuple[int, str | None, str | None],
        limit: int,
        max_bytes: int,
        topic: str | None,
        group: str | None,
        topics: Sequence[str],
        groups: Sequence[str],
    ) -> Page[DeadLetterInfo]:
        """Dead letters by id, topic and group, after the given ones.

        They are of one topic and group, or of all that match one of the patterns, in which * stands for any text.
        """
        patterns = likes(topics) if topic is None else None
        columns = f"d.id, d.topic, d.topic_id, coalesce(d.group_name, '') as group_key, {_DEAD_SIZE} as size"
        source = (_OF_ALL if topic is None and patterns is None else _OF_TOPICS).format(columns=columns)
        sql = _DEAD_LETTERS.format(source=source, columns=_MESSAGE)
        return _page(
            DeadLetterInfo, await self._rows(sql, *after, limit, max_bytes, topic, patterns, group, likes(groups))
        )

    async def topic_page(self, *, after: str, limit: int, topics: Sequence[str]) -> Page[TopicInfo]:
        """Topics by name, with options and message counts. Only the messages of topics on the page are counted."""
        rows = await self._rows(
            "select * from postbus.topics where name = any (array(select name from postbus.topics where name > $1 "
            "and ($3::text[] is null or name like any ($3)) order by name limit $2 + 1)) order by name",
            after,
            limit,
            likes(topics),
        )
        return Page(as_structs(TopicInfo, rows[:limit]), len(rows) > limit)

    async def group_page(
        self,
        *,
        after: tuple[str, str, int],
        limit: int,
        topic: str | None,
        topics: Sequence[str],
        groups: Sequence[str],
    ) -> Page[GroupInfo]:
        """Groups by topic and name, with lag and state, without those that are CANCELLED."""
        rows = await self._rows(
            "select * from postbus.groups where (topic, group_name, subscription_id) > ($1, $2, $3) "
            "and state <> 'CANCELLED' and ($5::text is null or topic = $5) "
            "and ($6::text[] is null or topic like any ($6)) and ($7::text[] is null or group_name like any ($7)) "
            "order by topic, group_name, subscription_id limit $4 + 1",
            *after,
            limit,
            topic,
            likes(topics),
            likes(groups),
        )
        return Page([group_info(row) for row in rows[:limit]], len(rows) > limit)

    async def catch_up_page(
        self, *, after: tuple[str, str, int], limit: int, topics: Sequence[str], groups: Sequence[str]
    ) -> Page[CatchUpInfo]:
        """Catch-ups of groups, by topic and name."""
        rows = await self._rows(
            "select * from postbus.catch_ups where (topic, group_name, subscription_id) > ($1, $2, $3) "
            "and ($5::text[] is null or topic like any ($5)) and ($6::text[] is null or group_name like any ($6)) "
            "order by topic, group_name, subscription_id limit $4 + 1",
            *after,
            limit,
            likes(topics),
            likes(groups),
        )
        return Page(as_structs(CatchUpInfo, rows[:limit]), len(rows) > limit)

    async def webhook_page(
        self, *, after: str, limit: int, topics: Sequence[str], groups: Sequence[str]
    ) -> Page[WebhookInfo]:
        """Webhooks by name, without their secrets. Those of a QUEUE are shown to callers of all groups."""
        rows = await self._rows(
            "select * from postbus.webhooks where name > $1 and ($3::text[] is null or topic like any ($3)) "
            "and ($4::text[] is null or group_name like any ($4)) order by name limit $2 + 1",
            after,
            limit,
            likes(topics),
            likes(groups),
        )
        return Page(as_structs(WebhookInfo, rows[:limit]), len(rows) > limit)

    async def token_page(self, *, after: str, limit: int) -> Page[TokenInfo]:
        """Tokens in the order in which they were made, after the given one, without their secrets."""
        rows = await self._rows(
            "select * from postbus.tokens where $1 = '' "
            "or (created_at, id) > (select one.created_at, one.id from postbus.tokens one where one.id = $1) "
            "order by created_at, id limit $2 + 1",
            after,
            limit,
        )
        return Page(as_structs(TokenInfo, rows[:limit]), len(rows) > limit)


_DEAD_SIZE = _SIZE + " + coalesce(octet_length(reason), 0)"


def _page(kind: type[S], rows: Sequence[Row]) -> Page[S]:
    return Page(as_structs(kind, rows), any(row["more"] for row in rows))
