"""The lag of a group is the same, whether its segments are counted or the sweep's counts are used."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.fix_database import Connect
from support.log_sql import (
    advance,
    create_topic,
    pass_all,
    publish_many,
    read,
    rotate,
    subscribe,
    sweep,
    take,
)

_LANES = 2
_ONE_BY_ONE = """
    with unseen as (
        select s.sequence, s.count,
               postbus.unseen_in_segment(c.cursor, s.sequence, s.txid, s.count, s.published_at) as unseen
          from postbus.topic t
          join postbus.segment s on s.storage_id = t.storage_id and s.topic_id = t.id
          join postbus.current_cursor c on c.subscription_id = $1 and c.lane = s.lane
         where t.name = 't' and pg_visible_in_snapshot(s.txid, ($2::text::postbus.log_position).snapshot)
    ), counted as (
        select u.*, sum(u.unseen) over (order by u.sequence desc) as so_far from unseen u where u.unseen > 0
    )
    select coalesce(sum(u.unseen), 0),
           (select postbus.first_id(n.sequence) + n.count - n.unseen + (n.so_far - $3::bigint)
              from counted n where n.so_far > $3 order by n.sequence desc limit 1)
      from unseen u
"""
_BY_LEAVES = """
    select c.messages, c.from_id from postbus.topic t
     cross join lateral postbus.count_before($1, t, $2::text::postbus.log_position, $3) as c where t.name = 't'
"""
_THIN = """
    select (postbus.thin_partition(l, array[t.id], 2, clock_timestamp())).messages
      from postbus.topic t join postbus.log_partition l on l.storage_id = t.storage_id
     where t.name = 't' and l.closed_txid < $1::text::xid8 order by l.epoch limit 1
"""
_IMPORT = """
    select postbus.import_append(t, array_fill(now() - $1 * interval '1 s', array[2]), 'text/plain', '{x,y}',
                                 '{null,null}', '{null,null}', '{null,null}')
      from postbus.topic t where t.name = 't'
