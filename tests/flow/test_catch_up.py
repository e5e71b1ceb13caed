"""Groups that are behind: history beside new messages, throttled, resumable and within bounds."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from postbus import Bus, CatchUp, InvalidOption, Start
from support.eventually import eventually
from support.grouping import are_listed, collect, create_log, group_row, has, is_through, look_often, publish_numbers
from support.running import running

BESIDE = CatchUp(beside_from=10)


async def catch_up(conn: Any, group: str = "g") -> Any:
    return await conn.fetchrow("select * from postbus.catch_ups where group_name = $1", group)


async def has_caught_up(conn: Any, group: str = "g") -> None:
    """Wait for the sweep that ends a catch-up."""

    async def is_completed() -> None:
        for storage in await conn.fetch("select id from postbus.log_storage"):
            await conn.execute("select postbus.sweep_log($1)", storage["id"])
        row = await catch_up(conn, group)
        assert row is not None
        assert (row["status"], row["processed"]) == ("COMPLETED", row["total"])

    await eventually(is_completed, within=20)


@pytest.mark.parametrize("options", [{}, {"batch": 50}, {"concurrency": 8}, {"transactional": True}])
async def test_history_and_live_messages_come_once_each(bus: Bus, conn: Any, options: dict[str, Any]) -> None:
    """This holds for every kind of handler, and each of the two parts keeps the order per key."""
    await create_log(bus)
    await publish_numbers(bus, range(500), keys=7)
    got: list[int] = []

    async def one(n: int) -> None:
        got.append(n)

    async def many(ns: list[int]) -> None:
        got.extend(ns)

    async def in_transaction(n: int, conn: Any) -> None:
        got.append(n)

    handler = many if "batch" in options else in_transaction if "transactional" in options else one
    bus.subscribe("t", group="g", start=Start.BEGINNING, catch_up=BESIDE, **options)(handler)
    async with running(bus):
        await are_listed(conn, 2)
        await publish_numbers(bus, range(500, 600), keys=7)
        await has_caught_up(conn)
        await is_through(conn, passed=100)
    assert Counter(got) == Counter(range(600))
    for part in (range(500), range(500, 600)):
        for key in range(7):
            numbers = [n for n in got if n in part and n % 7 == key]
            assert numbers == sorted(numbers)


async def test_live_messages_do_not_wait_for_history(bus: Bus, conn: Any) -> None:
    """While a handler is stuck in history, new messages are handled."""
    await create_log(bus)
    await publish_numbers(bus, range(100), keys=5)
    stuck = asyncio.Event()
    live: list[int] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING, catch_up=BESIDE)
    async def handle(n: int) -> None:
        if n < 100:
            await stuck.wait()
        else:
            live.append(n)

    async with running(bus):
        await are_listed(conn, 2)
        await publish_numbers(bus, range(100, 120), keys=5)
        await has(live, 20)
        assert (await catch_up(conn))["status"] == "IN_PROGRESS"
        stuck.set()
        await has_caught_up(conn)


async def test_catch_up_keeps_its_max_rate(bus: Bus, conn: Any) -> None:
    """A hundred messages at 200 a second take about half a second, not less."""
    await create_log(bus)
    await publish_numbers(bus, range(100), at_once=10)
    loop = asyncio.get_running_loop()
    times: list[float] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING, catch_up=CatchUp(beside_from=10, max_rate=200, batch_size=10))
    async def handle(n: int) -> None:
        times.append(loop.time())

    async with running(bus):
        await has_caught_up(conn)
    assert len(times) == 100
    assert times[-1] - times[0] >= 0.3
    assert (await catch_up(conn))["skipped"] == 0


async def test_cancelled_and_resumed_catch_up_loses_nothing(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New messages are handled while the catch-up is cancelled, and each message comes once."""
    look_often(monkeypatch)
    await create_log(bus)
    await publish_numbers(bus, range(300), at_once=10)
    got: list[int] = []
    go_on = asyncio.Semaphore(50)

    @bus.subscribe("t", group="g", start=Start.BEGINNING, catch_up=CatchUp(beside_from=10, batch_size=20))
    async def handle(n: int) -> None:
        await go_on.acquire()
        got.append(n)

    async with running(bus):
        await has(got, 50)
        await bus.admin.cancel_catch_up("t", "g")

        async def is_let_go() -> None:
            go_on.release()  # the running handler, until it is told
            row = await catch_up(conn)
            holders = await conn.fetchval(
                "select count(holder) from postbus.lane where subscription_id = $1", row["subscription_id"]
            )
            assert (row["status"], holders) == ("CANCELLED", 0)

        await eventually(is_let_go)
        for _ in range(1000):
            go_on.release()
        await bus.send("t", 1000)
        await is_through(conn, passed=1)
        before = len(got)
        assert before < 301, "it was cancelled before its end"
        await bus.admin.resume_catch_up("t", "g")
        await has_caught_up(conn)
    assert Counter(got) == Counter([*range(300), 1000])


