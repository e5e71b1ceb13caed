"""Pausing: after the call has returned, no handler of this process begins another message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from postbus import Bus, Group, Start
from support.eventually import eventually
from support.grouping import SOON, create_log, has, is_through, publish_numbers
from support.running import running

Halt = Callable[[Bus, Group], Awaitable[None]]


async def pause(bus: Bus, group: Group) -> None:
    await group.pause()


async def cancel(bus: Bus, group: Group) -> None:
    await group.cancel()


async def stop(bus: Bus, group: Group) -> None:
    await group.stop()


async def pause_as_operator(bus: Bus, group: Group) -> None:
    await bus.admin.pause_group("t", "g")


async def pause_by_another_bus(bus: Bus, group: Group) -> None:
    async with Bus.open(bus.dsn) as other:
        await other.admin.pause_group("t", "g")


async def cancel_by_another_bus(bus: Bus, group: Group) -> None:
    async with Bus.open(bus.dsn) as other:
        await other.group("g", "t").cancel()


async def cancel_as_operator(bus: Bus, group: Group) -> None:
    await bus.admin.cancel_group("t", "g")


@pytest.mark.parametrize(
    "halt",
    [pause, cancel, stop, pause_as_operator, cancel_as_operator, pause_by_another_bus, cancel_by_another_bus],
)
@pytest.mark.parametrize("kind", ["single", "batch", "transactional"])
async def test_halted_group_begins_no_further_message(bus: Bus, conn: Any, halt: Halt, kind: str) -> None:
    """This applies to new messages, to messages read ahead and to retries."""
    await create_log(bus, lanes=2)
    begun: list[int] = []

    async def work(n: int) -> None:
        begun.append(n)
        if n == 1:
            raise ValueError("once more")
        await asyncio.sleep(0.005)

    async def one(n: int) -> None:
        await work(n)

    async def many(numbers: list[int]) -> None:
        for n in numbers:
            await work(n)

    async def in_transaction(n: int, conn: Any) -> None:
        await work(n)

    handlers: dict[str, tuple[Any, dict[str, Any]]] = {
        "single": (one, {"concurrency": 4}),
        "batch": (many, {"concurrency": 2, "batch": 1}),
        "transactional": (in_transaction, {"transactional": True}),
    }
    handler, options = handlers[kind]
    group = bus.group("g", "t", **options)
    group.add_member("m", handler)
    await publish_numbers(bus, range(2000), keys=50)
    async with running(bus):
        await group.start(Start.BEGINNING)
        await has(begun, 10)
        await halt(bus, group)
        before = len(begun)
        assert before < 2000
        await publish_numbers(bus, range(2000, 2010), keys=50)
        await asyncio.sleep(0.5)  # as long as it once went on
        assert len(begun) == before


async def test_resumed_group_gets_the_messages_it_has_not_had(bus: Bus, conn: Any) -> None:
    """Messages read ahead when it was paused come once after it resumes."""
    await create_log(bus, lanes=2)
    got: list[int] = []

    async def handle(n: int) -> None:
        await asyncio.sleep(0.002)
        got.append(n)

    group = bus.group("g", "t", concurrency=4)
    group.add_member("m", handle)
    await publish_numbers(bus, range(500), keys=20)
    async with running(bus):
        await group.start(Start.BEGINNING)
        await has(got, 10)
        await group.pause()
        await group.resume()
        await is_through(conn, passed=500, within=30)
    assert sorted(got) == list(range(500))


async def test_retry_waiting_for_a_transaction_does_not_begin_after_a_pause(bus: Bus, conn: Any) -> None:
    """It was due before the pause while another message had the only slot, and it is charged no attempt."""
    await create_log(bus, lanes=1)
    begun: list[int] = []
    may_end = asyncio.Event()

    async def handle(n: int, conn: Any) -> None:
        begun.append(n)
        if begun == [0]:
            raise ValueError("once more")
        if n == 1:
            await may_end.wait()

    group = bus.group("g", "t", transactional=True, retry=SOON)
    group.add_member("m", handle)
    await publish_numbers(bus, range(2))
    async with running(bus):
        await group.start(Start.BEGINNING)
        await has(begun, 2)

        async def is_claimed() -> None:
            assert await conn.fetchval("select attempts from postbus.deferred where alone is not null") == 2

        await eventually(is_claimed)
        await group.pause()
        may_end.set()

        async def is_given_back() -> None:
            assert await conn.fetchval("select attempts from postbus.deferred where alone is null") == 1

        await eventually(is_given_back)
        assert begun == [0, 1]
        await group.resume()
        await has(begun, 3)
    assert begun == [0, 1, 0]


async def test_paused_batch_ends_with_the_member_that_has_begun(bus: Bus, conn: Any) -> None:
    """Another member's part of the batch comes when the group resumes, and handled messages do not come again."""
    await create_log(bus, lanes=1)
    begun: list[list[int]] = []
    may_end = asyncio.Event()

    async def even(numbers: list[int]) -> None:
        begun.append(numbers)
        await may_end.wait()

    async def odd(numbers: list[int]) -> None:
        begun.append(numbers)

    group = bus.group("g", "t", batch=10)
    group.add_member("even", even, filter=lambda message: int(message.payload) % 2 == 0)
    group.add_member("odd", odd, filter=lambda message: int(message.payload) % 2 == 1)
    await publish_numbers(bus, range(10))
    async with running(bus):
        await group.start(Start.BEGINNING)
        await has(begun, 1)
        await group.pause()
        may_end.set()

        async def are_free() -> None:
            assert not (await bus.admin.group("t", "g")).lanes_held

        await eventually(are_free)
        assert begun == [[0, 2, 4, 6, 8]]
        await group.resume()
        await is_through(conn, passed=10, within=30)
    assert begun == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


@pytest.mark.parametrize("transactional", [False, True])
async def test_paused_queue_begins_no_further_message(bus: Bus, conn: Any, transactional: bool) -> None:
    """Claimed messages that have not begun are released as they were."""
    begun: list[int] = []

    async def handle(n: int) -> None:
        begun.append(n)
        await asyncio.sleep(0.01)

    async def in_transaction(n: int, conn: Any) -> None:
        await handle(n)

    await bus.admin.create_topic("t")
    chosen: Any = in_transaction if transactional else handle
    bus.subscribe("t", concurrency=2, transactional=transactional)(chosen)
    await publish_numbers(bus, range(500))
    async with running(bus):
        await has(begun, 10)
        await bus.admin.pause_topic("t")
        before = len(begun)
        await asyncio.sleep(0.3)
        assert len(begun) == before

        async def is_settled() -> None:
            assert await conn.fetchval("select count(*) from postbus.lease") == 0

        await eventually(is_settled)
        assert await conn.fetchval("select count(*) from postbus.queued where attempts = 0") == 500 - before
        await bus.admin.resume_topic("t")
        await has(begun, 500, within=30)
    assert sorted(begun) == list(range(500))
