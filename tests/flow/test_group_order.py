"""Order per key in groups: with many handlers, batches, processes and failures."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from typing import Any

import pytest

from postbus import Bus, Message, Outgoing, RetryPolicy, Start
from support.eventually import eventually
from support.grouping import SOON, create_log, group_row, has, in_order, is_through, publish_numbers
from support.running import running

KEYS = 10
OFTEN = RetryPolicy(initial=0.001, factor=1, maximum=0.001, max_attempts=1000)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 1},
        {"concurrency": 16},
        {"concurrency": 4, "batch": 7},
        {"concurrency": 1, "batch": 100},
        {"concurrency": 8, "transactional": True},
        {"concurrency": 8, "transactional": True, "batch": 7},
    ],
    ids=str,
)
async def test_messages_of_a_key_are_handled_one_after_the_other(bus: Bus, conn: Any, options: dict[str, Any]) -> None:
    """Each message of a key is settled before the next begins, in the order of the commits."""
    await create_log(bus, lanes=4)
    got: list[int] = []
    busy: Counter[int] = Counter()

    async def handle(given: Any, conn: Any = None) -> None:
        ns = given if isinstance(given, list) else [given]
        keys = {n % KEYS for n in ns}
        assert not any(busy[key] for key in keys), "two of a key at the same time"
        busy.update(keys)
        await asyncio.sleep(0.001)
        got.extend(ns)
        busy.subtract(keys)

    async def in_transaction(given: Any, conn: Any) -> None:
        await handle(given)

    async def plainly(given: Any) -> None:
        await handle(given)

    chosen = in_transaction if options.get("transactional") else plainly
    bus.subscribe("t", group="g", start=Start.BEGINNING, **options)(chosen)
    await publish_numbers(bus, range(100), keys=KEYS)
    async with running(bus):
        await publish_numbers(bus, range(100, 300), keys=KEYS, at_once=13)
        await is_through(conn, passed=300, dead=0, failed=0)
    assert Counter(got) == Counter(range(300))
    assert in_order(got, KEYS)


async def test_keys_of_one_lane_run_concurrently(bus: Bus, conn: Any) -> None:
    """A lane is no limit within a process."""
    await create_log(bus, lanes=1)
    at_once = most = 0

    @bus.subscribe("t", group="g", concurrency=8, start=Start.BEGINNING)
    async def handle(n: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1

    await publish_numbers(bus, range(64), keys=32)
    async with running(bus):
        await is_through(conn, passed=64)
    assert 4 <= most <= 8


async def test_slow_key_holds_up_no_other(bus: Bus, conn: Any) -> None:
    """While one handler waits, messages of other keys in its lane go on, and are not repeated."""
    await create_log(bus, lanes=1)
    go_on = asyncio.Event()
    got: list[int] = []

    @bus.subscribe("t", group="g", concurrency=8, start=Start.BEGINNING)
    async def handle(n: int) -> None:
        if n == 0:
            await go_on.wait()
        got.append(n)

    await publish_numbers(bus, range(100), keys=100)
    async with running(bus):
        await has(got, 80)
        assert 0 not in got
        go_on.set()
        await is_through(conn, passed=100)
    assert Counter(got) == Counter(range(100))


async def test_several_processes_keep_the_order(bus: Bus, conn: Any, dsn: str) -> None:
    """Buses join and leave while messages flow: none is lost or repeated, in order per key."""
    await create_log(bus)
    got: list[int] = []
    handled_by: defaultdict[int, set[int]] = defaultdict(set)
    buses = []
    async with AsyncExitStack() as opened:
        for number in range(3):
            one = await opened.enter_async_context(Bus.open(dsn))
            buses.append(one)

            async def handle(n: int, number: int = number) -> None:
                await asyncio.sleep(0.0005)
                got.append(n)
                handled_by[number].add(n % KEYS)

            one.subscribe("t", group="g", concurrency=4, start=Start.BEGINNING)(handle)

        async def publish() -> None:
            for begin in range(0, 3000, 30):
                await publish_numbers(bus, range(begin, begin + 30), keys=KEYS)
                await asyncio.sleep(0.03)

        async with running(buses[0]):
            publishing = asyncio.create_task(publish())
            await has(got, 300)
            async with running(buses[1]):
                async with running(buses[2]):
                    await eventually(_is_shared, conn, [2, 3, 3])
                    await has(got, len(got) + 100)
                await eventually(_is_shared, conn, [4, 4])
            await publishing
            await is_through(conn, passed=3000)
    assert Counter(got) == Counter(range(3000))
    assert in_order(got, KEYS)
    assert all(handled_by[number] for number in range(3))


async def _is_shared(conn: Any, lanes: list[int]) -> None:
    rows = await conn.fetch(
        "select count(*) as n from postbus.lane where holder is not null group by holder order by 1"
    )
    assert [row["n"] for row in rows] == lanes


@pytest.mark.parametrize(
    "options", [{}, {"batch": 5}, {"batch": 5, "concurrency": 3}, {"transactional": True}], ids=str
)
async def test_failures_keep_the_order(bus: Bus, conn: Any, options: dict[str, Any]) -> None:
    """Messages behind a failed one of their key wait, also those that failed together with it."""
    await create_log(bus)
    got: list[int] = []
    failures: Counter[int] = Counter()

    async def handle(given: Any) -> None:
        ns = given if isinstance(given, list) else [given]
        for n in ns:
            if n % 7 == 0 and failures[n] < 2:
                failures[n] += 1
                raise ValueError(f"not yet {n}")
        got.extend(ns)

    async def in_transaction(given: Any, conn: Any) -> None:
        await handle(given)

    async def plainly(given: Any) -> None:
        await handle(given)

    chosen = in_transaction if options.get("transactional") else plainly
    bus.subscribe("t", group="g", start=Start.BEGINNING, retry=OFTEN, **options)(chosen)
    await publish_numbers(bus, range(100), keys=KEYS)
    async with running(bus):
        await is_through(conn, dead=0, within=20)
    assert Counter(got) == Counter(range(100))
    assert in_order(got, KEYS)


async def test_parked_messages_follow_at_once_after_recovery(bus: Bus, conn: Any) -> None:
    """Messages parked behind a failed one follow each other at once when it has succeeded."""
    await create_log(bus)
    got: list[int] = []
    is_well = asyncio.Event()

    @bus.subscribe("t", group="g", start=Start.BEGINNING, retry=OFTEN)
    async def handle(n: int, message: Message) -> Any:
        if not is_well.is_set():
            raise ValueError
        got.append(n)

    await publish_numbers(bus, range(1), keys=1)
    async with running(bus):

        async def has_failed() -> None:
            assert (await group_row(conn))["retrying"] == 1

        await eventually(has_failed)
        await publish_numbers(bus, range(1, 100), keys=1)

        async def others_wait() -> None:
            assert (await group_row(conn))["parked"] >= 90

        await eventually(others_wait)
        is_well.set()
        began = asyncio.get_running_loop().time()
        await has(got, 90)
        assert asyncio.get_running_loop().time() - began < 3
        await is_through(conn)


async def test_redriven_messages_keep_their_order(bus: Bus, conn: Any) -> None:
    """Dead letters of one key that are redriven together are handled one after the other."""
    await create_log(bus, lanes=1)
    got: list[tuple[int, int]] = []
    is_well = False

    @bus.subscribe("t", group="g", start=Start.BEGINNING, concurrency=4, retry=SOON)
    async def handle(n: int, message: Message) -> None:
        if not is_well:
            raise ValueError
        got.append((n, message.attempt))
        if n == 0 and message.attempt == 1:
            raise ValueError("once more")

    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", [Outgoing(payload=n, key="k") for n in range(5)])
    async with running(bus):
        await is_through(conn, dead=5)
        is_well = True
        assert await conn.fetchval("select postbus.redrive('t', group_name => 'g')") == 5
        await is_through(conn, dead=0)
    assert [n for n, _ in got] == [0, 0, 1, 2, 3, 4]
