"""A log with two groups: an honest process works for one, and a consumer forges whatever it can for the other."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any
from uuid import UUID

import asyncpg

from postbus._db.migrator import migrate
from support.log_sql import Lane, ReadResult, create_topic, cursor_of, publish_many, read, subscribe, take

SECRET = UUID("00000000-0000-4000-8000-00000000cafe")
"""Of the honest process. Nobody else knows it."""
_OF_BILLING = "where subscription_id = (select id from postbus.subscription where group_name = 'billing')"
_FACTS = {
    "lanes": f"select holder, token, held_number, deaths, careful_until from postbus.lane {_OF_BILLING}",
    "cursors": f"select lane, number, cursor, passed from postbus.cursor {_OF_BILLING}",
    "deferred": "select * from postbus.deferred",
    "dead": "select * from postbus.dead_letter",
    "settled": "select * from postbus.settled_ahead",
    "leases": "select * from postbus.lease",
    "processes": "select * from postbus.worker where name <> 'evil'",
    "sweepers": "select * from postbus.sweeper",
    "sinks": "select * from postbus.sink_away",
    "working": "select * from postbus.group_worker",
    "groups": "select group_name, state, stopped_at, on_failure from postbus.subscription",
    "members": "select * from postbus.member",
    "failures": "select * from postbus.sweep_job where error is not null",
}


class Stage:
    """The database, its owner, and a user with the role of a consumer and nothing else."""

    owner: Any
    consumer: Any
    observer: Any
    billing: int
    """The group of the honest process, …"""
    theirs: list[Lane]
    """… the lanes that it holds, …"""
    claimed: Any
    """… and what it has claimed from a queue, …"""
    retried: int
    """… and a message that it tries again."""
    mine: list[Lane]
    """Lanes of another group that the consumer holds itself, rightly."""
    log: ReadResult
    other: ReadResult
    """The messages of the topic, and of another topic."""

    def __init__(self, runner: asyncio.Runner, dsn: str) -> None:
        self._runner = runner
        self._users = [f"user_{secrets.token_hex(6)}" for _ in range(2)]
        self.run(self._open(dsn))
        self.run(self._prepare())

    def run(self, act: Any) -> Any:
        return self._runner.run(act)

    async def _open(self, dsn: str) -> None:
        self.owner = await asyncpg.connect(dsn)
        await migrate(self.owner)  # which creates the roles of this database
        for user, role in zip(self._users, ("consumer", "observer"), strict=True):
            name = await self.owner.fetchval("select postbus.role_name($1)", role)
            await self.owner.execute(f"create role {user} login in role {name}")
        self.consumer, self.observer = [await asyncpg.connect(dsn, user=user) for user in self._users]

    async def _prepare(self) -> None:
        for topic in ("t", "elsewhere"):
            await create_topic(self.owner, topic, lanes=2)
        self.billing = await subscribe(self.owner, "billing")
        evil = await subscribe(self.consumer, "evil")
        await subscribe(self.consumer, "evil", topic="elsewhere")
        for topic in ("t", "elsewhere"):
            for key in "abcdef":
                await publish_many(
                    self.owner, f"{key} of {topic}", f"more {key} of {topic}", topic=topic, keys=[key] * 2
                )
        await self.owner.execute("select postbus.heartbeat('honest', 'host', 1, '{t}', $1)", SECRET)
        await self.owner.execute("select postbus.note_sweeper('serve', 'host', 1, $1)", SECRET)
        await self.owner.execute(
            "select postbus.note_sink_away('t', 'billing', 'relay', 'nats://host', 'no', $1)", SECRET
        )
        rows = await self.owner.fetch(
            "select * from postbus.lease_lanes('honest', array[$1::bigint], '{}', secret => $2)", self.billing, SECRET
        )
        self.theirs = [
            Lane(self.billing, row["lane"], row["token"], row["number"], row["cursor"])
            for row in rows
            if row["action"] == "take"
        ]
        self.mine = await take(self.consumer, "evil", evil)
        cursor = await cursor_of(self.owner, evil)
        self.log = await read(self.owner, cursor, lanes=(0, 1))
        self.other = await read(self.owner, cursor, topic="elsewhere", lanes=(0, 1))
        await self.owner.execute("select postbus.publish('q', 'x'::text) from generate_series(1, 2)")
        self.claimed = await self.owner.fetchrow("select * from postbus.claim('q', 'honest', 2)")
        lane = self.theirs[0]
        [self.retried, *_] = self.ids_in(lane.lane)
        await self.owner.execute(
            "select postbus.defer($1, $2, $3, '{retry}', array[$4::bigint], array[$5::bigint], '{0}', '{no}', "
            "'{null}')",
            lane.subscription, lane.lane, lane.token, self.retried, self.sequence_of(self.retried),
        )  # fmt: skip
        await self.owner.execute("select postbus.claim_deferred(array[$1::uuid], 1)", lane.token)

    def ids_in(self, lane: int, *, topic: str = "t") -> list[int]:
        """Return the ids of a lane's messages."""
        segments = (self.log if topic == "t" else self.other).segments
        return [
            (row["sequence"] & (1 << 43) - 1) * 1024 + index
            for row in segments
            if row["lane"] == lane
            for index in range(row["count"])
        ]

    def sequence_of(self, id: int) -> int:
        """Return the position of the segment that has a message."""
        positions: list[int] = [row["sequence"] for row in (*self.log.segments, *self.other.segments)]
        return next(one for one in positions if one & (1 << 43) - 1 == id >> 10)

    def facts(self) -> dict[str, Any]:
        """Return the facts that a consumer must not change."""
        facts = ", ".join(
            f'(select array_agg(one::text order by one::text) from ({sql}) as one) as "{name}"'
            for name, sql in _FACTS.items()
        )
        return dict(self.run(self.owner.fetchrow(f"select {facts}")))

    def attack(self, sql: str, *args: Any) -> Any:
        """Return what the consumer gets; an error of PostgreSQL if it is refused."""
        try:
            return self.run(self.consumer.fetchval(sql, *args))
        except asyncpg.PostgresError as error:
            return error

    def close(self) -> None:
        async def close() -> None:
            await self.consumer.close()
            await self.observer.close()
            for user in self._users:
                await self.owner.execute(f"drop owned by {user} cascade; drop role {user}")
            await self.owner.close()

        self.run(close())