"""
_DEEDS = ["publish"] * 6 + ["neighbour", "open", "open", "end", "end", "import"]
_DEEDS += [
    "sweep",
    "rotate",
    "rotate",
    "thin",
    "read",
    "read",
    "read",
    "subscribe",
    "subscribe",
    "take_position",
    "take_position",
    "straddle",
]


class _World:
    """Actions on a topic of several partitions, with transactions that end late."""

    def __init__(self, conn: Any, chance: random.Random, storage: int, others: list[Any]) -> None:
        self.conn, self.chance, self.storage = conn, chance, storage
        self.idle, self.busy = others, list[tuple[Any, Any]]()
        self.groups: list[int] = []
        self.ids: list[int] = []
        self.positions: list[str] = []

    async def publish(self, conn: Any = None, topic: str = "t") -> None:
        many = self.chance.choice([1, 1, 3])
        got = await publish_many(conn or self.conn, *["x"] * many, topic=topic)
        self.ids += got if topic == "t" else []

    async def neighbour(self) -> None:
        await self.publish(topic="u")

    async def open(self) -> None:
        if self.idle:
            other = self.idle.pop()
            transaction = other.transaction()
            await transaction.start()
            await self.publish(other)
            self.busy.append((other, transaction))
        elif self.busy:
            await self.publish(self.chance.choice(self.busy)[0])

    async def end(self) -> None:
        if self.busy:
            other, transaction = self.busy.pop(self.chance.randrange(len(self.busy)))
            await (transaction.rollback() if self.chance.random() < 0.2 else transaction.commit())
            self.idle.append(other)

    async def import_(self) -> None:
        await self.conn.execute(_IMPORT, self.chance.choice([0.01, 0.1, 60]))

    async def sweep(self) -> None:
        await sweep(self.conn, self.storage)

    async def rotate(self) -> None:
        await self.publish()
        await rotate(self.conn, self.storage)
        for _ in range(self.chance.randrange(3)):
            await sweep(self.conn, self.storage)

    async def thin(self) -> None:
        ended = await self.conn.fetchval("select pg_snapshot_xmin(pg_current_snapshot())::text")
        await sweep(self.conn, self.storage)
        await self.conn.execute(_THIN, ended)

    async def read(self) -> None:
        """Let a group settle some of what is before it in a lane, or everything."""
        if not self.groups:
            return
        group = self.chance.choice(self.groups)
        if self.chance.random() < 0.2:
            await pass_all(self.conn, group)
            return
        lane = self.chance.choice(await take(self.conn, "w", group))
        result = await read(self.conn, lane.cursor, self.chance.randint(1, 6), lanes=(lane.lane,))
        if result.at and self.chance.random() < 0.5:
            assert result.during
            await advance(self.conn, [lane], result.during, 1, self.chance.choice(result.at))
        else:
            await advance(self.conn, [lane], result.next, len(result.messages))
        await self.conn.execute("select postbus.leave_groups('w', array[$1::bigint])", group)

    async def subscribe(self) -> None:
        name = f"g{len(self.groups)}"
        start = self.chance.choice(["FROM_BEGINNING", "FROM_NOW", "FROM_TIMESTAMP", "FROM_MESSAGE_ID", "scope"])
        if start == "scope":
            look_back = self.chance.choice(["0", "30 ms", "1 min"])
            sql = "select subscription_id from postbus.subscribe_scope($1, 't', look_back => $2::text::interval)"
            self.groups.append(await self.conn.fetchval(sql, name, look_back))
            return
        options: dict[str, Any] = {}
        if start == "FROM_TIMESTAMP":
            back = self.chance.choice([0.0, 0.02, 0.1, 0.5, 100])
            options["start_at"] = await self.conn.fetchval("select clock_timestamp() - $1 * interval '1 s'", back)
        elif start == "FROM_MESSAGE_ID":
            options["start_id"] = self.chance.choice(self.ids) if self.ids else 0
        self.groups.append(await subscribe(self.conn, name, start, **options))

    async def take_position(self) -> None:
        self.positions.append(await self.conn.fetchval("select postbus.take_position($1)::text", self.storage))

    async def straddle(self) -> None:
        """Take a position whose sequence is in one partition, with a snapshot from when the next one had messages."""
        position = await self.conn.fetchval("select postbus.last_sequence($1)", self.storage)
        await self.rotate()
        await self.publish()
        snapshot = "row($1, pg_current_xact_id(), pg_current_snapshot())::postbus.log_position"
        self.positions.append(await self.conn.fetchval(f"select ({snapshot})::text", position))
        if self.groups:
            moved = "select postbus.move_cursors($1, postbus.cursor_at($2::text::postbus.log_position), 'seek')"
            await self.conn.execute(moved, self.chance.choice(self.groups), self.positions[-1])

    async def check(self) -> None:
        await self.take_position()
        for group in self.groups:
            for until in [self.positions[-1], self.chance.choice(self.positions)]:
                for newest in [None, self.chance.randint(0, 12)]:
                    expected = await self.conn.fetchrow(_ONE_BY_ONE, group, until, newest)
                    assert tuple(await self.conn.fetchrow(_BY_LEAVES, group, until, newest)) == tuple(expected)


@pytest.mark.parametrize("seed", range(5))
async def test_count_by_partitions_is_the_count_of_segments(conn: Any, connect: Connect, seed: int) -> None:
    """This covers late commits, imports, cursors and starts within a partition, thinned partitions and older
    positions."""
    chance = random.Random(seed)
    tracking = chance.choice(["OFFSET_WATERMARK", "REFERENCE_COUNTING"])
    storage = await create_topic(conn, lanes=_LANES, storage=chance.choice(["shared", "own"]), tracking=tracking)
    await create_topic(conn, "u")
    world = _World(conn, chance, storage, [await connect() for _ in range(2)])
    for n in range(90):
        deed = chance.choice(_DEEDS)
        await getattr(world, "import_" if deed == "import" else deed)()
        if n % 6 == 5:
            await world.check()
