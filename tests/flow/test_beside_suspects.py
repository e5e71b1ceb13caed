"""Messages that are suspected of having ended a process are tried alone, without holding up others for long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from eventually import eventually
from grouping import create_log, group_row, has
from postbus import Bus
from running import running

_ALONE = (
    "select alone from postbus.lease where topic_id = postbus.topic_id('t') union all "
    "select alone from postbus.retrying"
)


@pytest.mark.parametrize("kind", ["queue", "group"])
async def test_handler_that_does_not_end_keeps_no_suspect_waiting(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The suspect is tried beside it, and is known not to be alone; others go on meanwhile."""
    monkeypatch.setattr("postbus._alone._PATIENCE", (0.05, 0.1))
    monkeypatch.setattr("postbus._alone._LOOK", 0.1)
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


async def leave_in_queue(bus: Bus, conn: Any) -> None:
    """Somebody had two messages in hand, and is gone for minutes."""
    async with conn.transaction():
        await conn.execute("select postbus.publish('t', n::text) from generate_series(1, 2) as n")
        await conn.execute("select postbus.claim('t', 'gone', 2, lease => '1 millisecond')")
    await conn.execute("select postbus.return_expired(as_of => clock_timestamp() + interval '1 second')")
    await conn.execute("update postbus.delayed set due_at = due_at - interval '2 minutes' where trial is not null")


async def leave_in_group(bus: Bus, conn: Any) -> None:
    """A message of the group is suspected."""
    await conn.execute(
        "insert into postbus.retrying (subscription_id, lane, id, position, attempts, suspected, published_at, "
        "content_type, payload) select id, 0, 1, 1, 0, true, now(), 'application/json', '1' from postbus.subscription"
    )
    assert (await group_row(conn))["retrying"] == 1
