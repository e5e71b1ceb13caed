"""The door to the database: one method per SQL function, rows in, plain values out.

Nothing above this module sees SQL, a row or an error of the driver.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple, overload
from uuid import UUID

import asyncpg
import msgspec

from postbus import _migrate
from postbus._commit import commit, is_lost
from postbus._pool import Connections
from postbus._segment import NO_HEADERS, Piece
from postbus._translate import DRIVER_ERRORS, dsn_errors, translated_errors
from postbus.message import Message
from postbus.start import Start

Connection = asyncpg.Connection
PoolConnection = asyncpg.pool.PoolConnectionProxy

# A claim or an extension that a crash of the server undoes is harmless: the message is claimed again.
# So their commits do not wait for the disk. Said in the statement, since behind a connection pooler a
# session's settings are not ours.
_RELAXED = "set_config('synchronous_commit', 'off', true)"

_CLAIM = (
    f"select c.*, c.ends_at - clock_timestamp() as remaining, {_RELAXED} "
    "from postbus.claim($1, $2, $3, $4, $5, $6) as c"
)
_EXTEND = f"select postbus.extend($1, $2), {_RELAXED}"
_HEARTBEAT = f"select postbus.heartbeat($1, $2, $3, $4), {_RELAXED}"
_RING = f"select pg_notify('postbus', id::text), {_RELAXED} from unnest($1::bigint[]) as id"
_ACQUIRE = 10  # seconds
# A server that crashed hands out transaction ids again that nothing durable had. So places that were read, but not
# stored, mean nothing to the server that runs after it.
_SERVER = "pg_postmaster_start_time()"
_READ_LOG = (
    f"select r.*, case when r.position is null then {_SERVER} end as server, "
    f"case when r.position is null then {_RELAXED} end "
    "from postbus.read_log($1, $2, $3, $4, $5, $6) as r"
)
_ADVANCE = f"select postbus.advance($1, $2, $3, $4, $5, $6, $7) where {_SERVER} = all ($8)"
_LEASE_LANES = f"select l.*, {_SERVER} as server from postbus.lease_lanes($1, $2, $3) as l"


class Claim(msgspec.Struct, frozen=True):
    """What a claim brought."""

    token: UUID | None
    """None where there was nothing to do."""
    messages: list[Message]
    length: timedelta
    """Of the lease."""
    remaining: timedelta
    """What is left of that now: a claim may have taken long."""
    floor: str | None
    ordered: bool
    more: bool
    """A limit ended the search: asking again is worth it."""
    next_due: timedelta | None


class SubscriptionInfo(NamedTuple):
    """A group's subscription, as far as its members need to know."""

    id: int
    state: str
    lease: timedelta
    heartbeat: timedelta
    is_new: bool


class Step(NamedTuple):
    """A cursor to be moved."""

    subscription_id: int
    lane: int
    number: int
    cursor: str
    done_position: int | None
    done_index: int | None
    passed: int
    server: datetime
    """Where the cursor belongs."""


class PutOff(NamedTuple):
    """A message to be taken out of a group's way."""

    kind: str
    """retry, park or dead."""
    message: Message
    position: int
    delay: timedelta | None = None
    error: str | None = None
    reason: str | None = None


class Due(NamedTuple):
    """A message to be tried again by a group. Its attempt is counted already."""

    lane: int
    message: Message
    last_error: str | None


