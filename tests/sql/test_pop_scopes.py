"""Popping from scopes: the first pop records where the group starts, and all topics take turns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from log_sql import create_topic, publish_many, refused
from scoping import age


class Popper:
    """Somebody who pops for a group from a scope, and acks at once."""

    def __init__(self, conn: Any, group: str = "cg1", **scope: Any) -> None:
        self.conn = conn
        self.group = group
        self.scope = scope
        self.floor: str | None = None
        self.end: Any = None

    async def once(self, count: int = 10, **options: Any) -> list[str]:
        """What one call brings; how to go on is in `end`."""
        given = {"max_count": count, "auto_ack": True, "floor": self.floor} | self.scope | options
        named = ", ".join(f"{name} => ${place}" for place, name in enumerate(given, 2))
        rows = await self.conn.fetch(f"select * from postbus.pop_scope($1, {named})", self.group, *given.values())
        self.end = rows.pop()
        self.floor = self.end["next_floor"]
        return [payload.decode() for row in rows for payload in row["payloads"]]

    async def pop(self, count: int = 10, **options: Any) -> list[str]:
        """Pop as a client does: again at once, while that is worth it and nothing has come."""
        got = await self.once(count, **options)
        while not got and self.end["more"]:
            got = await self.once(count, **options)
        return got


async def test_basic_new_mode_single_partition(conn: Any) -> None:
    """A new group gets what came just before its first pop, and what comes later."""
    await create_topic(conn, "test")
    await publish_many(conn, "M1", topic="test", keys=["p1"])
    cg = Popper(conn, topic="test", key="p1", mode="new")
    assert await cg.pop() == ["M1"]
    await publish_many(conn, "M2", "other", topic="test", keys=["p1", "p2"])
    assert await cg.pop() == ["M2"]
    assert await cg.pop() == []


async def test_new_mode_new_partition_created_later(conn: Any) -> None:
    """A partition that appears ten minutes after the first pop is read from its first message."""
    await create_topic(conn, "test", lanes=4)
    await publish_many(conn, "M1", topic="test", keys=["p1"])
    cg = Popper(conn, topic="test", mode="new")
    assert await cg.pop() == ["M1"]
    await age(conn, 600)
    await publish_many(conn, "M2", topic="test", keys=["p2"])
    await age(conn, 300)
    assert await cg.pop() == ["M2"]


async def test_namespace_wildcard(conn: Any) -> None:
    """A topic that is created later in the namespace starts where the group did."""
    await create_topic(conn, "q1", namespace="ns1")
    await publish_many(conn, "M1", topic="q1")
    cg = Popper(conn, namespace="ns1", mode="new")
    assert await cg.pop() == ["M1"]
    await create_topic(conn, "q2", namespace="ns1")
    await publish_many(conn, "M2", topic="q2")
    await age(conn, 600)
    assert await cg.pop() == ["M2"]


async def test_multiple_consumer_groups(conn: Any) -> None:
    """Each group has a record of its own."""
    await create_topic(conn, "test")
    await publish_many(conn, "old", topic="test")
    await age(conn, 60)
    new, everything = Popper(conn, "cg1", topic="test", mode="new"), Popper(conn, "cg2", topic="test")
    assert await new.pop() == []
    assert await everything.pop() == ["old"]
    await publish_many(conn, "M1", topic="test")
    assert (await new.pop(), await everything.pop()) == (["M1"], ["M1"])


async def test_topics_take_turns(conn: Any) -> None:
    """One that has much does not keep the others waiting: the next pop begins after the topic that came last."""
    for topic in ("a", "b", "c"):
        await create_topic(conn, topic, namespace="ns")
        await publish_many(conn, *(f"{topic}{n}" for n in range(4)), topic=topic)
    cg = Popper(conn, namespace="ns")
    assert [await cg.pop(2) for _ in range(6)] == [
        ["a0", "a1"], ["b0", "b1"], ["c0", "c1"], ["a2", "a3"], ["b2", "b3"], ["c2", "c3"],
    ]  # fmt: skip
    assert await cg.pop() == []
    assert not cg.end["more"]


async def test_one_pop_may_have_several_topics(conn: Any) -> None:
    """What earlier pops have brought to the shelf comes along; each topic's part is a lease of its own."""
    for topic in ("a", "b"):
        await create_topic(conn, topic, namespace="ns")
        await publish_many(conn, "1", "2", topic=topic)
    cg = Popper(conn, namespace="ns")
    assert await cg.pop(1) == ["1"]
    assert await cg.pop(1) == ["1"]
    assert await cg.pop(10) == ["2", "2"]


async def test_who_pops_keeps_all_topics_alive(conn: Any) -> None:
    """Heartbeats of all topics go along with a pop, and what is in their logs comes with the next."""
    for topic in ("a", "b"):
        await create_topic(conn, topic, namespace="ns")
    cg = Popper(conn, namespace="ns")
    await cg.pop()
    await conn.execute("update postbus.subscription set seen_at = seen_at - interval '1 hour'")
    await publish_many(conn, "late", topic="b")
    assert await cg.pop() == ["late"]
    old = "select count(*) from postbus.subscription where seen_at < clock_timestamp() - interval '1 minute'"
    await cg.pop()
    assert await conn.fetchval(old) == 0


async def test_a_dead_or_paused_topic(conn: Any) -> None:
    """DEAD ones come back with the pop, PAUSED ones wait."""
    for topic in ("a", "b"):
        await create_topic(conn, topic, namespace="ns")
    cg = Popper(conn, namespace="ns")
    await cg.pop()
    for topic in ("a", "b"):
        await publish_many(conn, topic, topic=topic)
    await conn.execute("update postbus.subscription set state = 'DEAD' where topic_id = postbus.topic_id('a')")
    await conn.execute("select postbus.set_group_state('b', 'cg1', 'PAUSED')")
    assert await cg.pop() == ["a"]
    assert await cg.pop() == []


async def test_a_lease_of_a_scope_is_settled_as_any(conn: Any) -> None:
    """With its token, by ack; what is not settled comes back when its lease has ended."""
    await create_topic(conn, "a", namespace="ns")
    await publish_many(conn, "1", topic="a")
    cg = Popper(conn, namespace="ns", auto_ack=False, member="me")
    assert await cg.pop(lease=timedelta(minutes=1)) == ["1"]
    assert await cg.pop() == []
    later = await conn.fetchval("select clock_timestamp() + interval '2 minutes'")
    rows = await conn.fetch("select * from postbus.pop_scope('cg1', namespace => 'ns', as_of => $1)", later)
    assert (rows[0]["topic"], rows[0]["attempts"]) == ("a", [2])
    await conn.execute("select postbus.ack($1, $2)", rows[0]["token"], rows[0]["ids"])
    assert await conn.fetchval("select count(*) from postbus.retrying") == 0


@pytest.mark.parametrize(
    "given",
    [{"max_count": 0}, {"lease": timedelta(0)}, {"namespace": None}, {"mode": "old"}, {"task": "x"}],
    ids=str,
)
async def test_a_pop_that_makes_no_sense(conn: Any, given: dict[str, Any]) -> None:
    """It is refused, and nothing is recorded."""
    assert await refused(Popper(conn, **{"namespace": "ns"} | given).once(), "PB402")
    assert await conn.fetchval("select count(*) from postbus.scope") == 0
