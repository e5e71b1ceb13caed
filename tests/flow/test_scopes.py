"""Consuming for scopes: later topics join while processes run, each with counts and a state of its own."""

from __future__ import annotations

import time
from typing import Any

import pytest

from postbus import Bus, Message, Start
from support.eventually import eventually
from support.grouping import SOON, create_log, is_through, look_often, publish_numbers
from support.running import running, tasks_are
from support.scoping import age, gather, gets


@pytest.mark.parametrize("scope", [{"namespace": "ns"}, {"task": "work"}, {"topic": "orders.*"}], ids=str)
async def test_topics_join_while_the_process_runs(bus: Bus, scope: dict[str, Any]) -> None:
    """A topic that is created, or enters the scope by a change, is consumed within a second or so."""
    labels: Any = {"namespace": "ns", "task": "work"}
    await create_log(bus, "orders.first", **labels)
    await create_log(bus, "orders.changed.later")
    got = gather(bus, "g", mode="new", **scope)

    async with running(bus):
        await bus.send("orders.first", 1)
        await gets(got, 1)
        await create_log(bus, "orders.second", **labels)
        began = time.monotonic()
        await bus.send("orders.second", 2)
        await gets(got, 1, 2)
        assert time.monotonic() - began < 3.0
        if "topic" not in scope:
            await bus.send("orders.changed.later", 3)
            await bus.admin.set_topic("orders.changed.later", **labels)
            await gets(got, 1, 2, 3)
    assert dict(got)["orders.second"] == 2


