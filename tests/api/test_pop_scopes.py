"""Pops that subscribe: scopes and modes, recorded at the first contact."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from postbus import Bus, InvalidInput, InvalidOption, Start, WrongSemantics
from postbus.pull import Popped
from support.eventually import eventually
from support.grouping import collect, create_log, has
from support.running import running
from support.scoping import age


async def take(bus: Bus, topic: str | None = None, *, group: str = "cg1", **options: Any) -> list[Any]:
    """Pop and acknowledge everything there is."""
    got: list[Any] = []
    while popped := await bus.pop(topic, group=group, batch=10, **options):
        got += popped.payloads
        await popped.ack()
    return got


async def test_new_mode_pops_from_just_before_the_first_pop(bus: Bus) -> None:
    """The first pop gets messages from just before it, and the next one later messages."""
    await create_log(bus, "test", lanes="named")
    await bus.send("test", "M1", key="p1")
    assert await take(bus, "test", key="p1", mode="new") == ["M1"]

    await bus.send("test", "M2", key="p1")

    assert await take(bus, "test", key="p1", mode="new") == ["M2"]


async def test_new_mode_pops_a_later_partition_from_its_first_message(bus: Bus, conn: Any) -> None:
    """A partition that appears ten minutes later is popped from its first message."""
    await create_log(bus, "test", lanes="named")
    await bus.send("test", "M1", key="p1")
    assert await take(bus, "test", mode="new") == ["M1"]

    await age(conn, 600)
    await bus.send("test", "M2", key="p2")
    await age(conn, 300)

    assert await take(bus, "test", mode="new") == ["M2"]


async def test_later_topic_of_a_namespace_is_popped_from_the_groups_record(bus: Bus, conn: Any) -> None:
    """A topic created later in the namespace starts at the group's record."""
    await create_log(bus, "q1", namespace="ns1")
    await bus.send("q1", "M1")
    assert await take(bus, namespace="ns1", mode="new") == ["M1"]

    await create_log(bus, "q2", namespace="ns1")
    await bus.send("q2", "M2")
    await age(conn, 600)

    assert await take(bus, namespace="ns1", mode="new") == ["M2"]


async def test_each_popping_group_has_a_record_of_its_own(bus: Bus, conn: Any) -> None:
    """Each group has its own record, and starts at the beginning without a mode."""
    await create_log(bus, "test")
    await bus.send("test", "old")
    await age(conn, 60)

    assert await take(bus, "test", group="cg1", mode="new") == []
    assert await take(bus, "test", group="cg2") == ["old"]
    assert [(one.group_name, one.mode) for one in await bus.admin.scopes()] == [("cg1", "new"), ("cg2", "all")]


async def test_each_popped_key_has_a_record_of_its_own(bus: Bus, conn: Any) -> None:
    """Each requested partition has its own record and its own start."""
    await create_log(bus, "q", lanes="named")
    await bus.send("q", "old 1", key="p1")
    await bus.send("q", "old 2", key="p2")
    await age(conn, 60)

    assert await take(bus, "q", key="p1", mode="new") == []
    assert await take(bus, "q", key="p2", mode="all") == ["old 2"]
    await bus.send("q", "new 1", key="p1")
    assert await take(bus, "q", key="p1", mode="new") == ["new 1"]


async def test_group_may_pop_each_topic_in_another_mode(bus: Bus, conn: Any) -> None:
    """A group may skip the history of one topic, and read all of another."""
    for topic in ("q1", "q2"):
        await create_log(bus, topic)
        await bus.send(topic, f"old of {topic}")
    await age(conn, 60)

    assert await take(bus, "q1", mode="new") == []
    assert await take(bus, "q2") == ["old of q2"]


async def test_first_mode_of_a_popping_group_stays(bus: Bus, dsn: str, conn: Any) -> None:
    """The first mode wins, whatever a later call says."""
    await create_log(bus, "q1")
    await bus.send("q1", "old")
    await age(conn, 60)
    assert await take(bus, "q1", mode="new") == []

    async with Bus.open(dsn) as other:
        assert await take(other, "q1", mode="all") == []


async def test_changed_default_mode_does_not_affect_existing_groups(bus: Bus, dsn: str, conn: Any) -> None:
    """A default that changes later does not affect existing groups."""
    await create_log(bus, "q1")
    await bus.send("q1", "first")
    await age(conn, 60)
    assert await take(bus, "q1") == ["first"]
    await bus.send("q1", "second")
    await age(conn, 60)

    async with Bus.open(dsn, default_mode="new") as other:
        assert await take(other, "q1") == ["second"]
        assert await take(other, "q1", group="cg2") == []


async def test_group_can_start_from_a_time(bus: Bus, conn: Any) -> None:
    """It gets messages that were published since then."""
    await create_log(bus, "q")
    await bus.send("q", "older")
    await age(conn, 3600)
    await bus.send("q", "newer")
    since = datetime.now(UTC) - timedelta(minutes=5)

    assert await take(bus, "q", mode="timestamp", start=since) == ["newer"]


async def test_patterns_and_tasks_are_popped_too(bus: Bus) -> None:
    """A pattern is given in place of the topic's name."""
    await create_log(bus, "orders.new", task="mail")
    await bus.send("orders.new", 1)

    assert await take(bus, "orders.*") == [1]
    assert await take(bus, task="mail", group="cg2") == [1]
    assert await take(bus, "invoices.#", group="cg3") == []


