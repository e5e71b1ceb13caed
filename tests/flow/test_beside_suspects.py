"""Suspects of having ended a process are tried alone, without holding up other messages for long."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from postbus import Bus, Message, Outcome, SinkUnavailable
from postbus._handling.settler import ClaimedLease, Settler
from postbus._queue.dispatcher import Dispatcher
from postbus.relay import Parcel
from support.eventually import eventually
from support.grouping import create_log, group_row, has
from support.running import running

_ALONE = (
    "select alone from postbus.lease where topic_id = postbus.topic_id('t') union all "
    "select alone from postbus.deferred"
)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postbus._handling.isolation._INTERVAL", 0.1)
    monkeypatch.setattr("postbus._group.redelivery._IDLE_POLL", 0.1)


@pytest.mark.parametrize("kind", ["queue", "group"])
async def test_endless_handler_keeps_no_suspect_waiting(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The suspect is tried beside the handler and marked as not alone; other messages go on meanwhile."""
    monkeypatch.setattr("postbus._handling.isolation._PATIENCE", (0.05, 0.1))
    begun, tried, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()
    others: list[int] = []

    @bus.subscribe("endless")
    async def endless(n: int) -> None:
        begun.set()
        await gate.wait()

    @bus.subscribe("other")
    async def other(n: int) -> None:
        others.append(n)

    async def suspect(n: int) -> None:
        tried.set()
        await gate.wait()

    if kind == "group":
        await create_log(bus, "t", lanes=1)
        bus.subscribe("t", group="g", start="FROM_BEGINNING")(suspect)
    else:
        bus.subscribe("t")(suspect)
    async with running(bus):
        await bus.send("endless", 1)
        await begun.wait()
        await (leave_in_group if kind == "group" else leave_in_queue)(bus, conn)
        await asyncio.wait_for(tried.wait(), 10)
        assert await conn.fetchval(_ALONE) is False
        await bus.send("other", 1)
        await has(others, 1)
        gate.set()

        async def is_done() -> None:
            assert await conn.fetch(_ALONE) == []

        await eventually(is_done)
    assert await bus.admin.dead_letters("t") == []


