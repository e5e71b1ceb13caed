"""Groups in tests: what the database says of them, and messages with an order to check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from postbus import Bus, DeadLetter, Outgoing, RetryPolicy
from support.eventually import eventually
from support.running import running

SOON = RetryPolicy(initial=0.001, factor=1, maximum=0.001, max_attempts=3)


async def create_log(bus: Bus, topic: str = "t", **options: Any) -> None:
    """Create a PUB_SUB topic with a short lease, so that lanes of dead processes are taken over soon."""
    await bus.admin.create_topic(topic, **{"semantics": "PUB_SUB", "lease": "1s", **options})


async def publish_numbers(
    bus: Bus, numbers: Iterable[int], topic: str = "t", *, keys: int = 0, at_once: int = 100
) -> None:
    """Publish numbers; with `keys`, that many, in each of which the numbers rise."""
    given = list(numbers)
    for begin in range(0, len(given), at_once):
        async with bus.transaction() as tx:
            some = [Outgoing(payload=n, key=f"k{n % keys}" if keys else None) for n in given[begin : begin + at_once]]
            await bus.publish_many(tx, topic, some)


def collect(bus: Bus, group: str = "g", topic: str = "t", **options: Any) -> list[int]:
    """Subscribe a handler that records the numbers it gets. Returns their list."""
    got: list[int] = []

    @bus.subscribe(topic, group=group, **options)
    async def handle(n: int) -> None:
        got.append(n)

    return got


async def bury(bus: Bus, *payloads: Any, groups: tuple[str, ...] = ("mail",), topic: str = "events") -> list[int]:
    """Let groups give messages up. Returns the messages' ids."""

    async def give_up(payload: Any) -> DeadLetter:
        return DeadLetter(reason=f"no {payload}", error="ValueError: no")

    for group in groups:
        bus.subscribe(topic, group=group)(give_up)
    ids = [await bus.send(topic, payload, key="k") for payload in payloads]

    async def all_are_dead() -> None:
        assert len(await bus.admin.dead_letters(topic)) == len(payloads) * len(groups)

    async with running(bus):
        await eventually(all_are_dead)
    return ids


async def are_listed(conn: Any, count: int = 1) -> None:
    """Wait until this many groups are subscribed."""

    async def as_many() -> None:
        assert await conn.fetchval("select count(*) from postbus.subscription") == count

    await eventually(as_many)


async def shares(conn: Any) -> list[int]:
    """Return how many lanes each process holds, ascending."""
    rows = await conn.fetch(
        "select count(*) as n from postbus.lane where holder is not null group by holder order by 1"
    )
    return [row["n"] for row in rows]


async def are_shared(conn: Any, *expected: int) -> None:
    """Wait until processes hold this many lanes each."""

    async def as_expected() -> None:
        assert await shares(conn) == list(expected)

    await eventually(as_expected)


def look_often(patch: pytest.MonkeyPatch) -> None:
    """Let processes ask for lanes twenty times a second, so that tests need not wait for it."""
    patch.setattr("postbus._group.lane_assignment._INTERVAL", 0.05)
    patch.setattr("postbus._group.lane_assignment._INTERVAL_WHEN_STABLE", 0.05)


async def group_row(conn: Any, group: str = "g", topic: str = "t") -> dict[str, Any]:
    """Return the view's row of a group's newest subscription."""
    row = await conn.fetchrow(
        "select * from postbus.groups where topic = $1 and group_name = $2 order by subscription_id desc limit 1",
        topic,
        group,
    )
    assert row, "the group is not subscribed"
    return dict(row)


async def is_through(
    conn: Any, group: str = "g", topic: str = "t", *, within: float = 10.0, **expected: Any
) -> dict[str, Any]:
    """Wait until a group has nothing before it and nothing to retry."""

    async def through() -> dict[str, Any]:
        row = await group_row(conn, group, topic)
        wanted = {"lag": 0, "retrying": 0, "parked": 0, **expected}
        assert {name: row[name] for name in wanted} == wanted
        return row

    return await eventually(through, within=within)


async def has(got: list[Any], count: int, *, within: float = 10.0) -> None:
    """Wait until a list has this many elements."""

    async def long_enough() -> None:
        assert len(got) >= count, f"{len(got)} of {count}"

    await eventually(long_enough, within=within)


def in_order(numbers: Iterable[int], keys: int) -> bool:
    """Return whether first occurrences rise within each key, and repetitions repeat everything from some point on."""
    last: defaultdict[int, int] = defaultdict(lambda: -1)
    seen: set[int] = set()
    for n in numbers:
        key = n % keys
        if n not in seen and n < last[key]:
            return False
        if n not in seen and n - keys >= 0 and n - keys not in seen:
            return False
        seen.add(n)
        last[key] = max(last[key], n)
    return True
