"""Retention per topic: what is stored at any moment follows from each topic's own options and groups."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from support.eventually import eventually
from support.log_sql import create_topic, pass_all, subscribe
from support.queue_sql import publish

_MINUTE = timedelta(minutes=1)
_NEVER = "900 days"
_MOMENTS = 50
_DEEDS = ["publish"] * 5 + ["close"] * 3 + ["read"] * 3 + ["die"] * 2 + ["set", "resume", "pause", "cancel"]


@dataclass
class _Group:
    id: int
    unread: set[int] = field(default_factory=set)
    state: str = "ACTIVE"
    died_at: datetime | None = None


@dataclass
class _Topic:
    """The messages that a topic must keep, by its options and groups."""

    name: str
    options: dict[str, int]
    groups: dict[str, _Group]
    there: dict[int, int] = field(default_factory=dict)  # the partition of each message

    def keeps_for(self, group: _Group, now: datetime) -> bool:
        if group.state == "DEAD":
            assert group.died_at is not None
            return group.died_at > now - self.options["dead_retention"] * _MINUTE
        return group.state != "CANCELLED"

    def keeps(self, id: int, closed_at: datetime | None, now: datetime) -> bool:
        if closed_at is None:
            return True
        if closed_at <= now - self.options["max_retention"] * _MINUTE:
            return False
        keeping = [group for group in self.groups.values() if self.keeps_for(group, now)]
        kept_for = self.options["retention" if keeping else "zero_subscription_retention"]
        return closed_at > now - kept_for * _MINUTE or any(self._is_before(group, id) for group in keeping)

    def _is_before(self, group: _Group, id: int) -> bool:
        """Return whether a group has a message of the same partition before it: a topic's part of it is removed as
        a whole."""
        return any(self.there[one] == self.there[id] for one in group.unread if one in self.there)


class _World:
    """Two topics in one storage, and a clock that the test moves."""

    def __init__(self, conn: Any, choose: random.Random) -> None:
        self.conn = conn
        self.choose = choose
        self.topics: list[_Topic] = []
        self.later = timedelta(0)
        self.storage = 0
        self.thinned = self.dropped = 0
        self._partitions: dict[int, datetime | None] = {}

    async def begin(self) -> None:
        for name in ("a", "b"):
            options = self._options()
            given = {option: f"{minutes} min" for option, minutes in options.items()}
            first = {"retention": "30 min", "zero_subscription_retention": "30 min"}  # so that both share a storage
            self.storage = await create_topic(
                self.conn, name, **first, heartbeat_timeout=_NEVER, zombie_time=_NEVER, tracking="OFFSET_WATERMARK"
            )
            await self.conn.execute("select postbus.set_topic($1, $2)", name, json.dumps(given))
            groups = {group: _Group(await subscribe(self.conn, group, topic=name)) for group in ("quick", "paused")}
            self.topics.append(_Topic(name, options, groups))
            await self._set_state(self.topics[-1], "paused", "PAUSED")
        assert await self.conn.fetchval("select count(distinct storage_id) from postbus.topic where name <> ''") == 1

    def _options(self) -> dict[str, int]:
        """Return a duration, from minutes to days: far beyond what the storage was made for."""
        retention, zero, dead = (self.choose.choice([0, 5, 30, 200, 3000]) for _ in range(3))
        most = max(retention, zero) + self.choose.choice([0, 20, 2000])
        return {
            "retention": retention,
            "zero_subscription_retention": zero,
            "max_retention": most,
            "dead_retention": dead,
        }

    async def act(self) -> None:
        topic = self.choose.choice(self.topics)
        deed = self.choose.choice(_DEEDS)
        if deed == "publish":
            await self._publish(topic)
        elif deed == "close":
            await self._close()
        elif deed == "read":
            await self._read(topic)
        elif deed == "set":
            topic.options = self._options()
            given = {option: f"{minutes} min" for option, minutes in topic.options.items()}
            await self.conn.execute("select postbus.set_topic($1, $2)", topic.name, json.dumps(given))
        elif deed == "die":
            await self._die(self.choose.choice(list(topic.groups.values())))
        elif deed == "cancel":
            await self._set_state(topic, self.choose.choice(list(topic.groups)), "CANCELLED")
        elif topic.groups["paused"].state in ("ACTIVE", "PAUSED"):
            await self._set_state(topic, "paused", "PAUSED" if deed == "pause" else "ACTIVE")

    async def _publish(self, topic: _Topic) -> None:
        for id in await publish(self.conn, "x", topic=topic.name):
            topic.there[id] = await self.conn.fetchval("select postbus.epoch($1)", self.storage)
            for group in topic.groups.values():
                if group.state != "CANCELLED":
                    group.unread.add(id)

    async def _close(self) -> None:
        now = await self._now()
        await self.conn.execute("update postbus.log_storage set partition_bytes = 1")
        while (await self._sweep_at(now))["more"]:
            pass
        await self.conn.execute("update postbus.log_storage set partition_bytes = 1 << 30")
        await self._sweep_at(now)
        await self.check()

    async def _read(self, topic: _Topic) -> None:
        name, group = self.choose.choice(list(topic.groups.items()))
        if group.state == "DEAD":
            await self.conn.execute("select postbus.resurrect(array[$1::bigint])", group.id)
            group.state = "ACTIVE"
        elif group.state == "PAUSED":
            await self._set_state(topic, name, "ACTIVE")
        elif group.state == "CANCELLED":
            group.id = await subscribe(self.conn, name, topic=topic.name)
            group.state = "ACTIVE"
        await pass_all(self.conn, group.id, f"w {group.id}", topic=topic.name)
        group.unread.clear()

    async def _die(self, group: _Group) -> None:
        if group.state == "ACTIVE":
            group.state = "DEAD"
            group.died_at = await self.conn.fetchval(
                "update postbus.subscription set state = 'DEAD', state_changed_at = clock_timestamp() + $2 "
                "where id = $1 returning state_changed_at",
                group.id,
                self.later,
            )

    async def _set_state(self, topic: _Topic, name: str, state: str) -> None:
        group = topic.groups[name]
        if group.state != state:
            await self.conn.execute("select postbus.set_group_state($1, $2, $3)", topic.name, name, state)
            group.state = state

    async def move_on(self) -> None:
        self.later += self.choose.choice([1, 4, 20, 150, 1500]) * _MINUTE
        await self.check()

    async def check(self) -> None:
        """Sweep at this moment, and compare what is stored with what the options say."""
        now = await self._now()

        async def is_as_expected() -> None:
            while (await self._sweep_at(now))["more"]:
                pass
            # For dropped partitions use what was known before; one closed and dropped at once was closed now.
            partitions = self._partitions | dict(
                await self.conn.fetch("select epoch, closed_at from postbus.log_partition")
            )
            gone = partitions.keys() - set(await self._epochs())
            for topic in self.topics:
                expected = {
                    id
                    for id, epoch in topic.there.items()
                    if topic.keeps(id, partitions[epoch] or (now if epoch in gone else None), now)
                }
                assert await self._stored(topic) == expected

        await eventually(is_as_expected, within=30)  # transactions of other databases may delay a sweep
        self._partitions = dict(await self.conn.fetch("select epoch, closed_at from postbus.log_partition"))
        for topic in self.topics:
            kept = await self._stored(topic)
            topic.there = {id: epoch for id, epoch in topic.there.items() if id in kept}
            for group in topic.groups.values():
                group.unread &= kept

    async def _now(self) -> datetime:
        now: datetime = await self.conn.fetchval("select clock_timestamp() + $1::interval", self.later)
        return now

    async def _epochs(self) -> list[int]:
        return [row["epoch"] for row in await self.conn.fetch("select epoch from postbus.log_partition")]

    async def _stored(self, topic: _Topic) -> set[int]:
        rows = await self.conn.fetch("select id from postbus.log where topic = $1", topic.name)
        return {row["id"] for row in rows}

    async def _sweep_at(self, now: datetime) -> Any:
        swept = await self.conn.fetchrow("select * from postbus.sweep_log_as_of($1, $2)", self.storage, now)
        self.thinned += swept["thinned"]
        self.dropped += len(swept["dropped"])
        return swept


@pytest.mark.parametrize("seed", range(3))
async def test_each_topic_keeps_what_its_own_options_say(conn: Any, seed: int) -> None:
    """At 50 random moments two topics of one storage, whose groups pause, die and end, store exactly what each must
    keep."""
    world = _World(conn, random.Random(seed))
    await world.begin()
    # partitions close when the test says so
    await conn.execute("update postbus.log_storage set period = interval '900 days'")
    for _ in range(_MOMENTS):
        for _ in range(world.choose.randrange(6)):
            await world.act()
        await world.move_on()
    assert world.thinned > 0
    assert world.dropped > 0
