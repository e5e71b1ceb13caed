"""Transactional handlers: the effect and the settlement commit together."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec
import pytest

from postbus import Bus, DeadLetter, Message, Retry, RetryPolicy
from support.eventually import eventually
from support.queue_sql import states
from support.running import running

SOON = RetryPolicy(initial=0.001, factor=1, maximum=0.001, max_attempts=3)


class Order(msgspec.Struct):
    id: int


@pytest.fixture(autouse=True)
async def effects(conn: Any) -> None:
    await conn.execute("create table effect (id int, attempt int, unique (id) deferrable initially deferred)")


async def effects_of(conn: Any) -> list[tuple[int, int]]:
    return [tuple(row) for row in await conn.fetch("select id, attempt from effect order by id, attempt")]


async def settled(conn: Any, **expected: int) -> None:
    async def as_expected() -> None:
        assert await states(conn) == expected

    await eventually(as_expected)


async def test_effect_and_settlement_commit_together(bus: Bus, conn: Any) -> None:
    """The handler writes on the connection whose transaction settles its message."""

    @bus.subscribe("t", transactional=True, concurrency=4)
    async def handle(order: Order, message: Message, conn: Any) -> None:
        await conn.execute("insert into effect values ($1, $2)", order.id, message.attempt)
        leased = await conn.fetchval("select count(*) from postbus.lease where $1 = any (open_ids)", message.id)
        assert leased == 1

    async with running(bus):
        for n in range(20):
            await bus.send("t", Order(n))
        await settled(conn)
    assert await effects_of(conn) == [(n, 1) for n in range(20)]


async def test_error_rolls_the_effect_back(bus: Bus, conn: Any) -> None:
    """The effect of a failed attempt is undone, and that of the successful attempt counts."""

    @bus.subscribe("t", transactional=True, retry=SOON)
    async def handle(order: Order, message: Message, conn: Any) -> Any:
        await conn.execute("insert into effect values ($1, $2)", order.id, message.attempt)
        if message.attempt == 1:
            raise RuntimeError("undo")
        return Retry(delay=0) if message.attempt == 2 else None

    async with running(bus):
        await bus.send("t", Order(1))
        await settled(conn)
    assert await effects_of(conn) == [(1, 3)]


async def test_dead_letter_rolls_the_effect_back(bus: Bus, conn: Any) -> None:
    """A message that is given up leaves no effect."""

    @bus.subscribe("t", transactional=True)
    async def handle(order: Order, conn: Any) -> DeadLetter:
        await conn.execute("insert into effect values ($1, 1)", order.id)
        return DeadLetter("no")

    async with running(bus):
        await bus.send("t", Order(1))
        await settled(conn, dead=1)
    assert await effects_of(conn) == []


async def test_lost_lease_rolls_the_effect_back(bus: Bus, conn: Any) -> None:
    """When the message has gone to another consumer meanwhile, the handler's effect does not happen."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    calls = 0

    @bus.subscribe("t", transactional=True)
    async def handle(order: Order, conn: Any) -> None:
        nonlocal calls
        calls += 1
        await conn.execute("insert into effect values ($1, $2)", order.id, calls)
        if not begun.is_set():
            begun.set()
            await go_on.wait()

    async with running(bus):
        await bus.send("t", Order(1))
        await begun.wait()
        returned = await conn.fetchval(
            "select postbus.return_expired_as_of(as_of => clock_timestamp() + interval '1 day')"
        )
        assert returned == 1
        go_on.set()
        await settled(conn)
    assert await effects_of(conn) == [(1, 2)]


async def test_error_at_commit_is_an_error_of_the_handler(bus: Bus, conn: Any) -> None:
    """A deferred constraint that fails at COMMIT undoes everything, and the message is retried."""
    await conn.execute("insert into effect values (1, 0)")

    @bus.subscribe("t", transactional=True, retry=SOON)
    async def handle(order: Order, message: Message, conn: Any) -> None:
        await conn.execute("insert into effect values ($1, $2)", order.id, message.attempt)

    async with running(bus):
        await bus.send("t", Order(1))
        await settled(conn, dead=1)
    assert await effects_of(conn) == [(1, 0)]
    assert "effect_id_key" in ((await bus.admin.dead_letters("t"))[0].last_error or "")


async def test_batch_commits_as_one(bus: Bus, conn: Any) -> None:
    """All effects of a batch happen with the settlement of all its messages, or none does."""
    rounds = 0

    @bus.subscribe("t", transactional=True, batch=5, retry=SOON)
    async def handle(orders: list[Order], messages: list[Message], conn: Any) -> None:
        nonlocal rounds
        rounds += 1
        for order, message in zip(orders, messages, strict=True):
            await conn.execute("insert into effect values ($1, $2)", order.id, message.attempt)
        if rounds == 1:
            raise RuntimeError("undo")

    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", [Order(n) for n in range(5)])
    async with running(bus):
        await settled(conn)
    assert await effects_of(conn) == [(n, 2) for n in range(5)]


