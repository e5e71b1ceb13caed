"""Moving in from another outbox: its pending messages, and how far its groups have come.

A group's position in the log is a prefix, and in the old outbox a group may have done any messages. So messages are
appended in the order of their ids, and each group is subscribed in between: right behind the last message that it must
not read from the log. What it needs of those before goes to its retries, in the transaction that subscribes it. What is
appended afterwards it needs all.

Messages are marked in the transaction that carries them over, so a run that was ended anywhere is simply repeated; and
what becomes visible late in the old table is found by the next run, whatever its id is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from postbus._admin.outbox_import.layouts import open_outbox
from postbus._admin.outbox_import.table import (
    LAYOUTS,
    NOT_NEEDED,
    TRIED,
    Outbox,
    PendingMessage,
    SourceGroup,
    SourceTopic,
)
from postbus._content.names import is_name
from postbus._db.commit import committed, is_lost
from postbus._db.error_map import DRIVER_ERRORS
from postbus._db.store import Store
from postbus.errors import InvalidInput, InvalidOption, WrongSemantics
from postbus.options import as_json

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Is told how many of how many messages are done."""

_BATCH = 1000
_LOCK = "hashtext('postbus.import')"
_SAY_ACTOR = "select pg_catalog.set_config('postbus.actor', $1, false)"  # of the session: it runs in many transactions
_ARRAYS = ", ".join(
    f"array_agg(m.{column} order by m.n) as {column}"
    for column in ("id", "payload", "key", "headers", "correlation_id", "published_at", "attempts", "error")
)


@dataclass(frozen=True)
class ImportedGroup:
    """A group, and what it gets of what was carried over."""

    name: str
    state: str
    messages: int
    deferred: int
    """Those of them that are not read from the log: they were tried, or others after them are done."""


@dataclass(frozen=True)
class ImportedTopic:
    """The messages that were carried over to a topic."""

    name: str
    semantics: str
    messages: int
    groups: tuple[ImportedGroup, ...] = ()


@dataclass(frozen=True)
class NotImported:
    """Rows that stay in the old table until their problem is solved and the import is run again."""

    topic: str
    id: str | None
    """None: all messages of the topic."""
    problem: str


