"""Statements for groups: subscribing, leasing lanes, reading the log, moving cursors, deferring messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from postbus._content.segment import NO_HEADERS, Part, ReadResult
from postbus._db.commit import fetch_marked
from postbus._db.database import RELAXED, Database, clean
from postbus._db.error_map import may_have_crashed
from postbus._db.process import SECRET
from postbus.catch_up import CatchUp
from postbus.errors import DatabaseUnavailable
from postbus.message import DEFAULT_PRIORITY, Message
from postbus.options import OnFailure
from postbus.results.groups import GroupState
from postbus.start import Start

# After a crash the server gives out transaction ids again that nothing durable had. So positions that were read but not
# stored are not valid then. Two signs reveal a crash. Every statement that uses such a position compares the start time
# of the server, which is reliable even if no connection broke. But the start time stays the same when one backend
# crashed and the postmaster restarted the others. So statements also compare the time since when the server has
# statistics, which do not survive a crash. Before PostgreSQL 15 these are in a file, which is slow to read. There, a
# process drops what it has read when it sees a connection break: the listener does or, while it is not connected, the
# readers (`may_have_crashed`). Behind a pooler, which hides breaks, the statistics are compared on all versions.
_SERVER = "pg_catalog.pg_postmaster_start_time()"
SERVER_SINCE_CRASH = f"greatest({_SERVER}, pg_catalog.pg_stat_get_bgwriter_stat_reset_time())"
_READ_LOG = (
    f"select r.*, case when r.sequence is null then {_SERVER} end as server, "
    "case when r.sequence is null "
    "then pg_catalog.clock_timestamp() operator(pg_catalog.-) pg_catalog.statement_timestamp() end as took, "
    f"case when r.sequence is null then {RELAXED} end "
    "from postbus.read_log($1, $2, $3, $4, $5, $6, true) as r"
)
_ADVANCE = f"select postbus.advance($1, $2, $3, $4, $5, $6, $7, $8) where {_SERVER} operator(pg_catalog.=) all ($9)"
_NOTE_DONE = f"select postbus.note_done($1, $2, $3, $4, $5) where {_SERVER} operator(pg_catalog.=) $6"
_LEASE_LANES = f"select l.*, {_SERVER} as server from postbus.lease_lanes($1, $2, $3, secret => $4) as l"


class SubscriptionInfo(NamedTuple):
    """A group's subscription to one topic, as its members need it."""

    id: int
    state: GroupState
    lease: timedelta
    heartbeat: timedelta
    is_new: bool
    missed: int | None
    """The number of messages that it has to catch up with, after it was DEAD or if it begins with history."""
    skipped: int | None
    """The number of these that the bounds of its catch-up skip."""
    was_dead: bool


class ResurrectedGroup(NamedTuple):
    """A group that was DEAD and is alive again."""

    subscription_id: int
    missed: int
    skipped: int


class CursorStep(NamedTuple):
    """A move of a group's cursor in one lane."""

    subscription_id: int
    lane: int
    token: UUID
    number: int
    cursor: str
    done_sequence: int | None
    done_index: int | None
    passed: int
    server: datetime
    """The start of the server on which the cursor is valid."""


class ToDefer(NamedTuple):
    """A message to be deferred, so that its group's cursor can pass it."""

    kind: str
    """retry, park, release, suspect or dead."""
    message_id: int
    sequence: int
    delay: timedelta | None = None
    error: str | None = None
    reason: str | None = None


class Due(NamedTuple):
    """A deferred message that is due for redelivery. Its attempt is counted already."""

    lane: int
    message: Message
    is_taken: bool
    """Whether it is leased now. If not, it is to be tried alone, and must be claimed for that."""
    outlasted: int
    """The number of times that it had a process to itself for a while and did not end."""