async def test_publishing_in_the_handlers_transaction_is_part_of_it(bus: Bus, conn: Any) -> None:
    """The next message exists if and only if this one is settled."""

    @bus.subscribe("t", transactional=True, retry=SOON)
    async def handle(order: Order, message: Message, conn: Any) -> None:
        await bus.publish(conn, "next", {"from": message.attempt})
        if message.attempt == 1:
            raise RuntimeError("undo")

    async with running(bus):
        await bus.send("t", Order(1))

        async def one_is_next() -> None:
            assert [one.payload for one in await bus.admin.messages("next")] == [b'{"from":2}']

        await eventually(one_is_next)
        await settled(conn, waiting=1)


async def test_serialization_failure_is_retried_by_policy(bus: Bus, conn: Any) -> None:
    """A transient error in the handler's transaction undoes it, and the message comes back."""
    attempts = []

    @bus.subscribe("t", transactional=True, retry=SOON)
    async def handle(order: Order, message: Message, conn: Any) -> None:
        attempts.append(message.attempt)
        await conn.execute("insert into effect values ($1, $2)", order.id, message.attempt)
        if message.attempt == 1:
            await conn.execute("do $$ begin raise exception 'no' using errcode = '40001'; end $$")

    async with running(bus):
        await bus.send("t", Order(1))
        await settled(conn)
    assert attempts == [1, 2]
    assert await effects_of(conn) == [(1, 2)]


@pytest.mark.parametrize("topic", ["queue", "log"])
@pytest.mark.parametrize("ends", ["commit", "rollback", "commit; begin", "commit and chain", "rollback and chain"])
async def test_handler_that_ends_its_transaction_fails(bus: Bus, conn: Any, topic: str, ends: str) -> None:
    """Its message is not acknowledged: every attempt fails, and the dead letter says why."""
    await bus.admin.create_topic("log", semantics="PUB_SUB")
    group: dict[str, Any] = {"group": "g", "start": "FROM_BEGINNING"} if topic == "log" else {}
    attempts: list[int] = []

    @bus.subscribe(topic, transactional=True, retry=SOON, **group)
    async def handle(n: int, message: Message, conn: Any) -> None:
        attempts.append(message.attempt)
        await conn.execute(ends)
        if message.attempt == 2:
            await conn.execute("select 1")

    async with running(bus):
        await bus.send(topic, 1)

        async def is_dead() -> None:
            letters = await bus.admin.dead_letters(topic)
            assert [("COMMIT or ROLLBACK inside it" in str(one)) for one in letters] == [True]

        await eventually(is_dead)
    assert attempts == [1, 2, 3]


async def test_worker_continues_after_a_handler_ended_its_transaction(bus: Bus, conn: Any) -> None:
    """Its connection serves other handlers, and a savepoint does not count as the end of a transaction."""

    @bus.subscribe("t", transactional=True, retry=SOON)
    async def handle(order: Order, message: Message, conn: Any) -> None:
        async with conn.transaction():
            await conn.execute("insert into effect values ($1, $2)", order.id, message.attempt)
        if order.id % 2 and message.attempt == 1:
            await conn.execute("rollback")

    async with running(bus):
        for n in range(6):
            await bus.send("t", Order(n))
        await settled(conn)
    assert await effects_of(conn) == [(n, 1 + n % 2) for n in range(6)]


@pytest.mark.parametrize("topic", ["queue", "log"])
@pytest.mark.parametrize("batch", [None, 5])
async def test_handler_that_swallows_a_database_error_fails(bus: Bus, conn: Any, topic: str, batch: int | None) -> None:
    """The server would answer its COMMIT with ROLLBACK: nothing is acknowledged, and its effects are undone."""
    await bus.admin.create_topic("log", semantics="PUB_SUB")
    group: dict[str, Any] = {"group": "g", "start": "FROM_BEGINNING"} if topic == "log" else {}

    async def spoil(conn: Any) -> None:
        await conn.execute("insert into effect values (1, 1)")
        with suppress(asyncpg.PostgresError):
            await conn.execute("select 1 / 0")

    if batch is None:

        @bus.subscribe(topic, transactional=True, retry=SOON, **group)
        async def handle(n: int, conn: Any) -> None:
            await spoil(conn)

    else:

        @bus.subscribe(topic, transactional=True, retry=SOON, batch=batch, **group)
        async def handle_batch(numbers: list[int], conn: Any) -> None:
            await spoil(conn)

    async with running(bus):
        await bus.send_many(topic, [1, 2])

        async def are_dead() -> None:
            assert len(await bus.admin.dead_letters(topic)) == 2

        await eventually(are_dead)
    assert await effects_of(conn) == []