@dataclass(frozen=True)
class ImportResult:
    """The result of an import, or with `dry_run` the expected one."""

    table: str
    layout: str
    dry_run: bool
    topics: tuple[ImportedTopic, ...] = ()
    not_imported: tuple[NotImported, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        """How many messages were carried over, to all topics."""
        return sum(topic.messages for topic in self.topics)


async def import_outbox(
    store: Store,
    table: str | None = None,
    *,
    layout: str | None = None,
    topic: str | None = None,
    semantics: str | None = None,
    only: Collection[str] = (),
    options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ImportResult:
    """Carry over what is pending in an outbox table of the same database. See `Admin.import_outbox`."""
    if layout is not None and layout not in LAYOUTS:
        raise InvalidOption(f"layout {layout!r} is not known", remedy=f"use {' or '.join(LAYOUTS)}")
    if semantics is not None and semantics not in ("QUEUE", "PUB_SUB"):
        raise InvalidOption(f"semantics {semantics!r} is not known", remedy="use QUEUE or PUB_SUB")
    if store.is_pooled:
        raise InvalidInput(
            "an import cannot pass a connection pooler, which gives its lock to somebody else",
            remedy="give it a DSN that goes to the server itself",
        )
    async with store.pinned() as conn, _alone(conn, store.actor):
        outbox = await open_outbox(conn, table, layout, topic=topic, semantics=semantics)
        topics = await outbox.topics(conn, only)
        run = _ImportRun(conn, outbox, as_json(options or {}), progress or (lambda done, total: None))
        for one in topics:
            one.options |= run.options
        run.total = sum(len(_unmarked(one)) for one in topics if _why_not(one) is None)
        for one in topics:
            problem = _why_not(one)
            run.notes += one.notes
            if problem is not None:
                run.not_imported.append(NotImported(one.name, None, problem))
            elif dry_run:
                run.topics.append(_summary(one, frozenset()))
            else:
                run.topics.append(await run.carry(one))
    return ImportResult(
        outbox.source, outbox.layout, dry_run, tuple(run.topics), tuple(run.not_imported), tuple(run.notes)
    )


@asynccontextmanager
async def _alone(conn: Any, actor: str) -> AsyncIterator[None]:
    """One import at a time.

    Groups are subscribed between messages, so two imports at once would put groups at wrong positions.
    """
    if not await conn.fetchval(f"select pg_try_advisory_lock({_LOCK})"):
        raise InvalidInput("another import is under way", remedy="wait until it has ended")
    try:
        await conn.execute(_SAY_ACTOR, actor)
        yield
    finally:
        if not is_lost(conn):
            with suppress(*DRIVER_ERRORS):
                await conn.execute(_SAY_ACTOR, "")
                await conn.execute(f"select pg_advisory_unlock({_LOCK})")


@dataclass
class _ImportRun:
    conn: Any
    outbox: Outbox
    options: dict[str, Any]
    progress: Progress
    total: int = 0
    done: int = 0
    topics: list[ImportedTopic] = field(default_factory=list)
    not_imported: list[NotImported] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dead: Counter[str] = field(default_factory=Counter)
    """Messages that arrived as dead letters, by topic or group."""

    async def carry(self, topic: SourceTopic) -> ImportedTopic:
        """Carry over what is pending in a topic."""
        await self._make_topic(topic)
        refused: set[str] = set()
        late = {item.id for item in _unmarked(topic) if _is_late(topic, item)}
        carried = 0
        for position, group in _new_groups(topic):
            refused |= await self._append(topic, _in_time(topic.items[carried:position], late))
            await self._add_group(topic, group, topic.items[:position], late)
            carried = position
        refused |= await self._append(topic, _in_time(topic.items[carried:], late))
        refused |= await self._hand_out(topic, [item for item in topic.items if item.id in late])
        self.notes += [_told_dead(where, count) for where, count in self.dead.items() if count]
        self.dead.clear()
        for ids in _batches(topic.seen):
            await self.conn.execute("select postbus.import_seen($1, $2)", self.outbox.source, ids)
        return _summary(topic, refused)

    async def _make_topic(self, topic: SourceTopic) -> None:
        known = await self.conn.fetchval(
            "select semantics from postbus.topics where name = $1 and configured", topic.name
        )
        if known is None:
            await self.conn.execute("select postbus.create_topic($1, $2)", topic.name, json.dumps(topic.options))
        elif known != topic.semantics:
            raise WrongSemantics(
                f"topic {topic.name!r} is {known} here, and {topic.semantics} in {self.outbox.source}",
                remedy=f"delete it first, if nobody needs it: postbus topics delete {topic.name}",
            )

    async def _append(self, topic: SourceTopic, items: Sequence[PendingMessage]) -> set[str]:
        """Carry messages over to the topic. Returns the ids of those that were refused."""
        refused: set[str] = set()
        for ids in _batches([item.id for item in items]):
            async with committed(self.conn):
                told = await self._import(topic, ids, to_log=True)
            refused |= self._tell(topic, ids, told)
        return refused

    async def _add_group(
        self, topic: SourceTopic, group: SourceGroup, before: Sequence[PendingMessage], late: set[str]
    ) -> None:
        """Subscribe a group here, and give it what it needs of what is before its position."""
        number = topic.groups.index(group)
        ids = [item.id for item in before if item.needs[number] != NOT_NEEDED and item.id not in late]
        async with committed(self.conn):
            await self.conn.execute(
                "select postbus.import_group($1, $2, $3, $4)", self.outbox.source, topic.name, group.name, group.state
            )
            for some in _batches(ids):
                await self._retry(topic, group, some)

    async def _hand_out(self, topic: SourceTopic, items: Sequence[PendingMessage]) -> set[str]:
        """Give messages to the groups that need them, and to no others."""
        refused: set[str] = set()
        for some in _batches(items):
            ids = [item.id for item in some]
            async with committed(self.conn):
                told = await self._import(topic, ids, to_log=False)
                for number, group in enumerate(topic.groups):
                    needed = [item.id for item in some if item.needs[number] != NOT_NEEDED]
                    if needed:
                        await self._retry(topic, group, needed)
            refused |= self._tell(topic, ids, told)
        return refused

    async def _import(self, topic: SourceTopic, ids: Sequence[str], *, to_log: bool) -> list[Any]:
        return list(
            await self.conn.fetch(
                f"select told.* from (select {_ARRAYS} from ({self.outbox.rows_sql(topic)}) as m) as b "
                "cross join lateral postbus.import_messages($3, $4, b.id, b.payload, $5, b.key, b.headers, "
                "b.correlation_id, b.published_at, b.attempts, b.error, $6) as told",
                *(ids, None, self.outbox.source, topic.name, self.outbox.content_type, to_log),
            )
        )

    async def _retry(self, topic: SourceTopic, group: SourceGroup, ids: Sequence[str]) -> None:
        self.dead[f"group {group.name} of {topic.name}"] += await self.conn.fetchval(
            "select postbus.import_deferred($3, $4, $2, b.id, b.payload, $5, b.key, b.headers, b.correlation_id, "
            "b.published_at, b.attempts, b.error) "
            f"from (select {_ARRAYS} from ({self.outbox.rows_sql(topic)}) as m) as b",
            *(ids, group.name, self.outbox.source, topic.name, self.outbox.content_type),
        )

    def _tell(self, topic: SourceTopic, ids: Sequence[str], told: Sequence[Any]) -> set[str]:
        self.done += len(ids)
        self.progress(self.done, self.total)
        self.dead[topic.name] += sum(row["is_dead"] for row in told)
        problems = [NotImported(topic.name, row["source_id"], row["problem"]) for row in told if row["problem"]]
        self.not_imported += problems
        gone = set(ids) - {row["source_id"] for row in told}  # deleted, or done, in the meantime
        return gone | {one.id for one in problems if one.id is not None}


def _told_dead(where: str, count: int) -> str:
    if count == 1:
        return f"1 message of {where} had used up its attempts and is a dead letter"
    return f"{count} messages of {where} had used up their attempts and are dead letters"


def _new_groups(topic: SourceTopic) -> list[tuple[int, SourceGroup]]:
    """Groups that are not here yet, each with the number of messages before its position; the first position first."""
    found = []
    for number, group in enumerate(topic.groups):
        if not group.is_marked:
            before = (
                n
                for n, item in enumerate(topic.items, 1)
                if item.is_marked or item.needs[number] in (NOT_NEEDED, TRIED)
            )
            found.append((max(before, default=0), group))
    return sorted(found, key=lambda one: one[0])


def _is_late(topic: SourceTopic, item: PendingMessage) -> bool:
    """Whether a group that reads the log already must not get the message."""
    return any(group.is_marked and need == NOT_NEEDED for group, need in zip(topic.groups, item.needs, strict=False))


def _in_time(items: Sequence[PendingMessage], late: set[str]) -> list[PendingMessage]:
    return [item for item in items if not item.is_marked and item.id not in late]


def _unmarked(topic: SourceTopic) -> list[PendingMessage]:
    return [item for item in topic.items if not item.is_marked]


def _why_not(topic: SourceTopic) -> str | None:
    """Why a topic cannot be carried over at all."""
    if not is_name(topic.name):
        return f"{topic.name!r} cannot be the name of a topic"
    bad = next((group.name for group in topic.groups if not is_name(group.name)), None)
    return None if bad is None else f"{bad!r} cannot be the name of a group"


def _summary(topic: SourceTopic, refused: Collection[str]) -> ImportedTopic:
    """The messages that were carried over, or will be."""
    items = [item for item in topic.items if item.id not in refused]
    positions = {group.name: position for position, group in _new_groups(topic)}
    groups = []
    for number, group in enumerate(topic.groups):
        before = {item.id for item in topic.items[: positions.get(group.name, 0)]}
        mine = [item for item in items if item.needs[number] != NOT_NEEDED and not (group.is_marked and item.is_marked)]
        apart = sum(item.id in before or (not item.is_marked and _is_late(topic, item)) for item in mine)
        groups.append(ImportedGroup(group.name, group.state, len(mine), apart))
    return ImportedTopic(topic.name, topic.semantics, sum(not item.is_marked for item in items), tuple(groups))


def _batches(things: Sequence[T]) -> Iterator[Sequence[T]]:
    for begin in range(0, len(things), _BATCH):
        yield things[begin : begin + _BATCH]
