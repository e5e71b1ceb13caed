"""Deduplication: a key publishes once within its window, whoever comes first."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from postbus import Bus
from support.eventually import eventually
from support.queue_sql import is_waiting, payloads_of


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


async def _waits(conn: Any, other: Any, task: asyncio.Task[Any]) -> None:
    """Wait until the other session waits for a lock."""

    async def it_waits() -> None:
        assert not task.done()
        assert await is_waiting(conn, other.get_server_pid())

    await eventually(it_waits)


async def test_dedup_key_publishes_once_within_a_transaction(bus: Bus, conn: Any, topic: str) -> None:
    """The second call publishes nothing, and returns the id of the first."""
    async with conn.transaction():
        first = await bus.publish(conn, topic, "first", dedup_key="d")
        second = await bus.publish(conn, topic, "second", dedup_key="d")

    assert second == first
    assert await payloads_of(conn, topic) == ["first"]


async def test_dedup_key_publishes_once_across_transactions(bus: Bus, conn: Any, connect: Any, topic: str) -> None:
    """It does not matter who publishes, nor whether the message still exists."""
    first = await bus.publish(conn, topic, "first", dedup_key="d")
    await conn.execute("select postbus.purge_topic($1)", topic)
    second = await bus.publish(await connect(), topic, "second", dedup_key="d", delay=5)

    assert second == first
    assert await payloads_of(conn, topic) == []


async def test_expired_dedup_key_publishes_again(bus: Bus, conn: Any, topic: str) -> None:
    """From then on the key stands for the new message."""
    first = await bus.publish(conn, topic, "first", dedup_key="d")
    await conn.execute("update postbus.dedup set expires_at = clock_timestamp() where message_id = $1", first)
    second = await bus.publish(conn, topic, "second", dedup_key="d")
    third = await bus.publish(conn, topic, "third", dedup_key="d")

    assert first < second == third
    assert await payloads_of(conn, topic) == ["first", "second"]


async def test_dedup_window_is_an_option_of_the_topic(bus: Bus, conn: Any, topic: str) -> None:
    """The key expires after the topic's `dedup_window`."""
    await bus.admin.create_topic(topic, dedup_window="2h")
    message_id = await bus.publish(conn, topic, "x", dedup_key="d")

    ends = "select d.expires_at - m.published_at from postbus.dedup d join postbus.messages m on m.id = d.message_id"
    assert await conn.fetchval(f"{ends} where m.id = $1", message_id) == timedelta(hours=2)


async def test_each_topic_has_its_own_dedup_keys(bus: Bus, conn: Any, topic: str) -> None:
    """The same key in another topic is another key."""
    one = await bus.publish(conn, topic, "x", dedup_key="d")
    other = await bus.publish(conn, f"{topic}.other", "x", dedup_key="d")

    assert one != other


async def test_rollback_forgets_the_dedup_key(bus: Bus, conn: Any, topic: str) -> None:
    """This holds for a transaction and for a savepoint."""
    await conn.execute("begin")
    await bus.publish(conn, topic, "first", dedup_key="d")
    await conn.execute("savepoint s")
    await bus.publish(conn, topic, "second", dedup_key="e")
    await conn.execute("rollback to s")
    await bus.publish(conn, topic, "third", dedup_key="e")
    await conn.execute("commit")

    assert await payloads_of(conn, topic) == ["first", "third"]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_second_publisher_waits_for_the_first_to_end(
    bus: Bus, conn: Any, connect: Any, topic: str, ending: str
) -> None:
    """Only when the first transaction has ended is it known who was first."""
    first, second = await connect(), await connect()

    await first.execute("begin")
    first_id = await bus.publish(first, topic, "first", dedup_key="d")
    publishing = asyncio.create_task(_publish(bus, second, topic))
    await _waits(conn, second, publishing)
    await first.execute(ending)
    second_id = await publishing

    if ending == "commit":
        assert second_id == first_id
        assert await payloads_of(conn, topic) == ["first"]
    else:
        assert second_id != first_id
        assert await payloads_of(conn, topic) == ["second"]


async def _publish(bus: Bus, conn: Any, topic: str) -> int:
    async with conn.transaction():
        return int(await bus.publish(conn, topic, "second", dedup_key="d"))


async def test_concurrent_publishers_of_one_key_publish_once(bus: Bus, conn: Any, connect: Any, topic: str) -> None:
    """However many race for a key, there is one message, and all get its id."""
    racers = [await connect() for _ in range(8)]

    ids = await asyncio.gather(*(_publish(bus, racer, topic) for racer in racers))

    assert len(set(ids)) == 1
    assert len(await payloads_of(conn, topic)) == 1


async def test_dedup_key_that_expires_during_a_transaction_is_kept(
    bus: Bus, conn: Any, connect: Any, topic: str
) -> None:
    """The sweep leaves a key alone that an open transaction has asked for, so that its answer stays right."""
    first_id = await bus.publish(conn, topic, "first", dedup_key="d")
    asking = await connect()
    await asking.execute("begin")
    assert await bus.publish(asking, topic, "second", dedup_key="d") == first_id

    await conn.execute("select postbus.sweep_as_of(as_of => clock_timestamp() + interval '2 days')")
    again = await bus.publish(asking, topic, "third", dedup_key="d")
    await asking.execute("commit")

    assert again == first_id


async def test_first_two_publishers_of_a_topic_do_not_wait_for_each_other(
    bus: Bus, conn: Any, connect: Any, topic: str
) -> None:
    """Two open transactions may both be the first to publish to a name, and both publish."""
    one, other = await connect(), await connect()
    await one.execute("begin")
    await other.execute("begin")
    await other.execute("set local lock_timeout = '1ms'")

    await bus.publish(one, topic, "one")
    await bus.publish(other, topic, "other")
    await bus.publish_many(other, topic, ["other again"])
    await other.execute("commit")
    await one.execute("commit")

    assert sorted(await payloads_of(conn, topic)) == ["one", "other", "other again"]
    assert len(await bus.admin.topics()) == len({row.name for row in await bus.admin.topics()})