async def poll(bus: Bus) -> Popped:
    return await bus.pop(namespace="n", group="g", wait=30)


async def are_waiting(bus: Bus, count: int = 1) -> None:
    """Check that so many pops have found no message, or wait for others that search."""
    puller = await bus._connected_puller()
    assert sum(len(pops.turns) for waiters in puller._waiters.values() for pops in waiters._by_key.values()) == count


async def test_poll_of_a_scope_ends_with_a_message_of_any_topic(bus: Bus) -> None:
    """The topic may be created during the poll."""
    await create_log(bus, "a", namespace="n")
    for topic in ("a", "late"):
        waiting = asyncio.create_task(poll(bus))
        await eventually(partial(are_waiting, bus))
        if topic == "late":
            await create_log(bus, "late", namespace="n")
        await bus.send(topic, topic)

        popped = await asyncio.wait_for(waiting, 10)

        assert popped.payloads == [topic]
        assert popped[0].message.topic == topic
        await popped.ack()


async def test_waiting_pops_of_a_scope_share_the_query_for_its_topics(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are, the topics are queried once, and once more when one joins."""
    await create_log(bus, "a", namespace="n")
    store = await bus.connect()
    asked: list[str] = []
    original = store.group_topics

    async def group_topics(group: str, scope: Any) -> list[str]:
        asked.append(group)
        return await original(group, scope)

    async def is_asked(times: int) -> None:
        assert len(asked) >= times

    monkeypatch.setattr(store, "group_topics", group_topics)
    waiting = [asyncio.create_task(poll(bus))]
    await eventually(is_asked, 2)  # the second time after it has begun to listen
    waiting += [asyncio.create_task(poll(bus)) for _ in range(49)]
    await eventually(partial(are_waiting, bus, 50))
    assert len(asked) == 2
    await create_log(bus, "late", namespace="n")
    await bus.send("late", 1)
    await bus.send("late", 2)

    done, _ = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert done
    assert len(asked) <= 4
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_pop_keeps_on_failure_pass_of_a_group(bus: Bus, conn: Any) -> None:
    """Popping does not change how a group was set up."""
    await create_log(bus, "q")
    await conn.execute("select postbus.subscribe('q', 'g', 'FROM_NOW', on_failure => 'pass')")

    await take(bus, "q", group="g")

    assert await conn.fetchval("select on_failure from postbus.groups") == "pass"


async def test_contradictory_pop_options_are_refused(bus: Bus) -> None:
    """They are refused before anything is recorded."""
    nonsense: tuple[Any, ...] = (
        {"topic": "q", "mode": "new"},
        {"topic": "q", "key": "k"},
        {"namespace": "n"},
        {"topic": "q", "group": "g", "namespace": "n"},
        {"topic": "q.*", "group": "g", "key": "k"},
        {"topic": "q", "group": "g", "mode": "none"},
        {"topic": "q", "group": "g", "mode": "timestamp"},
        {"group": "g"},
    )
    for options in nonsense:
        with pytest.raises(InvalidInput):
            bus.pop(**options)
    await bus.send("a.queue", 1)
    with pytest.raises(WrongSemantics):
        await bus.pop("a.queue", group="g")
    assert await bus.admin.scopes() == []


@pytest.mark.parametrize("key", [None, "k"])
async def test_new_group_pops_from_a_message(bus: Bus, key: str | None) -> None:
    """A topic, or one key of it, is popped from the message with the given id."""
    await create_log(bus, "t", lanes=4)
    ids = [await bus.send("t", n, key="k") for n in range(4)]
    await bus.send("t", "other", key="other")

    got = await take(bus, "t", key=key, start=Start.from_message(ids[2]))

    assert got == [2, 3] + (["other"] if key is None else [])
    [recorded] = await bus.admin.scopes("cg1")
    assert (recorded.mode, recorded.start_id) == ("message", ids[2])


@pytest.mark.parametrize("key", [None, "k"])
async def test_new_group_is_subscribed_from_a_message(bus: Bus, key: str | None) -> None:
    """`admin.subscribe_group` and a handler of one key accept such a start too."""
    await create_log(bus, "t", lanes=4)
    ids = [await bus.send("t", n, key="k") for n in range(4)]
    got = collect(bus, "handled", "t", key=key, start=ids[3])

    assert await bus.admin.subscribe_group("cg1", "t", key=key, start=ids[2]) == ["t"]

    assert await take(bus, "t", key=key) == [2, 3]
    async with running(bus):
        await has(got, 1)
    assert got == [3]


async def test_key_added_to_a_group_starts_from_a_message(bus: Bus) -> None:
    """A group that has one key gets another one from the named message."""
    await create_log(bus, "t", lanes=4)
    ids = [await bus.send("t", n, key="b") for n in range(4)]
    assert await take(bus, "t", key="a") == []

    assert await take(bus, "t", key="b", start=Start.from_message(ids[1])) == [1, 2, 3]


async def test_message_as_start_of_several_topics_is_refused(bus: Bus) -> None:
    """Topics of a pattern have no message in common, and the remedy names another start."""
    with pytest.raises(InvalidOption, match="no message in common") as told:
        await bus.pop("o.*", group="g", start=Start.from_message(1))

    assert "Start.at" in told.value.remedy