async def test_several_processes_share_a_catch_up(bus: Bus, conn: Any, dsn: str) -> None:
    """Each process works through some lanes of the history."""
    await create_log(bus)
    await publish_numbers(bus, range(2000), keys=64)
    got: list[int] = []
    by: Counter[int] = Counter()
    async with Bus.open(dsn) as other:
        for number, one in enumerate((bus, other)):

            async def handle(n: int, number: int = number) -> None:
                got.append(n)
                by[number] += 1
                await asyncio.sleep(0.001)

            group = one.group("g", "t", catch_up=BESIDE)
            group.add_member(f"m{number}", handle)
            await group.start(Start.BEGINNING)
        async with running(bus), running(other):
            await has_caught_up(conn)
    assert set(got) == set(range(2000))
    assert len(by) == 2


async def test_failure_in_history_is_retried_and_given_up_for_the_group(bus: Bus, conn: Any) -> None:
    """The dead letter belongs to the group, with its attempts."""
    await create_log(bus, max_attempts=2, retry_initial="0", retry_max="0")
    await publish_numbers(bus, range(50))

    @bus.subscribe("t", group="g", start=Start.BEGINNING, catch_up=BESIDE)
    async def handle(n: int) -> None:
        if n == 7:
            raise ValueError("seven")

    async with running(bus):
        await has_caught_up(conn)
    letters = await bus.admin.dead_letters("t", group="g")
    assert [one.attempts for one in letters] == [2]
    assert (await group_row(conn))["dead"] == 1
    row = await conn.fetchrow("select * from postbus.deliveries where status = 'DEAD'")
    assert (row["group_name"], row["attempts"], row["required"]) == ("g", 2, True)


async def test_member_counters_include_history(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a catch-up is not logged as a loss of lanes."""
    look_often(monkeypatch)
    await create_log(bus)
    await publish_numbers(bus, range(50))
    collect(bus, start=Start.BEGINNING, catch_up=BESIDE)

    async def is_told() -> None:
        assert any(one.getMessage().startswith("catch_up.ended") for one in caplog.records)

    with caplog.at_level(logging.INFO, "postbus"):
        async with running(bus):
            await has_caught_up(conn)
            await eventually(is_told)
    assert (await group_row(conn))["processed"] == 50
    assert not [one for one in caplog.records if one.getMessage().startswith("lanes.lost")]


def resurrections(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.getMessage().startswith("group.resurrected")]


async def test_resurrected_group_logs_what_it_missed(
    bus: Bus, conn: Any, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It continues within the bounds of its catch-up: the newest of the missed messages, beside new ones."""
    await create_log(bus, lanes=1)
    options: dict[str, Any] = {"catch_up": CatchUp(beside_from=10, max_messages=60)}
    got = collect(bus, **options)
    async with running(bus):
        await are_listed(conn)
        await bus.send("t", 0)
        await is_through(conn, passed=1)
    await conn.execute("update postbus.subscription set state = 'DEAD'")
    await publish_numbers(bus, range(1, 101))
    async with Bus.open(dsn) as again:
        more = collect(again, **options)
        async with running(again):
            await has_caught_up(conn)
            await again.send("t", 101)
            await has(more, 61)
    assert (got, more) == ([0], list(range(41, 102)))
    [told] = resurrections(caplog)
    assert "missed=100" in told
    assert "skipped=40" in told
    row = await catch_up(conn)
    assert (row["total"], row["skipped"], row["reason"]) == (60, 40, "resurrection")


async def test_group_found_dead_while_running_lives_again(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process revives it by a heartbeat and logs that once."""
    look_often(monkeypatch)
    await create_log(bus)
    got = collect(bus)
    async with running(bus):
        await are_listed(conn)
        await conn.execute("update postbus.subscription set state = 'DEAD'")

        async def is_back() -> None:
            assert (await group_row(conn))["state"] == "ACTIVE"

        await eventually(is_back)
        await bus.send("t", 1)
        await has(got, 1)
    assert len(resurrections(caplog)) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"max_messages": -1},
        {"max_rate": 0},
        {"target_latency": "0s"},
        {"beside_from": -1},
        {"batch_size": 1_000_001},
        {"max_rate": float("inf")},
        {"max_rate": "fast"},
        {"target_latency": "2 days"},
        {"max_messages": 2**63},
    ],
)
def test_bad_catch_up_options_are_refused(options: dict[str, Any]) -> None:
    """The options are checked when they are made."""
    with pytest.raises(InvalidOption):
        CatchUp(**options)


async def test_catch_up_option_is_refused_outside_of_groups(bus: Bus) -> None:
    """A queue has no history, and the option must be a `CatchUp`."""
    wrong: Any = "fast"
    with pytest.raises(InvalidOption, match="catch_up"):
        bus.subscribe("t", catch_up=BESIDE)(print)
    with pytest.raises(InvalidOption, match="CatchUp"):
        bus.group("g", "t", catch_up=wrong)