class LogStore(Database):
    """Runs statements for groups."""

    # joining, and lanes

    async def subscribe(
        self, topic: str, group: str, start: Start, on_failure: OnFailure, catch_up: CatchUp | None = None
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

    async def resurrect(self, subscription_ids: Sequence[int]) -> list[ResurrectedGroup]:
        """Revive DEAD groups, except those that another process is reviving.

        This sends a heartbeat, because consumers may not call `resurrect`.
        """
        sql = (
            "select subscription_id, missed, skipped "
            "from postbus.group_heartbeat($1, '{}', '{}', '{}', '{}', '{}', '{}', '{}')"
        )
        async with self.connection() as conn:
            rows = await conn.fetch(sql, subscription_ids)
        return [ResurrectedGroup(row["subscription_id"], row["missed"], row["skipped"]) for row in rows]

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
        """Whether the caller still holds all of these lanes."""
        return bool(
            await self._run(
                "select bool_and(postbus.hold_lane(token)) from unnest($1::uuid[]) as token",
                tokens,
            )
        )

    async def clear_caution(self, token: UUID) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.clear_caution($1)", token)

    # reading and advancing

    async def read_log(
        self, topic: str, lanes: Sequence[int], cursor: str, *, max_count: int, max_bytes: int, target: str | None
    ) -> ReadResult:
        async with self.connection() as conn:
            rows = await conn.fetch(self._of_server(_READ_LOG), topic, lanes, cursor, max_count, max_bytes, target)
        return ReadResult(topic, rows, self.source)

    async def advance(self, steps: Sequence[CursorStep], conn: Any = None, mark: str | None = None) -> set[int]:
        """Move cursors. Returns the indexes of the steps whose lanes are lost.

        With `conn` and `mark`, this happens in the transaction of that connection with that mark.
        """
        columns = [list(column) for column in zip(*steps, strict=True)]
        if conn is not None:
            lost = await fetch_marked(conn, mark, self._of_server(_ADVANCE), *columns)
        else:
            async with self.connection() as own:
                lost = await own.fetchval(self._of_server(_ADVANCE), *columns)
        if lost is None:  # the server has started anew
            return set(range(len(steps)))
        return {number - 1 for number in lost}

    def _of_server(self, sql: str) -> str:
        return sql.replace(_SERVER, SERVER_SINCE_CRASH) if self.tells_crashes else sql

    def is_in_doubt(self, error: DatabaseUnavailable) -> bool:
        """Whether the server may have crashed without statements that use an earlier position noticing it."""
        return not self.tells_crashes and may_have_crashed(error)

    async def server(self) -> datetime:
        """The time since when the server has run without a crash."""
        since: datetime = await self._run(self._of_server(f"select {_SERVER}"))
        return since

    # deferred messages

    async def defer(
        self, subscription_id: int, lane: int, token: UUID, messages: Sequence[ToDefer], max_attempts: int | None
    ) -> list[str] | None:
        """Defer messages of a lane. Returns the outcome of each, or None if the lane is lost."""
        async with self.connection() as conn:
            outcomes = await conn.fetchval(
                "select postbus.defer($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                subscription_id,
                lane,
                token,
                [one.kind for one in messages],
                [one.message_id for one in messages],
                [one.sequence for one in messages],
                [one.delay for one in messages],
                [clean(one.error) for one in messages],
                [clean(one.reason) for one in messages],
                max_attempts,
            )
        return None if outcomes is None else list(outcomes)

    async def note_done(self, tokens: Sequence[UUID], parts: Sequence[Part], server: datetime) -> None:
        """Note parts of segments that are done although the cursors of their lanes have not passed them."""
        lanes, sequences, starts, stops = [], [], [], []
        for segment, start, stop in parts:
            lanes.append(segment.lane)
            sequences.append(segment.sequence)
            starts.append(start)
            stops.append(stop)
        async with self.connection() as conn:
            await conn.execute(self._of_server(_NOTE_DONE), tokens, lanes, sequences, starts, stops, server)

    async def deferred_of(self, tokens: Sequence[UUID], *, with_settled: bool = True) -> list[Any]:
        async with self.connection() as conn:
            return list(await conn.fetch("select * from postbus.deferred_of($1, $2)", tokens, with_settled))

    async def extend_deferred(self, tokens: Sequence[UUID], ids: Sequence[int]) -> None:
        """Extend the leases of redelivered messages of these lanes."""
        async with self.connection() as conn:
            await conn.execute("select postbus.extend_deferred($1, $2)", tokens, ids)

    async def claim_deferred(
        self, topic: str, tokens: Sequence[UUID], max_count: int, *, is_alone: bool | None = False
    ) -> list[Due]:
        """Claim deferred messages that are due.

        is_alone: claim those that must be tried while nothing else runs; None: claim those although something runs.
        """
        sql = "select * from postbus.claim_deferred($1, $2, is_alone => $3)"
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
                    DEFAULT_PRIORITY,
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
        """Note that a message that was claimed to be tried alone runs beside others from now on: see `not_alone`."""
        await self._run("select postbus.not_alone($1, $2)", token, message_id)

    async def settle_deferred(
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
        """Settle redelivered messages. Returns the outcome of each: 'done', 'retried', 'dead', 'released' or 'lost'."""
        args = (subscription_id, lane, token, ids, outcome, delay, clean(error), clean(reason), max_attempts)
        sql = "select postbus.settle_deferred($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        if conn is not None:
            return list(await fetch_marked(conn, mark, sql, *args))
        async with self.connection() as own:
            return list(await own.fetchval(sql, *args))
