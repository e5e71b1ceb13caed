"""Outbox tables that Postbus can move in from: how each layout says what is still to be done."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from postbus._admin.outbox_import.table import (
    FAN_OUT,
    NEEDED,
    NOT_NEEDED,
    SIMPLE,
    TRIED,
    Outbox,
    OutboxTable,
    PendingMessage,
    SourceGroup,
    SourceTopic,
    find_table,
)
from postbus._content.identity import EVENT_ID
from postbus.errors import InvalidInput
from postbus.events import AGGREGATE_ID, AGGREGATE_TYPE, EVENT_TYPE, EVENT_VERSION

_MAX_RETENTION_HOURS = 30 * 24  # of a topic that says nothing else
_USUAL_TABLES = ("outbox", "outbox_events")


class FanOutOutbox(Outbox):
    """Topics, groups, and a row per message and group that says whether it is done."""

    layout = FAN_OUT
    needed = (("id",), ("topic",), ("payload",), ("status",), ("created_at",))

    def __init__(self, table: OutboxTable, beside: Mapping[str, OutboxTable | None]) -> None:
        super().__init__(table)
        self._configured = beside["topics"]
        self._subscriptions = beside["topic_subscriptions"]
        self._done = beside["consumer_groups"]
        self._offsets = beside["subscription_offsets"]

    async def topics(self, conn: Any, only: Collection[str]) -> list[SourceTopic]:
        names = f"select distinct topic::text as topic from {self.table.name}"
        config: dict[str, Mapping[str, Any]] = {}
        if self._configured is not None:
            config = {row["topic"]: dict(row) for row in await conn.fetch(f"select * from {self._configured.name}")}
        found = {row["topic"] for row in await conn.fetch(names)} | config.keys()
        unknown = sorted(set(only) - found)
        if unknown:
            raise InvalidInput(
                f"{self.source} has no topic {unknown[0]!r}",
                remedy=f"it has {', '.join(sorted(found)) or 'no topics at all'}",
            )
        return [
            await self._topic(conn, name, config.get(name, {}))
            for name in sorted(found)
            if not only or name in only
        ]  # fmt: skip

    async def _topic(self, conn: Any, name: str, config: Mapping[str, Any]) -> SourceTopic:
        topic = SourceTopic(name, config.get("semantics") or "QUEUE")
        # A table of offsets may be there before a topic goes by it: then its figures are only guesses.
        usual = "REFERENCE_COUNTING" if self._offsets is None else "OFFSET_WATERMARK"
        tracking = config.get("completion_tracking_mode") or usual
        topic.options = _topic_options(topic.semantics, tracking, config)
        if topic.semantics == "PUB_SUB":
            by_offset = self._offsets is not None and tracking == "OFFSET_WATERMARK"
            await self._find_groups(conn, topic)
            await self._find_needed(conn, topic, by_offset)
        else:
            topic.items = [
                PendingMessage(row["id"], "", False)
                for row in await conn.fetch(
                    f"select {self._id}::text as id from {self.table.name} m {self._mark('$2')} "
                    "where m.topic = $1 and m.status is distinct from 'COMPLETED' and mark.message_id is null "
                    f"order by {self._id}",
                    name,
                    self.source,
                )
            ]
        return topic

    async def _find_groups(self, conn: Any, topic: SourceTopic) -> None:
        if self._subscriptions is None:
            return
        state = self._subscriptions.column("s", "subscription_status", "status", default="'ACTIVE'")
        rows = await conn.fetch(
            f"select s.group_name::text as name, {state}::text as state, g.group_name is not null as is_marked "
            f"from {self._subscriptions.name} s left join postbus.imported_group g "
            "on g.source = $2 and g.topic_id = postbus.topic_id($1) and g.group_name = s.group_name "
            "where s.topic = $1 order by s.group_name",
            topic.name,
            self.source,
        )
        here = await conn.fetch(
            "select group_name from postbus.groups where topic = $1 and state <> 'CANCELLED'", topic.name
        )
        subscribed = {row["group_name"] for row in here}
        for row in rows:
            if row["is_marked"] and row["name"] not in subscribed:
                topic.notes.append(f"group {row['name']} of {topic.name} was cancelled here, and stays so")
            elif row["state"] in ("ACTIVE", "PAUSED"):
                topic.groups.append(SourceGroup(row["name"], row["state"], row["is_marked"]))
            elif row["state"] == "DEAD":
                # Messages do not wait for it any more, so which of them are still there for it is mere chance.
                topic.notes.append(
                    f"group {row['name']} of {topic.name} is DEAD and stays behind; "
                    "make it ACTIVE or PAUSED in the old table to take it along"
                )

    async def _find_needed(self, conn: Any, topic: SourceTopic, by_offset: bool) -> None:
        rows = await conn.fetch(
            self._needs_sql(by_offset),
            topic.name,
            self.source,
            [one.name for one in topic.groups],
            [one.is_marked for one in topic.groups],
        )
        for row in rows:
            needs = row["needs"] or ""
            if needs.strip(NOT_NEEDED) or not topic.groups or row["is_kept"]:
                topic.items.append(PendingMessage(row["id"], needs, row["is_marked"]))
            elif by_offset and not row["is_seen"]:
                topic.seen.append(row["id"])

    def _needs_sql(self, by_offset: bool) -> str:
        """All messages that are not done as a whole, with the state of each for each group."""
        joins, done, tried = "", ["false"], "false"
        if self._done is not None:
            joins += f" left join {self._done.name} d on d.message_id = {self._id} and d.group_name = g.name"
            state = self._done.column("d", "status", default="'COMPLETED'")
            done.append(f"(d.message_id is not null and coalesce({state}, 'COMPLETED') = 'COMPLETED')")
            tried = f"coalesce({self._done.column('d', 'retry_count')} > 0, false)"
        if by_offset:
            assert self._offsets is not None
            joins += f" left join {self._offsets.name} f on f.topic = m.topic and f.group_name = g.name"
            # What an earlier import has not seen came later, whatever its id is.
            passed = f"coalesce({self._id} <= f.last_processed_id, false)"
            done.append(f"case when g.is_marked then mark.source is not null else {passed} end")
        if self._subscriptions is not None:
            joins += f" left join {self._subscriptions.name} s on s.topic = m.topic and s.group_name = g.name"
            first = self._subscriptions.column("s", "start_from_message_id")
            since = self._subscriptions.column("s", "start_from_timestamp")
            done.append(f"coalesce({self._id} < {first}, false)")
            done.append(f"coalesce(m.created_at < {since}::timestamptz, false)")
        kept = f"coalesce({self.table.column('m', 'required_consumer_groups')} = 0, false)"
        return f"""
            select {self._id}::text as id, mark.message_id is not null as is_marked, mark.source is not null as is_seen,
                   {kept} as is_kept,
                   (select string_agg(case when {" or ".join(done)} then '{NOT_NEEDED}' when {tried} then '{TRIED}'
                                           else '{NEEDED}' end, '' order by g.n)
                      from unnest($3::text[], $4::boolean[]) with ordinality as g (name, is_marked, n) {joins}) as needs
              from {self.table.name} m {self._mark("$2")}
             where m.topic = $1 and m.status is distinct from 'COMPLETED'
               and (mark.message_id is null or false = any ($4))
             order by {self._id}"""

    def rows_sql(self, topic: SourceTopic) -> str:
        is_log = topic.semantics == "PUB_SUB"
        join, attempts = "", self.table.column("m", "retry_count", default="0")
        error = self.table.column("m", "error_message", "last_error")
        if is_log:
            attempts, error = "0", "null"
            if self._done is not None:
                join = f"left join {self._done.name} d on d.message_id = {self._id} and d.group_name = $2"
                attempts, error = (
                    self._done.column("d", "retry_count", default="0"),
                    self._done.column("d", "error_message"),
                )
        return f"""
            select wanted.n, {self._id}::text as id, {self._payload} as payload,
                   {self.table.column("m", "message_group")}::text as key,
                   {_headers(self.table.column("m", "headers"))} as headers,
                   {self.table.column("m", "correlation_id")}::text as correlation_id,
                   m.created_at::timestamptz as published_at,
                   {attempts}::integer as attempts, {error}::text as error
              from {self._wanted} {join}
             where m.status is distinct from 'COMPLETED' and $2::text is not distinct from $2"""


def _headers(column: str) -> str:
    """Headers of a row, as texts; what they say of its event stands also under the names that others read."""
    names = (EVENT_TYPE, EVENT_VERSION, AGGREGATE_TYPE, AGGREGATE_ID)
    known = " ".join(f"when '{name.replace('-', '_')}' then '{name}'" for name in names)
    known += f" when 'event_id' then case when postbus.is_event_id(h.value) then '{EVENT_ID}' end"
    return f"""
        (select case jsonb_typeof(given.headers)
                     when 'object' then (select jsonb_object_agg(told.name, told.value order by told.is_own)
                                           from jsonb_each_text(given.headers) as h
                                          cross join lateral (values (h.key, h.value, true),
                                                                     (case h.key {known} end, h.value, false))
                                                as told (name, value, is_own)
                                          where told.name is not null and told.value is not null)
                     when 'null' then null else given.headers end
           from (select {column}::jsonb as headers) as given)"""


def _topic_options(semantics: str, tracking: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an old topic, by their names here. What is null there has the default."""
    hours, alone = config.get("message_retention_hours"), config.get("zero_subscription_retention_hours")
    longest = max(hours or 0, alone or 0)
    options = {
        "semantics": semantics,
        "retention": None if hours is None else f"{hours} hours",
    }
    if semantics == "PUB_SUB":
        options |= {
            "tracking": tracking,
            "zero_subscription_retention": None if alone is None else f"{alone} hours",
            "block_writes_on_zero_subscriptions": config.get("block_writes_on_zero_subscriptions"),
            "max_retention": f"{longest} hours" if longest > _MAX_RETENTION_HOURS else None,
        }
    return {name: value for name, value in options.items() if value is not None}


