"""Statements for groups: joining, reading the log, moving cursors, putting off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from postbus._content.segment import NO_HEADERS, Part, ReadResult
from postbus._db.commit import fetch_marked
from postbus._db.connect import SECRET
from postbus._db.database import RELAXED, Database, clean
from postbus._db.error_map import may_have_crashed
from postbus.catch_up import CatchUp
from postbus.errors import DatabaseUnavailable
from postbus.message import Message
from postbus.start import Start

# A server that crashed hands out transaction ids again that nothing durable had: places that were read, but not
# stored, mean nothing then. Two signs tell of it, and each sees what the other cannot. The start time, looked at by
# every statement that goes by such a place, is certain, also for those who saw no connection break. But it stays
# the same when a backend crashed and the postmaster started the others anew. So statements look at when the server's
# statistics began, too: these do not survive a crash. Before PostgreSQL 15 they are in a file, which is slow to read;
# there, unless a pooler keeps breaks from us, a process that sees a connection break drops what was read: the listener,
# and readers (`may_have_crashed`) while the listener is not there.
_SERVER = "pg_catalog.pg_postmaster_start_time()"
SERVER_SINCE_CRASH = f"greatest({_SERVER}, pg_catalog.pg_stat_get_bgwriter_stat_reset_time())"
_READ_LOG = (
    f"select r.*, case when r.position is null then {_SERVER} end as server, "
    "case when r.position is null "
    "then pg_catalog.clock_timestamp() operator(pg_catalog.-) pg_catalog.statement_timestamp() end as took, "
    f"case when r.position is null then {RELAXED} end "
    "from postbus.read_log($1, $2, $3, $4, $5, $6, true) as r"
)
_ADVANCE = f"select postbus.advance($1, $2, $3, $4, $5, $6, $7, $8) where {_SERVER} operator(pg_catalog.=) all ($9)"
_NOTE_DONE = f"select postbus.note_done($1, $2, $3, $4, $5) where {_SERVER} operator(pg_catalog.=) $6"
_LEASE_LANES = f"select l.*, {_SERVER} as server from postbus.lease_lanes($1, $2, $3, secret => $4) as l"


class SubscriptionInfo(NamedTuple):
    """A group's subscription, as far as its members need to know."""

    id: int
    state: str
    lease: timedelta
    heartbeat: timedelta
    is_new: bool
    missed: int | None
    """Messages that it had before it when it came back from the dead, or began with history."""
    skipped: int | None
    """Of these, beyond the bounds of its catch-up."""
    was_dead: bool


class Resurrected(NamedTuple):
    """A group that was DEAD and lives again."""

    subscription_id: int
    missed: int
    skipped: int


class Step(NamedTuple):
    """A cursor to be moved."""

    subscription_id: int
    lane: int
    token: UUID
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
    """retry, park, release, suspect or dead."""
    message_id: int
    position: int
    delay: timedelta | None = None
    error: str | None = None
    reason: str | None = None


class Due(NamedTuple):
    """A message to be tried again by a group. Its attempt is counted already."""

    lane: int
    message: Message
    is_taken: bool
    """It is in hand now. If not, it is to be tried alone, and has to be asked for."""
    outlasted: int
    """How often it had a process to itself for a while, and did not end."""


