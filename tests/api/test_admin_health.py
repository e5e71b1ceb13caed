"""Health and metrics of groups, as operators query them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postbus import Bus, GroupNotFound, Retry, Start, TopicNotFound, WrongSemantics
from support.eventually import eventually
from support.grouping import SOON, collect, create_log, is_through, publish_numbers
from support.running import running


async def subscribed(bus: Bus, group: str = "g") -> None:
    await (await bus.connect()).subscribe("t", group, Start.NOW, "block")


async def health(bus: Bus, group: str = "g") -> tuple[bool | None, str | None]:
    row = await bus.admin.group("t", group)
    return row.healthy, row.problem


async def test_working_group_is_healthy(bus: Bus, conn: Any) -> None:
    """It has a heartbeat, its counts, and nothing pending."""
    await create_log(bus)
    got = collect(bus)
    async with running(bus):
        await eventually(subscribed, bus)
        await publish_numbers(bus, range(10))
        await is_through(conn, passed=10)
        row = await bus.admin.group("t", "g")
        assert (row.healthy, row.problem, row.pending, row.state) == (True, None, 0, "ACTIVE")
        assert row.heartbeat_age < 60
    assert len(got) == 10
    assert (await bus.admin.group("t", "g")).processed == 10


async def test_dead_group_is_unhealthy(bus: Bus, conn: Any) -> None:
    """The reason names its state."""
    await create_log(bus)
    await subscribed(bus)
    await conn.execute("update postbus.subscription set state = 'DEAD'")
    healthy, why = await health(bus)
    assert not healthy
    assert why is not None
    assert why.startswith("it is DEAD")


@pytest.mark.parametrize(
    ("silent", "told"),
    [
        (79, None),
        (81, "near its heartbeat timeout: last heartbeat 81 s ago, DEAD after 100 s"),
        (101, "beyond its heartbeat timeout: last heartbeat 101 s ago, DEAD once a sweep has found that"),
    ],
)
async def test_group_near_its_heartbeat_timeout_is_reported(bus: Bus, conn: Any, silent: int, told: str | None) -> None:
    """It is reported from 80 % of the timeout on, and stays alive until a process checks."""
    await create_log(bus, heartbeat_timeout="100s", heartbeat_interval="10s")
    await subscribed(bus)
    await conn.execute("update postbus.subscription set seen_at = clock_timestamp() - $1 * interval '1 s'", silent)

    healthy, why = await health(bus)
    near = await bus.admin.groups_near_timeout()

    assert (healthy, why) == (told is None, told)
    assert [one.group_name for one in near] == (["g"] if told else [])
    remedies = [one.remedy for one in await bus.admin.group_findings() if one.kind == "silent"]
    assert ["postbus groups heartbeat g t" in one for one in remedies] == ([True] if told else [])
    assert [one.group_name for one in await bus.admin.groups_near_timeout(0.5)] == ["g"]


async def test_group_without_progress_is_unhealthy_while_messages_wait(bus: Bus, conn: Any) -> None:
    """It sends heartbeats but does nothing; without messages that is healthy."""
    await create_log(bus)
    await subscribed(bus)
    for table, column in (("subscription", "state_changed_at"), ("cursor", "at")):
        await conn.execute(f"update postbus.{table} set {column} = {column} - interval '1 hour'")
    assert await health(bus) == (True, None)
    await bus.send("t", 1)
    assert await health(bus) == (True, None), "it has just come"
    await conn.execute("update postbus.segment set published_at = published_at - interval '10 minutes'")

    healthy, why = await health(bus)

    assert not healthy
    assert why is not None
    assert why.startswith("no progress for 60")
    assert (await bus.admin.group("t", "g")).pending == 1


async def test_paused_group_is_healthy(bus: Bus, conn: Any) -> None:
    """It is healthy for however long, and whatever waits."""
    await create_log(bus)
    await subscribed(bus)
    await bus.send("t", 1)
    await bus.admin.pause_group("t", "g")
    for table, columns in (("subscription", ("seen_at", "state_changed_at")), ("cursor", ("at",))):
        for column in columns:
            await conn.execute(f"update postbus.{table} set {column} = {column} - interval '1 day'")
    await conn.execute("update postbus.segment set published_at = published_at - interval '1 day'")
    assert await health(bus) == (True, None)
    await bus.admin.cancel_group("t", "g")
    [ended] = await bus.admin.groups("t", cancelled=True)
    assert (ended.healthy, ended.problem, ended.pending) == (None, None, None)


async def test_pending_counts_everything_left_to_do(bus: Bus, conn: Any) -> None:
    """It is the sum of the lag, retried messages and those parked behind them."""
    await create_log(bus, lanes=1)

    @bus.subscribe("t", group="g")
    async def handle(n: int) -> Retry | None:
        return Retry(delay=3600) if n == 0 else None

    async with running(bus):
        await eventually(subscribed, bus)
        await publish_numbers(bus, range(3), keys=1)
        row = await is_through(conn, retrying=1, parked=2)
        assert row["pending"] == 3
    await bus.send("t", 4)
    assert (await bus.admin.group("t", "g")).pending == 4


@pytest.mark.parametrize("options", [{}, {"batch": 10}, {"transactional": True}, {"concurrency": 4}])
async def test_group_metrics_count_and_time_every_kind_of_handler(bus: Bus, conn: Any, options: dict[str, Any]) -> None:
    """They show processed and failed calls, the time per call and the rate."""
    await create_log(bus)
    took, took_all = 0.02, 0.0
    has_failed = False
    loop = asyncio.get_running_loop()

    async def work(numbers: list[int]) -> None:
        nonlocal took_all, has_failed
        began = loop.time()
        await asyncio.sleep(took)
        took_all += loop.time() - began
        if 3 in numbers and not has_failed:
            has_failed = True
            raise ValueError("once")

    async def one(n: int) -> None:
        await work([n])

    async def many(ns: list[int]) -> None:
        await work(ns)

    async def in_transaction(n: int, conn: Any) -> None:
        await work([n])

    handler = many if "batch" in options else in_transaction if "transactional" in options else one
    bus.subscribe("t", group="g", retry=SOON, **options)(handler)
    async with running(bus):
        await eventually(subscribed, bus)
        await publish_numbers(bus, range(10))
        await is_through(conn)
        assert (await bus.admin.group_metrics("t", "g")).rate > 0

    told = await bus.admin.group_metrics("t", "g")

    assert told.processed == 10
    assert 1 <= told.failed <= 10
    assert (told.lag, told.pending, told.oldest_pending_at, told.in_flight) == (0, 0, None, 0)
    calls = told.processed + told.failed
    assert told.handling_ms is not None
    assert took_all * 1000 / calls <= told.handling_ms < took_all * 1000 / calls + 50
    [member] = await bus.admin.members("t", "g")
    assert member.handling_ms == told.handling_ms


async def test_rate_covers_the_last_minute(bus: Bus, conn: Any) -> None:
    """It comes from the ledger: sixty messages within the minute count, and earlier ones do not."""
    await create_log(bus, lanes=1)
    collect(bus)
    async with running(bus):
        await eventually(subscribed, bus)
        await publish_numbers(bus, range(40))
        await is_through(conn, passed=40)
        await conn.execute("update postbus.cursor set at = at - interval '2 minutes'")
        await conn.execute("update postbus.subscription set subscribed_at = subscribed_at - interval '3 minutes'")
        assert (await bus.admin.group_metrics("t", "g")).rate == 0
        await publish_numbers(bus, range(60))
        await is_through(conn, passed=100)
        assert (await bus.admin.group_metrics("t", "g")).rate == pytest.approx(1.0, abs=0.01)


async def test_oldest_pending_message_is_known_before_any_is_handled(bus: Bus) -> None:
    """Rate and duration are not known yet."""
    await create_log(bus)
    await subscribed(bus)
    for n in range(2):
        await bus.send("t", n)
    told = await bus.admin.group_metrics("t", "g")
    assert told.oldest_pending_at == min(one.published_at for one in await bus.admin.log("t"))
    assert (told.rate, told.handling_ms, told.lag > 0) == (0, None, True)


async def test_metrics_of_missing_groups_are_refused(bus: Bus) -> None:
    """The error says which part does not exist."""
    await create_log(bus)
    await bus.admin.create_topic("queue")
    for topic, kind in (("t", GroupNotFound), ("nowhere", TopicNotFound), ("queue", WrongSemantics)):
        with pytest.raises(kind):
            await bus.admin.group_metrics(topic, "nobody")


async def test_killed_worker_is_not_counted_after_thirty_seconds(bus: Bus, conn: Any) -> None:
    """Views, the groups' workers and lanes, and the health of sweeping agree that it is gone."""
    await create_log(bus, lanes=2)
    await subscribed(bus)
    await conn.execute("select postbus.heartbeat('killed', 'host', 1, '{t}')")
    await conn.execute("update postbus.lane set holder = 'killed', held_since = clock_timestamp()")

    async def counted() -> tuple[Any, ...]:
        row = await bus.admin.group("t", "g")
        [worker] = await bus.admin.workers()
        return worker.is_alive, row.workers, row.lanes_held, (await bus.admin.sweep_health()).processes

    assert await counted() == (True, ["killed"], 2, 1)
    await conn.execute("update postbus.worker set seen_at = clock_timestamp() - interval '20 seconds'")
    assert await counted() == (True, ["killed"], 2, 1), "two heartbeats may be lost"
    await conn.execute("update postbus.worker set seen_at = clock_timestamp() - interval '30 seconds'")
    assert await counted() == (False, [], 0, 0)
