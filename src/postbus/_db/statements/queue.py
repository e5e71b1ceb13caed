"""Statements for queues and pops: publishing, claiming, settling."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from postbus._content.segment import NO_HEADERS
from postbus._db.commit import committed, fetch_marked
from postbus._db.database import RELAXED, Database
from postbus._db.statements import settlements
from postbus._drivers.base import translate_from
from postbus._drivers.known import driver_of
from postbus._drivers.statement import Published, Statement, published
from postbus.message import Message
from postbus.scope import Scope

# The time of the server alone: the wait for a connection says nothing about the search.
_TOOK = "pg_catalog.clock_timestamp() operator(pg_catalog.-) pg_catalog.statement_timestamp() as took"
_REMAINING = "ends_at operator(pg_catalog.-) pg_catalog.clock_timestamp() as remaining"
# If a crash undoes a claim or an extension, that is harmless: the message is claimed again.
_CLAIM = (
    f"select c.*, c.{_REMAINING}, {_TOOK}, {RELAXED} "
    "from postbus.claim($1, $2, $3, $4, $5, $6, with_suspects => false) as c"
)
_CLAIM_SUSPECTS = f"select c.*, c.{_REMAINING}, {RELAXED} from postbus.claim_suspects($1, $2, $3, $4, $5) as c"
_EXTEND = f"select postbus.extend($1, $2), {RELAXED}"
_POP_AND_LEASE = f"select p.*, p.{_REMAINING}, {_TOOK}, {RELAXED} from postbus.{{}} as p"
# If a crash undid this, the message would be delivered twice: its commit waits for the disk.
_POP_AND_ACK = f"select p.*, p.{_REMAINING}, {_TOOK} from postbus.{{}} as p"
_FROM_TOPIC = "pop($1, $2, $3, $4, $5, $6, $7, $8)"
_FROM_SCOPE = "pop_scope($1, $2, $3, $4, $5, $6, $7, $8)"
# A transaction that only notifies writes nothing, so its commit does not wait for the disk.
NOTIFY = "select pg_catalog.pg_notify('postbus', topic::pg_catalog.text) from pg_catalog.unnest($1::bigint[]) as topic"


class Claim(msgspec.Struct, frozen=True):
    """The result of a claim."""

    token: UUID | None
    """None if there were no messages."""
    messages: list[Message]
    length: timedelta
    """The length of the lease."""
    remaining: timedelta
    """The part of it that is left: the claim may have taken long."""
    floor: str | None
    ordered: bool
    more: bool
    """A limit ended the search, so another one may find more."""
    next_due: timedelta | None
    moved: bool = False
    """The topic is PUB_SUB by now, and these are the rest of its queue."""
    took: float = 0.0
    """Seconds that the server searched."""
    outlasted: int = 0
    """For suspects: the number of times that they had a process to themselves for a while and did not end."""


class PulledLease(NamedTuple):
    """The messages of one topic that a pop took, and their lease."""

    topic: str
    token: UUID | None
    """None if the messages are acked already."""
    ends_at: datetime | None
    length: timedelta | None
    remaining: timedelta | None
    """The part of the lease that is left."""
    messages: list[Message]


class Pulled(NamedTuple):
    """The result of one poll of a pop."""

    leases: list[PulledLease]
    more: bool
    """A limit ended the search, so another one may find more."""
    next_due: timedelta | None
    floor: str | None
    took: float = 0.0
    """Seconds that the server searched."""


class QueueStore(Database):
    """Runs statements for queues and pops."""

    # publish

    async def publish_batches(self, batches: Sequence[Statement]) -> list[Published]:
        """Run several publishing statements in one durable transaction."""
        async with self.connection(repeatable=False) as conn, committed(conn):
            return [published(await conn.fetchval(sql, *args)) for sql, args in batches]

    async def notify(self, topic_ids: Sequence[int]) -> None:
        """Wake the consumers of topics by one NOTIFY."""
        async with self.connection() as conn:
            await conn.execute(NOTIFY, topic_ids)

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
        messages = [] if row["token"] is None else messages_of(topic, row, self.source)
        return Claim(
            row["token"],
            messages,
            row["lease_length"] or timedelta(0),
            row["remaining"] or timedelta(0),
            row["next_scan_floor"],
            row["ordered"],
            row["more"],
            row["next_due"],
            bool(row["moved"]),
            row["took"].total_seconds(),
        )

    async def suspected(self, topics: Sequence[str]) -> list[str]:
        """Those of the topics that have suspects: messages to be tried apart from others."""
        return list(await self._run("select postbus.suspected($1)", topics))

    async def claim_suspects(
        self, topic: str, *, member: str, max_count: int, lease: timedelta | None = None, is_alone: bool
    ) -> Claim | None:
        """Claim suspects. is_alone: the caller handles nothing else until they are settled."""
        async with self.connection() as conn:
            row = await conn.fetchrow(_CLAIM_SUSPECTS, topic, member, max_count, lease, is_alone or None)
        if row is None or row["token"] is None:
            return None
        return Claim(
            row["token"],
            messages_of(topic, row, self.source),
            row["lease_length"],
            row["remaining"],
            None,
            row["ordered"],
            more=True,
            next_due=None,
            outlasted=row["outlasted"] or 0,
        )

    async def not_alone(self, token: UUID) -> None:
        """Note that suspects run beside others from now on: they are charged nothing if the process ends."""
        await self._run("select postbus.not_alone($1)", token)

    async def pop(
        self,
        topic: str,
        *,
        group: str | None,
        member: str,
        max_count: int,
        lease: timedelta | None,
        key: str | None,
        auto_ack: bool,
        floor: str | None,
    ) -> Pulled:
        """Take messages of a queue, or of a topic for a group."""
        asked = topic, group, member, max_count, lease, key, auto_ack, floor
        return await self._pop(_FROM_TOPIC, asked, auto_ack=auto_ack)

    async def pop_scope(
        self, scope: Scope, *, group: str, member: str, max_count: int, lease: timedelta | None, auto_ack: bool
    ) -> Pulled:
        """Take messages for a group from the topics in a scope."""
        asked = group, scope.namespace, scope.task, scope.pattern, member, max_count, lease, auto_ack
        return await self._pop(_FROM_SCOPE, asked, auto_ack=auto_ack)

    async def _pop(self, source: str, asked: Sequence[Any], *, auto_ack: bool) -> Pulled:
        sql = _POP_AND_ACK if auto_ack else _POP_AND_LEASE
        async with self.connection() as conn:
            *rows, last = await conn.fetch(sql.format(source), *asked)
        leases = [
            PulledLease(
                row["topic"],
                row["token"],
                row["ends_at"],
                row["lease_length"],
                row["remaining"],
                messages_of(row["topic"], row, self.source),
            )
            for row in rows
        ]
        return Pulled(
            leases, bool(last["more"]), last["next_due"], last["next_scan_floor"], last["took"].total_seconds()
        )

    async def extend(self, tokens: Sequence[UUID], lease: timedelta) -> set[UUID]:
        """Extend leases. Returns those that are lost."""
        async with self.connection() as conn:
            return set(await conn.fetchval(_EXTEND, tokens, lease))

    async def lease_owners(self, tokens: Sequence[UUID]) -> set[tuple[str, str | None]]:
        """The topics and groups of leases; the group is None for leases of a queue."""
        rows = await self._rows("select topic, group_name from postbus.lease_owners($1)", tokens)
        return {(row["topic"], row["group_name"]) for row in rows}

    # settle

    async def ack_leases(self, tokens: Sequence[UUID]) -> set[UUID]:
        async with self.connection() as conn:
            return set(await conn.fetchval("select postbus.ack_leases($1)", tokens))

    async def settle(self, statement: Statement, conn: Any = None) -> Any:
        """Run a settlement, in the transaction of `conn` if there is one, of any driver. Returns its value."""
        if conn is None:
            async with self.connection() as own:
                return await own.fetchval(statement.sql, *statement.args)
        driver = driver_of(conn)
        try:
            answer = driver.run(conn, *statement)
            return await answer if driver.is_async else answer
        except Exception as error:
            raise translate_from(error) from error.__cause__

    async def ack(self, token: UUID, ids: Sequence[int], conn: Any = None) -> set[int]:
        """Acknowledge messages of a lease. Returns those that are lost."""
        return settlements.lost(await self.settle(settlements.ack(token, ids), conn))

    async def ack_within(self, token: UUID, ids: Sequence[int], conn: Any, mark: str) -> set[int]:
        """Acknowledge messages in the transaction with this mark, which a handler had. Returns those that are lost."""
        sql, args = settlements.ack(token, ids)
        return settlements.lost(await fetch_marked(conn, mark, sql, *args))

    async def retry(
        self,
        token: UUID,
        ids: Sequence[int],
        *,
        delay: timedelta | None = None,
        error: str | None = None,
        max_attempts: int | None = None,
    ) -> dict[int, str]:
        """Try messages again. Returns the outcome of each: 'retried', 'dead' or 'lost'."""
        statement = settlements.retry(token, ids, delay=delay, error=error, max_attempts=max_attempts)
        return settlements.outcomes(await self.settle(statement))

    async def dead_letter(self, token: UUID, ids: Sequence[int], reason: str, error: str | None) -> set[int]:
        statement = settlements.dead_letter(token, ids, reason=reason, error=error)
        return settlements.lost(await self.settle(statement))

    async def release(self, token: UUID, ids: Sequence[int]) -> set[int]:
        return settlements.lost(await self.settle(settlements.release(token, ids)))


def messages_of(topic: str, row: Any, source: str) -> list[Message]:
    """Make messages from a row with a list for each column."""
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
            source,
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