class EventOutbox(Outbox):
    """Events of aggregates; published_at says which were published."""

    layout = SIMPLE
    needed = (
        ("id", "event_id"),
        ("event_type",),
        ("aggregate_type",),
        ("aggregate_id",),
        ("payload_json", "payload"),
        ("created_at",),
        ("published_at",),
    )

    def __init__(self, table: OutboxTable, topic: str, semantics: str) -> None:
        super().__init__(table)
        self._topic, self._semantics = topic, semantics

    async def topics(self, conn: Any, only: Collection[str]) -> list[SourceTopic]:
        rows = await conn.fetch(
            f"select {self._id}::text as id, replace(replace($2, '{{event_type}}', m.event_type::text), "
            "'{aggregate_type}', m.aggregate_type::text) as topic "
            f"from {self.table.name} m {self._mark('$1')} where m.published_at is null and mark.message_id is null "
            f"order by m.created_at, {self._id}",
            self.source,
            self._topic,
        )
        found: dict[str, SourceTopic] = {}
        for row in rows:
            name = row["topic"]
            topic = found.setdefault(name, SourceTopic(name, self._semantics, {"semantics": self._semantics}))
            topic.items.append(PendingMessage(row["id"], "", False))
        return [topic for name, topic in sorted(found.items()) if not only or name in only]

    def rows_sql(self, topic: SourceTopic) -> str:
        return f"""
            select wanted.n, {self._id}::text as id, {self._payload} as payload, m.aggregate_id::text as key,
                   coalesce({_headers(self.table.column("m", "headers"))}, '{{}}')
                   || jsonb_strip_nulls(jsonb_build_object(
                       'event-id', {self._id}::text, 'event-type', m.event_type::text,
                       'aggregate-type', m.aggregate_type::text, 'aggregate-id', m.aggregate_id::text,
                       'event-version', {self.table.column("m", "event_version")}::text)) as headers,
                   {self.table.column("m", "correlation_id")}::text as correlation_id,
                   m.created_at::timestamptz as published_at,
                   {self.table.column("m", "attempt_count", "attempts", default="0")}::integer as attempts,
                   {self.table.column("m", "last_error")}::text as error
              from {self._wanted}
             where m.published_at is null and $2::text is not distinct from $2"""