class LogStore(Database):
    """What the way of a message to groups asks of the database."""

    # joining, and lanes

    async def subscribe(
        self, topic: str, group: str, start: Start, on_failure: str, catch_up: CatchUp | None = None
    ) -> SubscriptionInfo:
        async with self.acting(repeatable=True) as conn:
            row = await conn.fetchrow(
                "select * from postbus.subscribe($1, $2, $3, $4, $5, $6, $7)",
                topic,
                group,
                start.kind,
                start.timestamp,
                start.message_id,
                on_failure,
                (catch_up or CatchUp()).as_json(),
            )
        assert row is not None
        return SubscriptionInfo(
            row["subscription_id"],
            row["state"],
            row["lease"],
            row["heartbeat"],
            row["is_new"],
            row["missed"],
            row["skipped"],
            was_dead=row["missed"] is not None and not row["is_new"],
        )

    async def resurrect(self, subscription_ids: Sequence[int]) -> list[Resurrected]:
        """Bring groups that are DEAD back; those that somebody else is bringing back are left to that.

        By a heartbeat, which consumers may send: `resurrect` is for administrators.
        """
        sql = (
            "select subscription_id, missed, skipped "
            "from postbus.group_heartbeat($1, '{}', '{}', '{}', '{}', '{}', '{}', '{}')"
        )
        async with self.connection() as conn:
            rows = await conn.fetch(sql, subscription_ids)
        return [Resurrected(row["subscription_id"], row["missed"], row["skipped"]) for row in rows]

    async def report_catch_up(self, token: UUID, allowed_rate: float | None, p95: float | None) -> None:
        async with self.connection() as conn:
            await conn.execute(
                "select postbus.report_catch_up($1, $2, pg_catalog.make_interval(secs => $3))", token, allowed_rate, p95
            )

    async def lease_lanes(self, worker: str, subscription_ids: Sequence[int], tokens: Sequence[UUID]) -> list[Any]:
        async with self.connection() as conn:
            return list(await conn.fetch(self._of_server(_LEASE_LANES), worker, subscription_ids, tokens, SECRET))

    async def release_lanes(self, tokens: Sequence[UUID]) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.release_lanes($1)", tokens)

    async def leave_groups(self, worker: str, subscription_ids: Sequence[int], *, is_stop: bool = False) -> None:
        async with self.connection() as conn:
            sql = "select postbus.leave_groups($1, $2, $3, secret => $4)"
            await conn.execute(sql, worker, subscription_ids, is_stop, SECRET)

    async def hold_lane(self, token: UUID, conn: Any) -> bool:
        return bool(await conn.fetchval("select postbus.hold_lane($1)", token))

    async def are_held(self, tokens: Sequence[UUID]) -> bool:
        """Whether all of these lanes are still the caller's."""
        return bool(
            await self._run(
                "select bool_and(postbus.hold_lane(token)) from unnest($1::uuid[]) as token",
                tokens,
            )
        )

    async def calm_lane(self, token: UUID) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.calm_lane($1)", token)

    # reading and advancing

    async def read_log(
        self, topic: str, lanes: Sequence[int], cursor: str, *, max_count: int, max_bytes: int, target: str | None
    ) -> ReadResult:
        async with self.connection() as conn:
            rows = await conn.fetch(self._of_server(_READ_LOG), topic, lanes, cursor, max_count, max_bytes, target)
        return ReadResult(topic, rows, self.source)

    async def advance(self, steps: Sequence[Step], conn: Any = None, mark: str | None = None) -> set[int]:
        """Move cursors. The answer holds the places in `steps` of lanes that are lost.

        In the transaction of `conn` and of that mark, where they are given.
        """
        columns = [list(column) for column in zip(*steps, strict=True)]
        if conn is not None:
            lost = await fetch_marked(conn, mark, self._of_server(_ADVANCE), *columns)
        else:
            async with self.connection() as own:
                lost = await own.fetchval(self._of_server(_ADVANCE), *columns)
        if lost is None:  # another server
            return set(range(len(steps)))
        return {place - 1 for place in lost}

    def _of_server(self, sql: str) -> str:
        return sql.replace(_SERVER, SERVER_SINCE_CRASH) if self.tells_crashes else sql

    def is_in_doubt(self, error: DatabaseUnavailable) -> bool:
        """Whether the server may have crashed, and statements that go by a place from before would not notice it."""
        return not self.tells_crashes and may_have_crashed(error)

    async def server(self) -> datetime:
        """Since when the server has been running without a crash, as places have it."""
        since: datetime = await self._run(self._of_server(f"select {_SERVER}"))
        return since

    # messages out of the way

    async def put_off(
        self, subscription_id: int, lane: int, token: UUID, put_off: Sequence[PutOff], max_attempts: int | None
    ) -> list[str] | None:
        """Take messages out of a group's way. What became of each, or None if the lane is lost."""
        async with self.connection() as conn:
            told = await conn.fetchval(
                "select postbus.put_off($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                subscription_id,
                lane,
                token,
                [one.kind for one in put_off],
                [one.message_id for one in put_off],
                [one.position for one in put_off],
                [one.delay for one in put_off],
                [clean(one.error) for one in put_off],
                [clean(one.reason) for one in put_off],
                max_attempts,
            )
        return None if told is None else list(told)

    async def note_done(self, tokens: Sequence[UUID], parts: Sequence[Part], server: datetime) -> None:
        """Remember what is done in lanes although their cursors are not past it: parts of segments of a server."""
        lanes, positions, starts, stops = [], [], [], []
        for segment, start, stop in parts:
            lanes.append(segment.lane)
            positions.append(segment.position)
            starts.append(start)
            stops.append(stop)
        async with self.connection() as conn:
            await conn.execute(self._of_server(_NOTE_DONE), tokens, lanes, positions, starts, stops, server)

    async def retrying_of(self, tokens: Sequence[UUID], *, with_settled: bool = True) -> list[Any]:
        async with self.connection() as conn:
            return list(await conn.fetch("select * from postbus.retrying_of($1, $2)", tokens, with_settled))

    async def prolong_retrying(self, tokens: Sequence[UUID], ids: Sequence[int]) -> None:
        """Prolong the leases of messages of these lanes that are being tried again."""
        async with self.connection() as conn:
            await conn.execute("select postbus.prolong_retrying($1, $2)", tokens, ids)

    async def claim_retrying(
        self, topic: str, tokens: Sequence[UUID], max_count: int, *, is_alone: bool | None = False
    ) -> list[Due]:
        """Messages that are due to be tried again; is_alone: of those to be tried while nothing else runs.

        None: of those, although something runs.
        """
        sql = "select * from postbus.claim_retrying($1, $2, is_alone => $3)"
        async with self.connection() as conn:
            rows = await conn.fetch(sql, tokens, max_count, is_alone)
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
                    self.source,
                ),
                row["alone"] is not None,
                row["outlasted"] or 0,
            )
            for row in rows
        ]

    async def not_alone_any_more(self, token: UUID, message_id: int) -> None:
        """A message that was claimed to be tried alone goes on beside others: see `not_alone`."""
        await self._run("select postbus.not_alone($1, $2)", token, message_id)

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
        mark: str | None = None,
    ) -> list[str]:
        """What became of each message: 'done', 'retried', 'dead', 'released' or 'lost'."""
        args = (subscription_id, lane, token, ids, outcome, delay, clean(error), clean(reason), max_attempts)
        sql = "select postbus.settle_retrying($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        if conn is not None:
            return list(await fetch_marked(conn, mark, sql, *args))
        async with self.connection() as own:
            return list(await own.fetchval(sql, *args))