@pytest.mark.parametrize(
    "kind", ["queue", "plain queue", "batches of a queue", "group", "batches of a group", "transactions of a group"]
)
async def test_slow_suspect_keeps_no_other_consumer_waiting(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """After a while the others go on and the suspect is marked as not alone; its own topic keeps to its concurrency."""
    monkeypatch.setattr("postbus._handling.isolation._ALONE_FOR", (0.3,))
    tried, gate = asyncio.Event(), asyncio.Event()
    others: list[int] = []
    begun: list[int] = []
    mine: list[int] = []

    @bus.subscribe("other")
    async def other(n: int) -> None:
        assert await conn.fetchval(_ALONE) is False
        others.append(n)

    async def one(n: int) -> None:
        tried.set()
        begun.append(n)
        await gate.wait()
        mine.append(n)

    async def many(numbers: list[int]) -> None:
        for n in numbers:
            await one(n)

    async def one_within(n: int, conn: Any) -> None:
        await one(n)

    handlers: dict[str, tuple[Any, dict[str, Any]]] = {
        "queue": (one, {"timeout": 60}),
        "plain queue": (one, {}),
        "batches of a queue": (many, {"batch": 5}),
        "group": (one, {}),
        "batches of a group": (many, {"batch": 5}),
        "transactions of a group": (one_within, {"transactional": True}),
    }
    handler, options = handlers[kind]
    if not kind.endswith("queue"):
        await create_log(bus, "t", lanes=1)
        options = {"group": "g", "start": "FROM_BEGINNING", **options}
    bus.subscribe("t", concurrency=1, **options)(handler)
    async with running(bus):
        await (leave_in_queue if kind.endswith("queue") else leave_in_group)(bus, conn)
        await asyncio.wait_for(tried.wait(), 10)
        assert await conn.fetchval(_ALONE) is True
        await bus.send("other", 1)
        await bus.send("t", 3)
        await has(others, 1)
        await asyncio.sleep(0.3)
        assert begun == [1]
        gate.set()

        async def is_done() -> None:
            assert sorted(mine)[-1:] == [3]
            assert await conn.fetch(_ALONE) == []

        await eventually(is_done)
    assert await bus.admin.dead_letters("t") == []


async def test_relay_with_an_unavailable_sink_keeps_no_consumer_waiting(bus: Bus, conn: Any) -> None:
    """Only the relay's suspected message waits for the sink."""
    away = asyncio.Event()
    others: list[int] = []

    class Away:
        keeps_order = False

        async def open(self) -> None:
            away.set()
            raise SinkUnavailable("it is away")

        async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
            raise AssertionError

        async def close(self) -> None:
            pass

    @bus.subscribe("other")
    async def other(n: int) -> None:
        others.append(n)

    await create_log(bus, "t", lanes=1)
    await bus.relay("t", Away(), name="g")
    async with running(bus):
        await leave_in_group(bus, conn)
        await asyncio.wait_for(away.wait(), 10)
        await bus.send("other", 1)
        await has(others, 1)
        assert await conn.fetchval(_ALONE) is False


async def test_suspects_in_hand_together_go_on_together(bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one of several suspects claimed together takes long, the others do not wait for it."""
    monkeypatch.setattr("postbus._handling.isolation._ALONE_FOR", (0.1,))
    gate = asyncio.Event()
    done: list[int] = []

    @bus.subscribe("t", concurrency=2)
    async def suspect(n: int) -> None:
        if n == 1:
            await gate.wait()
        done.append(n)

    async with running(bus):
        await leave_in_queue(bus, conn, count=16)
        await has(done, 15)
        gate.set()
        await has(done, 16)
    assert sorted(done) == list(range(1, 17))


async def test_stop_does_not_wait_for_a_suspect_to_release_the_others(bus: Bus, conn: Any) -> None:
    """Other messages in hand are released at once, and a suspect in hand of a process killed then is not charged."""
    tried, gate = asyncio.Event(), asyncio.Event()

    @bus.subscribe("t")
    async def suspect(n: int) -> None:
        tried.set()
        await gate.wait()

    async with running(bus):
        await leave_in_queue(bus, conn)
        await asyncio.wait_for(tried.wait(), 10)
        bus.stop()

        async def is_not_alone() -> None:
            assert await conn.fetchval(_ALONE) is False

        await eventually(is_not_alone)
        gate.set()
    assert await conn.fetch(_ALONE) == []


async def leave_in_queue(bus: Bus, conn: Any, *, count: int = 2) -> None:
    """Leave messages as a consumer does that had them in hand and has been gone for minutes."""
    async with conn.transaction():
        await conn.execute("select postbus.publish('t', n::text) from generate_series(1, $1::integer) as n", count)
        await conn.execute("select token from postbus.claim('t', 'gone', $1, lease => '1 millisecond')", count)
    await conn.execute("select postbus.return_expired_as_of(as_of => clock_timestamp() + interval '1 second')")
    await conn.execute("update postbus.delayed set due_at = due_at - interval '2 minutes' where trial is not null")


async def leave_in_group(bus: Bus, conn: Any) -> None:
    """Leave a suspected message in the group."""

    async def has_joined() -> None:
        await group_row(conn)

    await eventually(has_joined)
    await conn.execute(
        "insert into postbus.deferred (subscription_id, lane, id, sequence, attempts, suspected, published_at, "
        "content_type, payload) select id, 0, 1, 1, 0, true, now(), 'application/json', '1' from postbus.subscription"
    )
    assert (await group_row(conn))["retrying"] == 1


async def test_suspects_that_take_the_slots_of_a_waiting_claimer_do_not_end_it(bus: Bus) -> None:
    """A claimer gathers free slots for a moment. If suspects take them meanwhile, the claimer waits on."""
    gate = asyncio.Event()

    @bus.subscribe("t", concurrency=4)
    async def handle(n: int) -> None:
        await gate.wait()

    [subscription] = bus.subscriptions
    await bus.send_many("t", list(range(2 * subscription.slots)))
    store = await bus.connect()
    settler = Settler(store, lambda _: None)
    dispatcher = Dispatcher(subscription, store, settler)

    async def claim(count: int) -> tuple[ClaimedLease, list[Message]]:
        claimed = await store.claim("t", member="m", max_count=count)
        assert claimed.token is not None
        lease = ClaimedLease("t", claimed.token, claimed.messages, claimed.length, on_settled=dispatcher.was_settled)
        settler.add(lease)
        return lease, claimed.messages

    in_hand, (suspected, suspects) = await claim(subscription.slots - 1), await claim(2)
    settling = asyncio.create_task(settler.run())
    dispatcher.accept(*in_hand)
    slots = asyncio.create_task(dispatcher.wait_for_slots())
    await asyncio.sleep(0)  # it has found one slot, and gathers more
    trying = asyncio.create_task(dispatcher.try_alone(suspected, deque(suspects)))
    await asyncio.sleep(0.05)

    assert not slots.done()
    gate.set()
    assert await slots > 0
    await trying
    settling.cancel()
    dispatcher.close()
