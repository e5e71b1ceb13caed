"""From publishing to handling: what handlers get, and what their outcomes do."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from postbus import Bus, DeadLetter, Message, Middleware, Outgoing, Retry, RetryPolicy
from support.eventually import eventually
from support.queue_sql import states
from support.running import running

SOON = RetryPolicy(initial=0.001, factor=1, maximum=0.001, max_attempts=3)


class Order(msgspec.Struct):
    id: int
    note: str = ""


@dataclass
class Payment:
    amount: int


async def all_done(conn: Any) -> None:
    """Wait until no message is waiting, leased or delayed."""

    async def nothing_left() -> None:
        left = await states(conn)
        assert not {state: count for state, count in left.items() if state not in ("dead", "finished")}

    await eventually(nothing_left)


async def test_published_message_reaches_its_handler(bus: Bus, conn: Any) -> None:
    """The typed payload and the message arrive after the commit, and the message is gone afterwards."""
    got: list[tuple[Order, Message]] = []

    @bus.subscribe("orders")
    async def ship(order: Order, message: Message) -> None:
        got.append((order, message))

    async with running(bus):
        async with conn.transaction():
            published = await bus.publish(
                conn, "orders", Order(7, "x"), key="k", headers={"h": "v"}, correlation_id="c", priority=6
            )
        await all_done(conn)

    ((order, message),) = got
    assert order == Order(7, "x")
    assert (message.id, message.topic, message.key, message.attempt) == (published, "orders", "k", 1)
    assert (message.headers, message.correlation_id, message.priority) == ({"h": "v"}, "c", 6)
    assert message.content_type == "application/json"


async def test_sync_handlers_run_in_threads(bus: Bus, conn: Any) -> None:
    """Each sync handler runs in a thread of its own, several at a time."""
    barrier = threading.Barrier(3, timeout=10)
    names = []

    @bus.subscribe("t", concurrency=3)
    def handle(payment: Payment) -> None:
        barrier.wait()
        names.append(threading.current_thread().name)

    async with running(bus):
        for amount in range(3):
            await bus.send("t", Payment(amount))
        await all_done(conn)

    assert len(set(names)) == 3
    assert all(name.startswith("postbus-t") for name in names)


async def test_batch_handler_gets_waiting_messages_together(bus: Bus, conn: Any) -> None:
    """The handler gets no more payloads than asked for, and their messages beside them."""
    sizes = []

    @bus.subscribe("t", batch=10)
    async def handle(orders: list[Order], messages: list[Message]) -> None:
        assert [order.id for order in orders] == [int(message.key or -1) for message in messages]
        sizes.append(len(orders))

    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", [Outgoing(payload=Order(n), key=str(n)) for n in range(25)])
    async with running(bus):
        await all_done(conn)

    assert sum(sizes) == 25
    assert sizes[0] == 10


async def test_batch_handler_may_return_an_outcome_per_message(bus: Bus, conn: Any) -> None:
    """Each message is settled by its own outcome."""
    attempts: dict[int, int] = {}

    @bus.subscribe("t", batch=10)
    async def handle(orders: list[Order], messages: list[Message]) -> list[Any]:
        attempts.update((order.id, message.attempt) for order, message in zip(orders, messages, strict=True))
        return [
            Retry(delay=0) if order.id == 1 and message.attempt == 1 else DeadLetter("no") if order.id == 2 else None
            for order, message in zip(orders, messages, strict=True)
        ]

    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", [Order(n) for n in range(3)])
    async with running(bus):
        await all_done(conn)

    assert attempts == {0: 1, 1: 2, 2: 1}
    assert [json.loads(dead.payload) for dead in await bus.admin.dead_letters("t")] == [{"id": 2, "note": ""}]


async def test_error_is_retried_by_policy(bus: Bus, conn: Any) -> None:
    """A handler that raises gets the message again until its attempts are used up, and the error is kept."""
    attempts = []

    @bus.subscribe("t", retry=SOON)
    async def handle(order: Order, message: Message) -> None:
        attempts.append(message.attempt)
        raise ValueError("boom \0 \ud800")  # the text of an error may hold any character

    async with running(bus):
        await bus.send("t", Order(1))
        await all_done(conn)

    assert attempts == [1, 2, 3]
    (dead,) = await bus.admin.dead_letters("t")
    assert dead.attempts == 3
    assert "ValueError: boom" in (dead.last_error or "")


async def test_topics_retry_policy_applies_without_one_of_the_subscription(bus: Bus, conn: Any) -> None:
    """`max_attempts` and the delays come from the topic."""
    await bus.admin.create_topic("t", max_attempts=2, retry_initial="1ms", retry_max="1ms")
    attempts = []

    @bus.subscribe("t")
    async def handle(order: Order, message: Message) -> None:
        attempts.append(message.attempt)
        raise RuntimeError

    async with running(bus):
        await bus.send("t", Order(1))
        await all_done(conn)

    assert attempts == [1, 2]


async def test_outcomes_are_values(bus: Bus, conn: Any) -> None:
    """Retry with a delay comes back, and DeadLetter gives up at once with its reason."""
    attempts = []

    @bus.subscribe("t")
    async def handle(order: Order, message: Message) -> Retry | DeadLetter:
        attempts.append(message.attempt)
        return Retry(delay=timedelta(milliseconds=1)) if message.attempt < 3 else DeadLetter("enough")

    async with running(bus):
        await bus.send("t", Order(1))
        await all_done(conn)

    assert attempts == [1, 2, 3]
    assert (await bus.admin.dead_letters("t"))[0].reason == "enough"


async def test_return_value_that_is_no_outcome_makes_a_dead_letter(bus: Bus, conn: Any) -> None:
    """The dead letter says which value the handler returned by mistake."""

    @bus.subscribe("t")
    async def handle(order: Order) -> Any:
        return "done"

    async with running(bus):
        await bus.send("t", Order(1))
        await all_done(conn)

    assert "'done', which is not an outcome" in ((await bus.admin.dead_letters("t"))[0].reason or "")


@pytest.mark.parametrize("batch", [None, 10])
async def test_undecodable_payload_is_a_dead_letter_at_once(bus: Bus, conn: Any, batch: int | None) -> None:
    """The reason says what did not fit, and the other messages are handled."""
    got = []

    async def one(order: Order) -> None:
        got.append(order.id)

    async def many(orders: list[Order]) -> None:
        got.extend(order.id for order in orders)

    bus.subscribe("t", batch=batch)(many if batch else one)
    async with running(bus):
        await bus.send("t", {"id": "seven"})
        await bus.send("t", b"\xff\xfe")
        await bus.send("t", Order(1))
        await all_done(conn)

    assert got == [1]
    reasons = [dead.reason or "" for dead in await bus.admin.dead_letters("t")]
    assert "Expected `int`, got `str` - at `$.id`" in reasons[0]
    assert "does not decode" in reasons[1]
    assert [dead.attempts for dead in await bus.admin.dead_letters("t")] == [1, 1]


async def test_timeout_cancels_the_handler(bus: Bus, conn: Any) -> None:
    """A handler that takes too long is cancelled, and the message is retried."""
    attempts = []

    @bus.subscribe("t", timeout=0.05, retry=SOON)
    async def handle(order: Order, message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            await asyncio.Event().wait()

    async with running(bus):
        await bus.send("t", Order(1))
        await all_done(conn)

    assert attempts == [1, 2]


async def test_claims_never_exceed_the_free_slots(bus: Bus, conn: Any) -> None:
    """With concurrency 3, at most 3 of 50 messages are in hand at any time, and as many are being settled."""
    most, go = 0, asyncio.Semaphore(0)

    @bus.subscribe("t", concurrency=3)
    async def handle(order: Order) -> None:
        await go.acquire()

    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", [Order(n) for n in range(50)])
    async with running(bus):

        async def full() -> None:
            assert (await bus.admin.topic("t")).leased == 3

        await eventually(full)
        await full()
        for _ in range(50):
            most = max(most, (await bus.admin.topic("t")).leased)
            go.release()
        await all_done(conn)

    assert most <= 6


async def test_lease_is_extended_while_its_handler_runs(bus: Bus, conn: Any) -> None:
    """A handler that takes longer than the lease keeps the message, and settles it."""
    begun, finish = asyncio.Event(), asyncio.Event()
    attempts = []

    @bus.subscribe("t", lease="1s")
    async def handle(order: Order, message: Message) -> None:
        attempts.append(message.attempt)
        begun.set()
        await finish.wait()

    async with running(bus):
        await bus.send("t", Order(1))
        await begun.wait()
        first_end = await conn.fetchval("select ends_at from postbus.lease")

        async def prolonged() -> None:
            assert await conn.fetchval("select ends_at from postbus.lease") > first_end + timedelta(seconds=1)

        await eventually(prolonged)
        finish.set()
        await all_done(conn)
    assert attempts == [1]


async def test_middleware_surrounds_handlers(bus: Bus, conn: Any) -> None:
    """Hooks run in the order they were added, the first outermost, and see the outcome and errors."""
    calls = []

    class Named(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        async def handling(self, messages: Any, call_next: Any) -> Any:
            calls.append(f"{self.name} before {messages[0].key}")
            try:
                return await call_next()
            finally:
                calls.append(f"{self.name} after")

    bus.use(Named("outer"))
    bus.use(Named("inner"))

    @bus.subscribe("t")
    async def handle(order: Order) -> None:
        calls.append("handler")

    async with running(bus):
        await bus.send("t", Order(1), key="k")
        await all_done(conn)

    assert calls == ["outer before k", "inner before k", "handler", "inner after", "outer after"]


async def test_ordered_topic_keeps_order_per_key_despite_failures(bus: Bus, conn: Any) -> None:
    """Each key's messages are handled one after the other."""
    await bus.admin.create_topic("t", ordered=True, retry_initial="1ms", retry_max="1ms")
    got: dict[str, list[int]] = {key: [] for key in "abc"}
    busy: set[str] = set()

    @bus.subscribe("t", concurrency=8)
    async def handle(order: Order, message: Message) -> None:
        assert message.key is not None
        assert message.key not in busy
        busy.add(message.key)
        await asyncio.sleep(0)
        busy.discard(message.key)
        if order.id % 7 == 0 and message.attempt == 1:
            raise RuntimeError("later")
        got[message.key].append(order.id)

    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", [Outgoing(payload=Order(n), key="abc"[n % 3]) for n in range(60)])
    async with running(bus):
        await all_done(conn)

    assert got == {key: [n for n in range(60) if "abc"[n % 3] == key] for key in "abc"}


async def test_delayed_message_is_handled_when_due(bus: Bus, conn: Any) -> None:
    """A worker knows when the next delayed message is due, and does not wait for its poll."""
    loop = asyncio.get_running_loop()
    handled = []

    @bus.subscribe("t", poll=30)
    async def handle(order: Order) -> None:
        handled.append(loop.time())

    async with running(bus):
        began = loop.time()
        await bus.send("t", Order(1), delay=0.3)
        await all_done(conn)

    assert 0.29 < handled[0] - began < 3
