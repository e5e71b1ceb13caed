"""Popping from all topics of a namespace, of a task, or with names that fit a pattern."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from support.fix_database import Connect
from support.log_sql import create_topic, publish_many, refused
from support.pop_sql import Pop, ack, as_pop, retry


async def in_namespace(conn: Any, *topics: str, mode: str = "new") -> None:
    """Subscribe group g to namespace n, which has these topics."""
    for topic in topics:
        await create_topic(conn, topic, namespace="n")
    await conn.fetch("select * from postbus.subscribe_scope('g', namespace => 'n', mode => $1)", mode)


async def pop(conn: Any, count: int = 1, **options: Any) -> Pop:
    """Call `pop_scope` once for group g, on namespace n unless told otherwise."""
    scope = options if {"task", "pattern"} & set(options) else {"namespace": "n", **options}
    named = "".join(f", {name} => ${n}" for n, name in enumerate(scope, 2))
    return as_pop(
        await conn.fetch(f"select * from postbus.pop_scope('g', max_count => $1{named})", count, *scope.values())
    )


async def test_pop_takes_from_the_topic_that_waits_longest(conn: Any) -> None:
    """Each pop takes from the topic whose message has waited longest."""
    await in_namespace(conn, "a", "b", "c")
    for topic, payload in (("b", "1"), ("a", "2"), ("c", "3")):
        await publish_many(conn, payload, topic=topic)

    popped = [await pop(conn, 5) for _ in range(3)]

    assert [one.messages for one in popped] == [["1"], ["2"], ["3"]]
    assert [one.topic for one in popped] == ["b", "a", "c"]
    for one in popped:
        assert await ack(conn, one) == []
    empty = await pop(conn)
    assert (empty.messages, empty.more) == ([], False)


async def test_busy_topic_does_not_starve_a_quiet_one(conn: Any) -> None:
    """However many messages wait in one topic, those of another come within a few pops."""
    await in_namespace(conn, "busy", "quiet")
    await publish_many(conn, *map(str, range(50)), topic="busy")
    await publish_many(conn, "here", topic="quiet")
    got: list[str] = []
    for _ in range(4):
        popped = await pop(conn, 5)
        got += popped.messages
        await ack(conn, popped)

    assert "here" in got


async def test_topic_created_later_is_popped_from_its_beginning(conn: Any) -> None:
    """The topic joins the scope when it is created, at the recorded position."""
    await in_namespace(conn)
    assert (await pop(conn)).messages == []

    await create_topic(conn, "late", namespace="n")
    await publish_many(conn, "one", topic="late")

    assert (await pop(conn)).messages == ["one"]


@pytest.mark.parametrize("scope", [{"task": "mail"}, {"pattern": "orders.*"}, {"pattern": "orders.#"}])
async def test_tasks_and_patterns_are_scopes_too(conn: Any, scope: dict[str, Any]) -> None:
    """Topics outside of the scope are not popped."""
    await create_topic(conn, "orders.new", task="mail")
    await create_topic(conn, "other")
    [(name, value)] = scope.items()
    await conn.fetch(f"select * from postbus.subscribe_scope('g', {name} => $1, mode => 'new')", value)
    await publish_many(conn, "no", topic="other")
    await publish_many(conn, "yes", topic="orders.new")

    assert (await pop(conn, **scope)).messages == ["yes"]
    assert (await pop(conn, **scope)).messages == []


async def test_late_commit_is_found(connect: Connect) -> None:
    """It is found in a topic that nobody publishes to afterwards."""
    conn, late = await connect(), await connect()
    await in_namespace(conn, "a")
    transaction = late.transaction()
    await transaction.start()
    await publish_many(late, "late", topic="a")
    await publish_many(conn, "soon", topic="a")
    await ack(conn, await pop(conn))
    assert (await pop(conn)).messages == []

    await transaction.commit()

    assert (await pop(conn)).messages == ["late"]


async def test_retry_comes_when_it_is_due(conn: Any) -> None:
    """Until then, a pop that finds nothing says how long to wait."""
    await in_namespace(conn, "a", "b")
    await publish_many(conn, "one", topic="a")
    await retry(conn, await pop(conn), delay=timedelta(minutes=1))

    empty = await pop(conn)

    assert empty.next_due is not None
    assert timedelta(seconds=50) < empty.next_due <= timedelta(minutes=1)
    await conn.execute("update postbus.deferred set due_at = due_at - interval '2 minutes'")
    assert (await pop(conn)).messages == ["one"]


async def test_idle_topics_cost_no_transaction_id(conn: Any) -> None:
    """An empty pop writes nothing, and the one topic with a message is found."""
    await in_namespace(conn, *(f"t{n}" for n in range(100)))
    async with conn.transaction():
        await pop(conn)
        assert await conn.fetchval("select pg_current_xact_id_if_assigned()") is None
    await publish_many(conn, "one", topic="t77")

    assert (await pop(conn)).messages == ["one"]


async def test_unsubscribed_group_is_refused(conn: Any) -> None:
    """The error names the command that subscribes it. Contradictory parameters are refused too."""
    assert await refused(pop(conn), "PB406") == "subscribe it first: postbus groups subscribe g --namespace n"
    assert await refused(pop(conn, namespace="n", task="t"), "PB402")
    assert await refused(pop(conn, 0), "PB402")