class Store:
    """Connections to one database, and what can be asked of it."""

    def __init__(self, pool: asyncpg.Pool, connections: Connections) -> None:
        self._pool = pool
        """For transactions of users."""
        self._connections = connections

    @classmethod
    async def open(cls, dsn: str, *, size: int = 10) -> Store:
        """Connect. Refuses a database whose schema does not fit."""
        with translated_errors(), dsn_errors():
            pool = await asyncpg.create_pool(dsn, min_size=0, max_size=size, reset=_no_reset, timeout=10)
            connections = Connections(dsn, size)
            try:
                async with connections.one() as conn:
                    await _migrate.check(conn)
            except BaseException:
                await connections.close()
                await pool.close()
                raise
        return cls(pool, connections)

    async def close(self) -> None:
        await self._connections.close()
        await self._pool.close()

    def terminate(self) -> None:
        """Close without waiting for anything."""
        self._connections.terminate()
        self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A connection for statements of ours."""
        with translated_errors():
            async with self._connections.one() as conn:
                yield conn

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PoolConnection]:
        """A transaction for the work of users: their errors stay theirs, and what they set is reset."""
        with translated_errors():
            conn = await self._pool.acquire(timeout=_ACQUIRE)
        try:
            with translated_errors():
                transaction = conn.transaction(isolation="read_committed")
                await transaction.start()
            try:
                yield conn
            except BaseException:
                if not is_lost(conn):
                    with contextlib.suppress(*DRIVER_ERRORS):  # what the body raised is what counts
                        await transaction.rollback()
                raise
            with translated_errors():
                await commit(transaction, conn)
        finally:
            await self._take_back(conn)

    async def _take_back(self, conn: PoolConnection) -> None:
        with contextlib.suppress(*DRIVER_ERRORS):
            if not is_lost(conn):
                await conn.reset()
            await self._pool.release(conn)

    # publish

    async def publish_batches(self, batches: Sequence[tuple[str, Sequence[Any]]]) -> list[list[int]]:
        """Run several publish_many statements in one durable transaction."""
        async with self.connection() as conn, _committed(conn):
            return [await conn.fetchval(sql, *args) for sql, args in batches]

    async def ring(self, topic_ids: Sequence[int]) -> None:
        async with self.connection() as conn:
            await conn.execute(_RING, topic_ids)

    # claim

    async def claim(
        self,
        topic: str,
        *,
        member: str,
        max_count: int,
        lease: timedelta | None = None,
        floor: str | None = None,
        max_bytes: int = 16 << 20,
    ) -> Claim:
        async with self.connection() as conn:
            row = await conn.fetchrow(_CLAIM, topic, member, max_count, lease, floor, max_bytes)
        assert row is not None
        messages = [] if row["token"] is None else _messages(topic, row)
        return Claim(
            row["token"],
            messages,
            row["lease_length"] or timedelta(0),
            row["remaining"] or timedelta(0),
            row["next_floor"],
            row["ordered"],
            row["more"],
            row["next_due"],
        )

    async def extend(self, tokens: Sequence[UUID], lease: timedelta) -> set[UUID]:
        """Prolong leases; the answer holds those that are lost."""
        async with self.connection() as conn:
            return set(await conn.fetchval(_EXTEND, tokens, lease))

    # settle

    async def ack_leases(self, tokens: Sequence[UUID]) -> set[UUID]:
        async with self.connection() as conn:
            return set(await conn.fetchval("select postbus.ack_leases($1)", tokens))

    async def ack(self, token: UUID, ids: Sequence[int], conn: Any = None) -> set[int]:
        """Finish messages of a lease, in the transaction of `conn` where one is given."""
        if conn is not None:
            return set(await conn.fetchval("select postbus.ack($1, $2)", token, ids))
        async with self.connection() as own:
            return set(await own.fetchval("select postbus.ack($1, $2)", token, ids))

    async def retry(
        self,
        token: UUID,
        ids: Sequence[int],
        *,
        delay: timedelta | None = None,
        error: str | None = None,
        max_attempts: int | None = None,
    ) -> dict[int, str]:
        """What became of each message: 'retried', 'dead' or 'lost'."""
        async with self.connection() as conn:
            rows = await conn.fetch(
                "select * from postbus.retry($1, $2, $3, $4, $5)",
                token,
                ids,
                delay,
                clean(error),
                max_attempts,
            )
        return {row["message_id"]: row["outcome"] for row in rows}

    async def dead_letter(self, token: UUID, ids: Sequence[int], reason: str, error: str | None) -> set[int]:
        async with self.connection() as conn:
            lost = await conn.fetchval(
                "select postbus.dead_letter($1, $2, $3, $4)", token, ids, clean(reason), clean(error)
            )
        return set(lost)

    async def release(self, token: UUID, ids: Sequence[int]) -> set[int]:
        async with self.connection() as conn:
            return set(await conn.fetchval("select postbus.release($1, $2)", token, ids))

    # groups, as their members see them

    async def subscribe(self, topic: str, group: str, start: Start, on_failure: str) -> SubscriptionInfo:
        async with self.connection() as conn:
            row = await conn.fetchrow(
                "select * from postbus.subscribe($1, $2, $3, $4, $5, $6)",
                topic,
                group,
                start.kind,
                start.timestamp,
                start.message_id,
                on_failure,
            )
        assert row is not None
        return SubscriptionInfo(row["subscription_id"], row["state"], row["lease"], row["heartbeat"], row["is_new"])

    async def read_log(
        self, topic: str, lanes: Sequence[int], cursor: str, *, max_count: int, max_bytes: int, target: str | None
    ) -> Piece:
        async with self.connection() as conn:
            rows = await conn.fetch(_READ_LOG, topic, lanes, cursor, max_count, max_bytes, target)
        return Piece(topic, rows)

    async def advance(self, steps: Sequence[Step], conn: Any = None) -> set[int]:
        """Move cursors. The answer holds the places in `steps` of lanes that are lost."""
        columns = [list(column) for column in zip(*steps, strict=True)]
        if conn is not None:
            lost = await conn.fetchval(_ADVANCE, *columns)
        else:
            async with self.connection() as own:
                lost = await own.fetchval(_ADVANCE, *columns)
        if lost is None:  # another server
            return set(range(len(steps)))
        return {place - 1 for place in lost}

    async def lease_lanes(self, worker: str, subscription_ids: Sequence[int], tokens: Sequence[UUID]) -> list[Any]:
        async with self.connection() as conn:
            return list(await conn.fetch(_LEASE_LANES, worker, subscription_ids, tokens))

    async def release_lanes(self, tokens: Sequence[UUID]) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.release_lanes($1)", tokens)

    async def leave_groups(self, worker: str, subscription_ids: Sequence[int]) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.leave_groups($1, $2)", worker, subscription_ids)

    async def hold_lane(self, token: UUID, conn: Any) -> bool:
        return bool(await conn.fetchval("select postbus.hold_lane($1)", token))

    async def calm_lane(self, token: UUID) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.calm_lane($1)", token)

    async def group_heartbeat(self, subscription_ids: Sequence[int], counts: Sequence[Sequence[Any]]) -> None:
        columns = [list(column) for column in zip(*counts, strict=True)] if counts else [[]] * 6
        async with self.connection() as conn:
            await conn.execute(
                f"select postbus.group_heartbeat($1, $2, $3, $4, $5, $6, $7), {_RELAXED}", subscription_ids, *columns
            )

    async def retrying_of(self, tokens: Sequence[UUID]) -> list[Any]:
        async with self.connection() as conn:
            return list(await conn.fetch("select * from postbus.retrying_of($1)", tokens))

    async def claim_retrying(self, topic: str, tokens: Sequence[UUID], max_count: int) -> list[Due]:
        """Messages that are due to be tried again."""
        async with self.connection() as conn:
            rows = await conn.fetch("select * from postbus.claim_retrying($1, $2)", tokens, max_count)
        return [
            Due(
                row["lane"],
                Message(
                    row["id"],
                    topic,
                    row["payload"],
                    row["content_type"],
                    row["key"],
                    NO_HEADERS if row["headers"] is None else json.loads(row["headers"]),
                    row["correlation_id"],
                    4,
                    row["attempts"],
                    row["published_at"],
                ),
                row["last_error"],
            )
            for row in rows
        ]

    async def put_off(
        self, subscription_id: int, lane: int, token: UUID, put_off: Sequence[PutOff], max_attempts: int | None
    ) -> list[str] | None:
        """Take messages out of a group's way. What became of each, or None if the lane is lost."""
        async with self.connection() as conn:
            told = await conn.fetchval(
                "select postbus.put_off($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
                subscription_id,
                lane,
                token,
                [one.kind for one in put_off],
                [one.message.id for one in put_off],
                [one.position for one in put_off],
                [one.message.published_at for one in put_off],
                [one.message.key for one in put_off],
                [one.message.correlation_id for one in put_off],
                [one.message.content_type for one in put_off],
                [json.dumps(dict(one.message.headers)) if one.message.headers else None for one in put_off],
                [one.message.payload for one in put_off],
                [one.delay for one in put_off],
                [clean(one.error) for one in put_off],
                [clean(one.reason) for one in put_off],
                max_attempts,
            )
        return None if told is None else list(told)

    async def settle_retrying(
        self,
        subscription_id: int,
        lane: int,
        token: UUID,
        ids: Sequence[int],
        outcome: str,
        *,
        delay: timedelta | None = None,
        error: str | None = None,
        reason: str | None = None,
        max_attempts: int | None = None,
        conn: Any = None,
    ) -> list[str]:
        """What became of each message: 'done', 'retried', 'dead', 'released' or 'lost'."""
        args = (subscription_id, lane, token, ids, outcome, delay, clean(error), clean(reason), max_attempts)
        sql = "select postbus.settle_retrying($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        if conn is not None:
            return list(await conn.fetchval(sql, *args))
        async with self.connection() as own:
            return list(await own.fetchval(sql, *args))

    # upkeep

    async def sweep_log(self) -> bool:
        """Keep the log going. Says whether more is to be done at once."""
        async with self.connection() as conn:
            storages = [row[0] for row in await conn.fetch("select postbus.storages()")]
            swept = [await conn.fetchrow("select * from postbus.sweep_log($1)", storage) for storage in storages]
        return any(one is not None and one["more"] for one in swept)

    async def heartbeat(self, name: str, host: str, pid: int, topics: Sequence[str]) -> None:
        async with self.connection() as conn:
            await conn.execute(_HEARTBEAT, name, host, pid, topics)

    async def sign_off(self, name: str) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.sign_off($1)", name)

    async def return_expired(self, since: datetime | None = None) -> tuple[int, datetime]:
        """How many messages came back, and the database's time."""
        async with self.connection() as conn:
            row = await conn.fetchrow(
                "select postbus.return_expired(since => coalesce($1::timestamptz, '-infinity')) as count, "
                "clock_timestamp() as looked_at",
                since,
            )
        assert row is not None
        return row["count"], row["looked_at"]

    async def sweep(self) -> dict[str, Any]:
        async with self.connection() as conn:
            return dict(await conn.fetchrow("select * from postbus.sweep()") or {})

    # topics and dead letters

    async def ensure_topic(self, name: str) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.ensure_topic($1)", name)

    async def create_topic(self, name: str, options: Mapping[str, Any]) -> None:
        await self._run("select postbus.create_topic($1, $2)", name, json.dumps(options))

    async def set_topic(self, name: str, options: Mapping[str, Any]) -> None:
        await self._run("select postbus.set_topic($1, $2)", name, json.dumps(options))

    async def pause_topic(self, name: str) -> None:
        await self._run("select postbus.pause_topic($1)", name)

    async def resume_topic(self, name: str) -> None:
        await self._run("select postbus.resume_topic($1)", name)

    async def delete_topic(self, name: str, *, force: bool) -> None:
        await self._run("select postbus.delete_topic($1, $2)", name, force)

    async def purge_topic(self, name: str, *, dry_run: bool) -> int:
        return int(await self._run("select postbus.purge_topic($1, $2)", name, dry_run))

    async def topics(self, name: str | None = None) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.topics where $1::text is null or name = $1 order by name", name)

    async def workers(self) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.workers order by name")

    async def messages(self, topic: str, *, after_id: int, limit: int, newest: bool) -> list[dict[str, Any]]:
        chosen = "select * from postbus.messages where topic = $1 and id > $2 order by id"
        if newest:
            chosen += " desc"
        return await self._rows(f"select * from ({chosen} limit $3) as chosen order by id", topic, after_id, limit)

    async def dead_letters(
        self, topic: str | None, group: str | None = None, *, limit: int, after_id: int = 0
    ) -> list[dict[str, Any]]:
        # With ties: several groups may have given up the same message, and the next page begins after its id.
        return await self._rows(
            "select * from (select * from postbus.dead_letters where ($1::text is null or topic = $1) "
            "and ($4::text is null or group_name = $4) and id > $2 order by id fetch first $3 rows with ties) as page "
            "order by id, topic, group_name",
            topic,
            after_id,
            limit,
            group,
        )

    async def dead_letters_by_id(self, message_id: int) -> list[dict[str, Any]]:
        """Several, where several groups gave the message up."""
        return await self._rows(
            "select * from postbus.dead_letters where id = $1 order by topic, group_name", message_id
        )

    async def redrive(self, topic: str, filters: Mapping[str, Any]) -> int:
        named = ", ".join(f"{name} => ${place}" for place, name in enumerate(filters, 2))
        return int(
            await self._run(f"select postbus.redrive($1{', ' if named else ''}{named})", topic, *filters.values())
        )

    # groups, as operators see them

    async def groups(self, topic: str | None, group: str | None) -> list[dict[str, Any]]:
        return await self._rows(
            "select * from postbus.groups "
            "where ($1::text is null or topic = $1) and ($2::text is null or group_name = $2) "
            "order by topic, group_name, subscription_id",
            topic,
            group,
        )

    async def members(self, topic: str, group: str) -> list[dict[str, Any]]:
        return await self._rows(
            "select * from postbus.members where topic = $1 and group_name = $2 order by name", topic, group
        )

    async def set_group_state(self, topic: str, group: str, state: str) -> None:
        await self._run("select postbus.set_group_state($1, $2, $3)", topic, group, state)

    async def seek(
        self, topic: str, group: str, start: str, start_at: datetime | None, start_id: int | None, *, dry_run: bool
    ) -> int:
        return int(
            await self._run(
                "select postbus.seek($1, $2, $3, $4, $5, $6)", topic, group, start, start_at, start_id, dry_run
            )
        )

    async def rebase(self) -> int:
        return int(await self._run("select postbus.rebase()"))

    async def log(
        self, topic: str, *, after_id: int, after: tuple[int, int] | None, limit: int, newest: bool
    ) -> list[dict[str, Any]]:
        position, index = after or (0, -1)
        order = "position desc, index desc" if newest else "position, index" if after else "id"
        return await self._rows(
            "select * from (select * from postbus.log where topic = $1 and id > $2 "
            f"and position >= $3 and (position > $3 or index > $4) order by {order} limit $5) as chosen "
            f"order by {'position, index' if newest or after else 'id'}",
            topic,
            after_id,
            position,
            index,
            limit,
        )

    async def purge_dead_letters(
        self, topic: str, *, ids: Sequence[int] | None, died_before: datetime | None, dry_run: bool
    ) -> int:
        return int(
            await self._run("select postbus.purge_dead_letters($1, $2, $3, $4)", topic, ids, died_before, dry_run)
        )

    async def _run(self, sql: str, *args: Any) -> Any:
        async with self.connection() as conn:
            return await conn.fetchval(sql, *args)

    async def _rows(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        async with self.connection() as conn:
            return [dict(row) for row in await conn.fetch(sql, *args)]


async def _no_reset(conn: Any) -> None:
    """Our statements leave nothing behind in a session, so giving one back costs no round trip."""


def _messages(topic: str, row: Any) -> list[Message]:
    return [
        Message(
            message_id,
            topic,
            payload,
            content_type,
            key,
            NO_HEADERS if headers is None else json.loads(headers),
            correlation_id,
            priority,
            attempt,
            published_at,
        )
        for message_id, payload, content_type, key, headers, correlation_id, priority, attempt, published_at in zip(
            row["ids"],
            row["payloads"],
            row["content_types"],
            row["keys"],
            row["headers"],
            row["correlation_ids"],
            row["priorities"],
            row["attempts"],
            row["published_ats"],
            strict=True,
        )
    ]


@overload
def clean(text: str) -> str: ...


@overload
def clean(text: None) -> None: ...


def clean(text: str | None) -> str | None:
    """A text that PostgreSQL can store: an error's text may hold anything."""
    if text is None:
        return None
    return text.replace("\0", "\\0").encode("utf-8", "replace").decode("utf-8")[:4000]


@asynccontextmanager
async def _committed(conn: Any) -> AsyncIterator[None]:
    """A transaction whose COMMIT no cancellation interrupts, and whose unknown outcome is told as such."""
    transaction = conn.transaction()
    await transaction.start()
    try:
        yield
    except BaseException:
        if not is_lost(conn):
            await transaction.rollback()
        raise
    await commit(transaction, conn)


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    """A connection of its own, for a moment."""
    with translated_errors(), dsn_errors():
        conn = await asyncpg.connect(dsn, timeout=10)
        try:
            yield conn
        finally:
            await conn.close()