async def open_outbox(
    conn: Any, table: str | None, layout: str | None, *, topic: str | None, semantics: str | None
) -> Outbox:
    """The outbox of this name, or one of a usual name. Its layout follows from its columns unless it is said."""
    found = await _find(conn, [table] if table is not None else _USUAL_TABLES)
    kinds: Sequence[type[Outbox]] = [kind for kind in (FanOutOutbox, EventOutbox) if layout in (None, kind.layout)]
    fitting = next((kind for kind in kinds if not kind.missing(found)), None)
    if fitting is None:
        raise InvalidInput(
            f"{found.name} is not an outbox that can be imported: {'; '.join(_lacks(found, kinds))}",
            remedy="name another table, or make a view with these columns",
        )
    if fitting is EventOutbox:
        return EventOutbox(found, topic or "{aggregate_type}", semantics or "QUEUE")
    if topic is not None or semantics is not None:
        raise InvalidInput(
            f"{found.name} has topics of its own", remedy="leave out the topic and its semantics: they are for events"
        )
    return FanOutOutbox(found, await _tables_beside(conn, found))


def _lacks(table: OutboxTable, kinds: Sequence[type[Outbox]]) -> Iterator[str]:
    for kind in kinds:
        yield f"as {kind.layout} it lacks {', '.join(kind.missing(table))}"


async def _find(conn: Any, names: Sequence[str]) -> OutboxTable:
    for name in names:
        table = await find_table(conn, name)
        if table is not None:
            return table
    raise InvalidInput(
        f"there is no table {' or '.join(names)} here",
        remedy="name it, with its schema where that is not in the search path: postbus import schema.table",
    )


_BESIDE = {
    "topics": ("topic",),
    "topic_subscriptions": ("topic", "group_name"),
    "consumer_groups": ("message_id", "group_name"),
    "subscription_offsets": ("topic", "group_name", "last_processed_id"),
}


async def _tables_beside(conn: Any, table: OutboxTable) -> dict[str, OutboxTable | None]:
    """The tables whose names begin with that of the outbox; each may be missing, but not its columns."""
    found = {}
    for suffix, needed in _BESIDE.items():
        name = await conn.fetchval(
            "select format('%I.%I', n.nspname, c.relname || '_' || $2) from pg_class c "
            "join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass($1)",
            table.name,
            suffix,
        )
        beside = found[suffix] = await find_table(conn, name)
        missing = [column for column in needed if beside is not None and column not in beside.columns]
        if missing:
            raise InvalidInput(
                f"{name} lacks {', '.join(missing)}", remedy="give the columns these names, or make views that do"
            )
    return found
