"""Removing a group: messages in hand are handled first, and nothing of the group is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postbus import Bus, CatchUp, GroupNotFound, Start, TopicNotFound, WrongSemantics
from postbus.results import RemovedGroup
from support.eventually import eventually
from support.grouping import bury, create_log, look_often
from support.running import running

# All that a group has apart from receipts, which are removed with their messages.
TABLES = ("subscription", "lane", "cursor", "deferred", "group_worker", "member", "loss", "catch_up", "dead_letter")


async def rows_left(conn: Any) -> dict[str, int]:
    counts = {table: await conn.fetchval(f"select count(*) from postbus.{table}") for table in TABLES}
    return {table: count for table, count in counts.items() if count}


class Slow:
    """A handler that records its messages and waits until it may end."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def handle(self, n: int, conn: Any = None) -> None:
        if conn is not None:
            await conn.execute("insert into effect values ($1)", n)
        self.begun.set()
        await self.may_end.wait()


async def is_paused(bus: Bus) -> None:
    assert (await bus.admin.group("t", "g")).state == "PAUSED"


async def test_removing_an_idle_group_leaves_nothing(bus: Bus, conn: Any) -> None:
    """The group is removed at once, with its dead letters and its catch-up."""
    await create_log(bus)
    for n in range(5):
        await bus.send("t", n)
    store = await bus.connect()
    await store.subscribe("t", "g", Start.NOW, "block")
    await bury(bus, 1, groups=("g",), topic="t")
    await bus.admin.cancel_group("t", "g")
    await store.subscribe("t", "g", Start.BEGINNING, "block", CatchUp(beside_from=1))
    assert {"subscription", "lane", "cursor", "catch_up", "member", "dead_letter"} <= set(await rows_left(conn))

    assert await bus.admin.remove_group("t", "g") == RemovedGroup(removed=True, held=0)

    assert await rows_left(conn) == {}
    assert await bus.admin.groups(cancelled=True) == []
    assert len(await bus.admin.log("t")) == 6, "the messages are not the group's"
    assert (await store.subscribe("t", "g", Start.NOW, "block")).is_new


async def test_removing_a_group_leaves_others_alone(bus: Bus, conn: Any) -> None:
    """Dead letters and subscriptions of another group of the topic stay."""
    await create_log(bus)
    for group in ("g", "other"):
        await (await bus.connect()).subscribe("t", group, Start.NOW, "block")
    await bury(bus, 1, groups=("g", "other"), topic="t")
    await bus.admin.remove_group("t", "g")
    assert [one.group_name for one in await bus.admin.dead_letters("t")] == ["other"]
    assert [one.group_name for one in await bus.admin.groups()] == ["other"]


@pytest.mark.parametrize("transactional", [False, True])
async def test_messages_in_hand_are_settled_before_the_removal(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    """The group is paused meanwhile, and the effect of a transactional handler is there afterwards."""
    look_often(monkeypatch)
    await create_log(bus, lanes=1, lease="30s")
    await conn.execute("create table effect (n integer)")
    slow = Slow()
    if transactional:
        bus.subscribe("t", group="g", transactional=True)(slow.handle)
    else:

        @bus.subscribe("t", group="g")
        async def handle(n: int) -> None:
            await slow.handle(n)

    async with running(bus):
        await has_group(bus)
        await bus.send("t", 1)
        await asyncio.wait_for(slow.begun.wait(), 10)
        removal = asyncio.create_task(bus.admin.remove_group("t", "g", wait=20))
        await eventually(is_paused, bus)
        assert not removal.done()
        slow.may_end.set()
        assert await removal == RemovedGroup(removed=True, held=0)
        if transactional:
            assert [row["n"] for row in await conn.fetch("select n from effect")] == [1]

        async def has_nothing_left() -> None:
            assert await rows_left(conn) == {}

        await eventually(has_nothing_left)
    assert await rows_left(conn) == {}, "also when its process has ended"


async def has_group(bus: Bus) -> None:
    async def is_held() -> None:
        assert [row.lanes_held for row in await bus.admin.groups("t", "g")] == [1]

    await eventually(is_held)


async def test_removal_waits_for_a_bounded_time(bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that does not end is waited for up to `wait`; the answer says how many lanes were held."""
    look_often(monkeypatch)
    await create_log(bus, lanes=1, lease="30s")
    slow = Slow()

    @bus.subscribe("t", group="g")
    async def handle(n: int) -> None:
        await slow.handle(n)

    async with running(bus):
        await has_group(bus)
        await bus.send("t", 1)
        await asyncio.wait_for(slow.begun.wait(), 10)
        assert await bus.admin.remove_group("t", "g", wait=0.5) == RemovedGroup(removed=True, held=1)
        slow.may_end.set()
    assert await rows_left(conn) == {}


async def test_removal_does_not_wait_for_a_vanished_process(bus: Bus, conn: Any) -> None:
    """Its lanes no longer count when its lease is over."""
    await create_log(bus)
    store = await bus.connect()
    subscription = await store.subscribe("t", "g", Start.NOW, "block")
    await store.heartbeat("gone", "host", 1, [])
    await store.lease_lanes("gone", [subscription.id], [])
    assert (await store.remove_group("t", "g", force=False)) == RemovedGroup(removed=False, held=8)
    await conn.execute("update postbus.worker set seen_at = seen_at - interval '1 minute'")
    assert await bus.admin.remove_group("t", "g", wait="1h") == RemovedGroup(removed=True, held=0)


async def test_group_can_be_removed_in_any_state(bus: Bus, conn: Any) -> None:
    """After CANCELLED it can be removed too."""
    await create_log(bus)
    store = await bus.connect()
    for state in ("ACTIVE", "PAUSED", "DEAD", "CANCELLED"):
        subscription = await store.subscribe("t", "g", Start.NOW, "block")
        await conn.execute("update postbus.subscription set state = $1 where id = $2", state, subscription.id)
        assert (await bus.admin.remove_group("t", "g")).removed, state
        assert await rows_left(conn) == {}


async def test_removing_a_missing_group_is_refused(bus: Bus) -> None:
    """The error class says what does not exist."""
    await create_log(bus)
    await bus.admin.create_topic("queue")
    for topic, kind in (("t", GroupNotFound), ("nowhere", TopicNotFound), ("queue", WrongSemantics)):
        with pytest.raises(kind):
            await bus.admin.remove_group(topic, "nobody")


async def test_removal_does_not_wait_forever_for_a_transaction(bus: Bus, connect: Any) -> None:
    """The group is not removed but stays paused, and can be removed when the transaction has ended."""
    await create_log(bus, lanes=1, lease="30s")
    store = await bus.connect()
    subscription = await store.subscribe("t", "g", Start.NOW, "block")
    await store.heartbeat("w", "host", 1, [])
    [lane] = await store.lease_lanes("w", [subscription.id], [])
    holder = await connect()
    async with holder.transaction():
        assert await store.hold_lane(lane["token"], holder)
        assert await bus.admin.remove_group("t", "g", wait=0) == RemovedGroup(removed=False, held=1)
        await is_paused(bus)
    assert await bus.admin.remove_group("t", "g", wait=0) == RemovedGroup(removed=True, held=1)
