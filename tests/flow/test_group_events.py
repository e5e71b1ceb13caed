"""Groups that stop, die and lose messages are heard of."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from fix_database import Connect
from grouping import are_listed, collect, create_log, is_through
from postbus import Bus, Start
from running import running

_QUIET = (
    "update postbus.subscription set seen_at = seen_at - interval '1 hour', stopped_at = stopped_at - interval '1 hour'"
)


def told(caplog: pytest.LogCaptureFixture, name: str) -> list[tuple[int, dict[str, Any]]]:
    return [(one.levelno, one.fields) for one in caplog.records if getattr(one, "event", "") == name]  # type: ignore[attr-defined]


async def dies(bus: Bus, conn: Any, dsn: str) -> None:
    """Let the group be found DEAD, while two processes sweep."""
    await conn.execute(_QUIET + ", missed = 3")
    async with Bus.open(dsn) as other:
        await asyncio.gather(bus.admin.sweep(), other.admin.sweep())
    assert (await bus.admin.group("t", "g"))["state"] == "DEAD"


async def test_group_that_falls_silent_is_logged_once(
    bus: Bus, conn: Any, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning with topic, group and numbers, by one of the processes that sweep."""
    await create_log(bus)
    await (await bus.connect()).subscribe("t", "g", Start.NOW, "block")
    await bus.send("t", 1)
    with caplog.at_level(logging.INFO, "postbus"):
        await dies(bus, conn, dsn)
        await bus.admin.sweep()
    [(level, fields)] = told(caplog, "group.dead")
    assert level == logging.WARNING
    assert (fields["topic"], fields["group"], fields["after"], fields["lag"]) == ("t", "g", "silence", 1)
    assert fields["silent_seconds"] >= 3600


async def test_planned_stop_is_no_alarm(bus: Bus, conn: Any, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """It shows who stopped the group and when; its death is told at level info, and it is unhealthy after a day."""
    await create_log(bus)
    collect(bus)
    async with running(bus):
        await are_listed(conn)
        await bus.send("t", 1)
        await is_through(conn, passed=1)
        assert (await bus.admin.group("t", "g"))["stopped_at"] is None
        [worker] = await bus.admin.workers()
    row = await bus.admin.group("t", "g")
    assert (row["stopped_by"], row["healthy"]) == (worker["name"], True)
    with caplog.at_level(logging.INFO, "postbus"):
        await dies(bus, conn, dsn)
    [(level, fields)] = told(caplog, "group.dead")
    assert (level, fields["after"], fields["stopped_by"]) == (logging.INFO, "stop", worker["name"])
    assert (await bus.admin.group("t", "g"))["healthy"]
    await conn.execute(_QUIET.replace("1 hour", "1 day"))
    row = await bus.admin.group("t", "g")
    assert (row["healthy"], row["problem"]) == (False, f"stopped by {worker['name']}, longer ago than 24 hours")


async def test_heartbeat_ends_a_stop(bus: Bus, conn: Any) -> None:
    """As does each other sign of life."""
    await create_log(bus)
    store = await bus.connect()
    info = await store.subscribe("t", "g", Start.NOW, "block")
    await store.leave_groups("me", [info.id], is_stop=True)
    assert (await bus.admin.group("t", "g"))["stopped_by"] == "me"
    await store.group_heartbeat([info.id], [])
    assert (await bus.admin.group("t", "g"))["stopped_by"] is None


async def test_two_processes_that_leave_together_stop_the_group(bus: Bus, conn: Any, connect: Connect) -> None:
    """The later one waits for the first, and finds that it is the last."""
    await create_log(bus)
    info = await (await bus.connect()).subscribe("t", "g", Start.NOW, "block")
    for name in ("a", "b"):
        await conn.execute("select postbus.heartbeat($1, 'host', 1, '{}')", name)
        await conn.execute("insert into postbus.group_worker (subscription_id, worker) values ($1, $2)", info.id, name)
    first, second = await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    await first.execute("select postbus.leave_groups('a', $1, true)", [info.id])
    leaving = asyncio.create_task(second.execute("select postbus.leave_groups('b', $1, true)", [info.id]))
    await asyncio.sleep(0.1)
    assert not leaving.done()
    await transaction.commit()
    await leaving
    assert (await bus.admin.group("t", "g"))["stopped_by"] == "b"
