"""Transactional handlers of groups: effects and cursor commit together, or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from postbus import Bus, Message, Outgoing, Start
from support import log_sql
from support.grouping import SOON, are_listed, create_log, group_row, is_through, publish_numbers
from support.running import running, tasks_are


async def test_effect_and_cursor_commit_together(bus: Bus, conn: Any) -> None:
    """The handler's effect is visible exactly when the group's cursor has passed the message."""
    await create_log(bus, lanes=1)
    await conn.execute("create table effect (n int)")

    @bus.subscribe("t", group="g", transactional=True)
    async def handle(n: int, conn: Any) -> None:
        passed = await conn.fetchval("select max(passed) from postbus.cursor")
        assert passed == await conn.fetchval("select count(*) from effect")
        await conn.execute("insert into effect values ($1)", n)

    async with running(bus):
        await are_listed(conn)
        await publish_numbers(bus, range(20))
        await is_through(conn, passed=20, dead=0)
    assert [row["n"] for row in await conn.fetch("select n from effect order by n")] == list(range(20))


@pytest.mark.parametrize("batch", [None, 5])
async def test_failed_attempt_leaves_no_effect(bus: Bus, conn: Any, batch: int | None) -> None:
    """Each message has one effect in the end, of the attempt that succeeded."""
    await create_log(bus)
    await conn.execute("create table effect (n int, attempt int)")
    failures = 0

    async def work(ns: list[int], messages: list[Message], conn: Any) -> None:
        nonlocal failures
        for n, message in zip(ns, messages, strict=True):
            await conn.execute("insert into effect values ($1, $2)", n, message.attempt)
            if n % 5 == 0 and message.attempt == 1:
                failures += 1
                raise ValueError("undo")

    async def work_one(n: int, message: Message, conn: Any) -> None:
        await work([n], [message], conn)

    options: dict[str, Any] = {"group": "g", "transactional": True, "retry": SOON, "batch": batch}
    bus.subscribe("t", **options)(work if batch else work_one)
    async with running(bus):
        await are_listed(conn)
        await publish_numbers(bus, range(30), keys=6)
        await is_through(conn, passed=30, dead=0, within=20)
    effects = await conn.fetch("select n, attempt from effect order by n")
    assert [row["n"] for row in effects] == list(range(30))
    assert all(row["attempt"] == 2 for row in effects if row["n"] % 5 == 0)
    assert failures == 6 or batch
    row = await group_row(conn)
    assert row["processed"] == 30
    assert row["failed"] >= 6


@pytest.mark.parametrize("attempt", [1, 2])
async def test_lost_connection_undoes_the_effect(bus: Bus, conn: Any, attempt: int) -> None:
    """When the handler's connection breaks, at any attempt, the effect is undone and happens once later."""
    await create_log(bus, lanes=1)
    await conn.execute("create table effect (n int, call int)")
    begun, go_on = asyncio.Event(), asyncio.Event()
    calls = 0

    @bus.subscribe("t", group="g", transactional=True, start=Start.BEGINNING, retry=SOON)
    async def handle(n: int, message: Message, conn: Any) -> None:
        nonlocal calls
        calls += 1
        if message.attempt < attempt:
            raise ValueError
        await conn.execute("insert into effect values ($1, $2)", n, calls)
        if not begun.is_set():
            begun.set()
            await conn.execute("select pg_terminate_backend(pg_backend_pid())")
            await go_on.wait()

    await bus.send("t", 1)
    async with running(bus):
        await begun.wait()
        go_on.set()
        await is_through(conn, passed=1, dead=0)
    assert [tuple(row) for row in await conn.fetch("select n, call from effect")] == [(1, attempt + 1)]


async def test_transactional_handlers_keep_to_the_concurrency(bus: Bus, conn: Any) -> None:
    """However many lanes there are, no more handlers run at a time than the group allows."""
    await create_log(bus)
    running_now = most = 0

    @bus.subscribe("t", group="g", transactional=True, concurrency=2)
    async def handle(n: int, conn: Any) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0.005)
        running_now -= 1

    async with running(bus):
        await are_listed(conn)
        await publish_numbers(bus, range(60), keys=30)
        await is_through(conn, passed=60)
    assert most == 2


async def test_stop_lets_the_transaction_finish(bus: Bus, conn: Any) -> None:
    """A transactional handler that runs when the bus is stopped is not interrupted, and its effect stays."""
    await create_log(bus)
    await conn.execute("create table effect (n int)")
    begun, finish = asyncio.Event(), asyncio.Event()

    @bus.subscribe("t", group="g", transactional=True, start=Start.BEGINNING)
    async def handle(n: int, conn: Any) -> None:
        begun.set()
        await finish.wait()
        await conn.execute("insert into effect values ($1)", n)

    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", [Outgoing(payload=n, key="k") for n in range(3)])
    run = asyncio.create_task(bus.run())
    await begun.wait()
    bus.stop()
    await tasks_are("postbus-read-g", 1)  # the one that is handling, of eight
    finish.set()
    assert await asyncio.wait_for(run, 5) is True
    assert [row["n"] for row in await conn.fetch("select n from effect")] == [0]
    assert (await group_row(conn))["passed"] == 1