async def test_topics_join_without_a_wake_up(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that misses the wake-up finds new topics by polling."""
    monkeypatch.setattr("postbus._wakeup.waiters.Wakers.wake", lambda *_: None)
    got = gather(bus, "g", "a.#", poll=0.1)
    async with running(bus):
        await create_log(bus, "a.b.c")
        await bus.send("a.b.c", 1)
        await gets(got, 1)


async def test_unsubscribed_topic_of_the_scope_is_joined(bus: Bus, conn: Any) -> None:
    """A consumer subscribes every topic of its scope that is not subscribed, for whatever reason."""
    got = gather(bus, "g", "a.*")
    async with running(bus):
        await create_log(bus, "b")
        await bus.send("b", 1)
        await conn.execute("update postbus.topic set name = 'a.b', id = postbus.topic_id('a.b') where name = 'b'")
        await conn.execute("update postbus.segment set topic_id = postbus.topic_id('a.b')")
        await gets(got, 1)


async def test_counts_and_states_are_kept_per_topic(bus: Bus, conn: Any) -> None:
    """The group's own counts are the sums over its topics."""
    for topic in ("a", "b"):
        await create_log(bus, topic, namespace="ns")
    seen: list[int] = []

    async def handle(n: int) -> None:
        seen.append(n)
        if n < 0:
            raise ValueError("negative")

    group = bus.group("g", namespace="ns", filter=lambda message: message.payload != b"0", retry=SOON)
    group.add_member("m", handle)
    await group.start()
    async with running(bus):
        await bus.send("a", 1)
        await bus.send("a", 0)
        for n in (2, 3, -1):
            await bus.send("b", n)
        await is_through(conn, "g", "a")
        await is_through(conn, "g", "b", dead=1)
        assert group.parts["a"].counts.processed == 1
        assert group.parts["a"].filtered == 1
        assert group.parts["b"].counts.processed == 2
        assert (group.counts.processed, group.counts.failed, group.counts.filtered) == (3, 3, 1)
    rows = {row.topic: row for row in await bus.admin.groups(group="g")}
    assert [(rows[topic].processed, rows[topic].failed, rows[topic].filtered) for topic in ("a", "b")] == [
        (1, 0, 1),
        (2, 3, 0),
    ]


async def test_members_are_shared_by_all_topics(bus: Bus) -> None:
    """A member that is added or removed is so in every topic, later ones included."""
    await create_log(bus, "a", namespace="ns")
    got: list[tuple[str, str, int]] = []

    def member(name: str) -> Any:
        async def handle(n: int, message: Message) -> None:
            got.append((name, message.topic, n))

        return handle

    async def has(*expected: tuple[str, str, int]) -> None:
        async def all_of_them() -> None:
            assert got == list(expected)

        await eventually(all_of_them)

    group = bus.group("g", namespace="ns")
    group.add_member("first", member("first"))
    await group.start(mode="new")
    async with running(bus):
        await bus.send("a", 1)
        await has(("first", "a", 1))
        group.add_member("second", member("second"))
        group.remove_member("first")
        await create_log(bus, "b", namespace="ns")
        await bus.send("a", 2)
        await has(("first", "a", 1), ("second", "a", 2))
        await bus.send("b", 3)
        await has(("first", "a", 1), ("second", "a", 2), ("second", "b", 3))
        assert group.counts.processed == 3


async def test_scope_is_paused_resumed_stopped_and_cancelled(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call affects all topics at once; a cancelled scope is forgotten and starts anew."""
    look_often(monkeypatch)
    for topic in ("a", "b"):
        await create_log(bus, topic, namespace="ns")
    got: list[int] = []

    async def handle(n: int) -> None:
        got.append(n)

    async def states() -> list[str]:
        return [one.state for one in await bus.admin.groups(group="g", cancelled=True)]

    async def handled(*numbers: int) -> None:
        async def all_of_them() -> None:
            assert sorted(got) == sorted(numbers)

        await eventually(all_of_them)

    group = bus.group("g", namespace="ns")
    group.add_member("m", handle)
    async with running(bus):
        await group.start(Start.BEGINNING)
        await bus.send("a", 1)
        await handled(1)
        await group.pause()
        assert await states() == ["PAUSED", "PAUSED"]
        await bus.send("b", 2)
        await group.resume()
        await handled(1, 2)

        await group.stop()
        await bus.send("a", 3)
        await create_log(bus, "c", namespace="ns")
        assert got == [1, 2]
        await group.start()
        await handled(1, 2, 3)

        await group.cancel()
        assert await states() == ["CANCELLED"] * 3
        assert await bus.admin.scopes("g") == []
        await group.start(mode="new", look_back=0)
        await bus.send("c", 4)
        await handled(1, 2, 3, 4)


async def test_cancelled_topic_stays_out_while_others_go_on(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays out after a restart; subscribing to it brings it back, also to a running process."""
    look_often(monkeypatch)
    for topic in ("a", "b"):
        await create_log(bus, topic, namespace="ns")
    got = gather(bus, "g", namespace="ns")
    async with running(bus):
        await bus.send("a", 1)
        await gets(got, 1)
        await bus.admin.cancel_group("a", "g")
        await tasks_are("postbus-read-g", 1)
        await bus.send("a", 2)
        await bus.send("b", 3)
        await gets(got, 1, 3)
    async with running(bus):
        await bus.send("b", 4)
        await gets(got, 1, 3, 4)
        await bus.admin.subscribe_group("g", "a", mode="new", look_back=0)
        await bus.send("a", 5)
        await gets(got, 1, 3, 4, 5)


async def test_topic_in_two_scopes_is_consumed_once(bus: Bus) -> None:
    """The first registered scope of the process consumes it, and the other one consumes the rest."""
    for topic, namespace in (("x.a", "ns"), ("x.b", "other"), ("y", "ns")):
        await create_log(bus, topic, namespace=namespace)
    first, second = gather(bus, "g", "x.*"), gather(bus, "g", namespace="ns")
    async with running(bus):
        for n, topic in enumerate(("x.a", "x.b", "y")):
            await bus.send(topic, n)
        await gets(first, 0, 1)
        await gets(second, 2)


@pytest.mark.parametrize(
    "options", [{}, {"batch": 10}, {"batch": 10, "transactional": True}, {"concurrency": 4}], ids=str
)
async def test_messages_of_other_keys_are_filtered(bus: Bus, conn: Any, options: dict[str, Any]) -> None:
    """A group with one key handles no others, alone and in batches, and counts them as filtered."""
    await create_log(bus, lanes=2)
    got: list[int] = []
    if options.get("transactional"):

        @bus.subscribe("t", group="g", key="k1", **options)
        async def handle_with(numbers: list[int], conn: Any) -> None:
            got.extend(numbers)

    elif "batch" in options:

        @bus.subscribe("t", group="g", key="k1", **options)
        async def handle_many(numbers: list[int]) -> None:
            got.extend(numbers)

    else:

        @bus.subscribe("t", group="g", key="k1", **options)
        async def handle(n: int) -> None:
            got.append(n)

    await publish_numbers(bus, range(30), keys=3)
    async with running(bus):
        row = await is_through(conn)
    assert got == list(range(1, 30, 3))
    assert row["keys"] == ["k1"]
    group = await bus.admin.group("t", "g")
    assert (group.processed, group.filtered) == (10, 20)


async def test_keys_can_be_added_while_a_process_works(bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message of the added keys comes, skipped ones too, in the order of its key."""
    look_often(monkeypatch)
    await create_log(bus, lanes=2)
    got: list[int] = []

    @bus.subscribe("t", group="g", key="k0", concurrency=4)
    async def handle(n: int) -> None:
        got.append(n)

    async with running(bus):
        await publish_numbers(bus, range(500), keys=5, at_once=50)
        await bus.admin.subscribe_group("g", "t", key="k1")
        await publish_numbers(bus, range(500, 600), keys=5, at_once=10)
        await bus.admin.subscribe_group("g", "t", mode="all")
        await publish_numbers(bus, range(600, 700), keys=5, at_once=10)

        async def all_have_come() -> None:
            assert set(got) == set(range(700))

        await eventually(all_have_come, within=30)
        await is_through(conn)
    for key in range(5):
        first = list(dict.fromkeys(n for n in got if n % 5 == key))
        assert first == sorted(first)


async def test_one_process_consumes_a_thousand_topics_of_a_namespace(bus: Bus, conn: Any) -> None:
    """Topics created later join too."""
    await conn.execute(
        'select postbus.create_topic(\'t\' || n, \'{"semantics": "PUB_SUB", "lanes": 1, "namespace": "ns"}\') '
        "from generate_series(1, 1000) as n"
    )
    began = time.monotonic()
    assert len(await bus.admin.subscribe_group("g", namespace="ns", mode="new")) == 1000
    assert time.monotonic() - began < 30.0
    await conn.execute("select postbus.publish('t' || n, to_jsonb(n)) from generate_series(1, 1000) as n")
    got = gather(bus, "g", namespace="ns")
    async with running(bus):
        await gets(got, *range(1, 1001), within=60)
        await create_log(bus, "later", lanes=1, namespace="ns", lease="30s")
        await bus.send("later", 0)
        await gets(got, *range(1001), within=60)
    assert len({topic for topic, _ in got}) == 1001


async def test_dead_group_returns_in_its_scope(bus: Bus, conn: Any) -> None:
    """It is revived when its process starts, and gets the messages it missed."""
    await create_log(bus, "a", namespace="ns")
    await bus.admin.subscribe_group("g", namespace="ns", mode="new")
    await bus.send("a", 1)
    await conn.execute("update postbus.subscription set state = 'DEAD'")
    await age(conn, 60)
    got = gather(bus, "g", namespace="ns", mode="new")
    async with running(bus):
        await gets(got, 1)
