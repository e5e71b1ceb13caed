"""Force-complete while a group is at work."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from postbus import Bus, GroupNotFound, InvalidOption, TopicNotFound, WrongSemantics
from support.eventually import eventually
from support.grouping import create_log, has, is_through, look_often, publish_numbers
from support.running import running


async def test_stuck_group_continues_after_force_complete(bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that its process had read ahead are no longer handled, apart from those in hand."""
    look_often(monkeypatch)
    await create_log(bus, lanes=1)
    got: list[int] = []
    may_end = asyncio.Event()

    @bus.subscribe("t", group="g")
    async def handle(n: int) -> None:
        got.append(n)
        await may_end.wait()

    async with running(bus):
        await eventually(is_held, conn)
        await publish_numbers(bus, range(20), at_once=5)
        await has(got, 1)
        await conn.execute("update postbus.segment set published_at = published_at - interval '8 days'")
        await publish_numbers(bus, [100, 101])

        number = await conn.fetchval("select held_number from postbus.lane")
        assert await bus.admin.force_complete("t", "7d", dry_run=True) == {"g": 20}
        assert await bus.admin.force_complete("t", timedelta(days=7)) == {"g": 20}
        await eventually(is_another, conn, number)
        may_end.set()
        await has(got, 3)
        await is_through(conn, passed=2)
    assert got == [0, 100, 101]


async def is_held(conn: Any) -> None:
    assert await conn.fetchval("select holder from postbus.lane") is not None


async def is_another(conn: Any, number: int) -> None:
    """Check that the lane was taken from its holder and taken again behind the skipped messages."""
    assert await conn.fetchval("select held_number > $1 + 1 and holder is not null from postbus.lane", number)


async def test_bad_force_complete_arguments_raise_their_errors(bus: Bus) -> None:
    """Each wrong argument has an error class of its own."""
    await create_log(bus)
    await bus.admin.create_topic("queue")
    cases: list[tuple[str, Any, str | None, type[Exception]]] = [
        ("t", "soon", None, InvalidOption),
        ("t", -1, None, InvalidOption),
        ("t", 1, "nobody", GroupNotFound),
        ("queue", 1, None, WrongSemantics),
        ("nowhere", 1, None, TopicNotFound),
    ]
    for topic, older_than, group, kind in cases:
        with pytest.raises(kind):
            await bus.admin.force_complete(topic, older_than, group=group)