@pytest.mark.parametrize("attempt", [1, 2])
async def test_lane_lost_during_a_handler_undoes_the_effect(bus: Bus, conn: Any, attempt: int) -> None:
    """Neither the effect nor the outcome counts when the lane goes to another holder meanwhile.

    At the first attempt the transaction keeps the lane, which is lost only after the connection has broken.
    """
    await create_log(bus, lanes=1)
    await conn.execute("create table effect (n int, call int)")
    begun, go_on = asyncio.Event(), asyncio.Event()
    calls: list[tuple[int, int]] = []

    @bus.subscribe("t", group="g", transactional=True, start=Start.BEGINNING, retry=SOON)
    async def handle(n: int, message: Message, conn: Any) -> None:
        calls.append((n, message.attempt))
        call = len(calls)
        if message.attempt < attempt:
            raise ValueError
        await conn.execute("insert into effect values ($1, $2)", n, call)
        if not begun.is_set():
            begun.set()
            await go_on.wait()
            if attempt == 1:
                await conn.execute("insert into effect values ($1, $2)", n, call)

    await bus.send("t", 1)
    async with running(bus):
        await begun.wait()
        if attempt == 1:
            await conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and state = 'idle in transaction'"
            )
        before = await conn.fetchval("select token from postbus.lane")
        await conn.execute("select postbus.seek('t', 'g', 'FROM_BEGINNING')")  # as a takeover of the lane does
        assert await conn.fetchval("select token from postbus.lane") != before
        go_on.set()
        await is_through(conn, dead=0, lanes_held=1)
    assert [tuple(row) for row in await conn.fetch("select n, call from effect")] == [(1, len(calls))]
    assert calls[:attempt] == [(1, one + 1) for one in range(attempt)]
    assert len(calls) == attempt + 1
    if attempt == 1:
        assert calls[1] == (1, 1), "a failure in a lost lane was counted"


async def test_messages_of_a_lane_lost_before_their_turn_are_not_handled(bus: Bus, conn: Any) -> None:
    """Messages wait for a free slot while their lane goes to another holder."""
    await create_log(bus, lanes=2)
    await conn.execute("create table effect (n int)")
    begun, go_on = asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    @bus.subscribe("t", group="g", transactional=True, start=Start.BEGINNING, concurrency=1)
    async def handle(n: int, conn: Any) -> None:
        calls.append(n)
        await conn.execute("insert into effect values ($1)", n)
        if not begun.is_set():
            begun.set()
            await go_on.wait()

    lanes = await conn.fetch(
        "select 'k' || n as key, postbus.lane_of('k' || n, 2) as lane from generate_series(0, 9) n"
    )
    keys = {row["lane"]: row["key"] for row in lanes}
    for lane in (0, 1):
        await bus.send("t", lane, key=keys[lane])
    async with running(bus):
        await begun.wait()
        other = 1 - calls[0]
        await tasks_are("postbus-read-g", 2)
        await conn.execute(
            "with taken as (update postbus.lane set token = gen_random_uuid(), holder = null where lane = $1) "
            "insert into postbus.cursor (subscription_id, lane, number, cursor, passed) "
            "select subscription_id, lane, number + 1, cursor, passed from postbus.cursor where lane = $1 "
            "order by number desc limit 1",
            other,
        )
        go_on.set()
        await is_through(conn, passed=2, dead=0, lanes_held=2)
    assert Counter(calls) == {0: 1, 1: 1}
    assert Counter(row["n"] for row in await conn.fetch("select n from effect")) == {0: 1, 1: 1}


async def test_message_retried_ahead_of_the_cursor_has_its_effect_once(bus: Bus, conn: Any) -> None:
    """One process defers a message and dies, and the next settles it before the log brings it again."""
    await create_log(bus, lanes=1)
    await conn.execute("create table effect (n int)")
    group = await log_sql.subscribe(conn)
    await publish_numbers(bus, range(60))
    (lane,) = await log_sql.take(conn, "former", group)
    result = await log_sql.read(conn, lane.cursor)
    assert await log_sql.defer(conn, lane, result.after(50), "retry") == ["retried"]
    await log_sql.vanish(conn, "former")

    @bus.subscribe("t", group="g", concurrency=2, transactional=True)
    async def handle(n: int, message: Message, conn: Any) -> None:
        await conn.execute("insert into effect values ($1)", n)
        await asyncio.sleep(0.02)

    async with running(bus):
        await is_through(conn, passed=60)
    assert sorted(row["n"] for row in await conn.fetch("select n from effect")) == list(range(60))
