"""postbus groups catch-up, and postbus consume with history"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from cli.helpers import POSTBUS, STARTED, Cli, environment, open_terminal, read_all
from postbus import Bus, CatchUp, Start
from support.eventually import eventually


@pytest.fixture
async def late(bus: Bus) -> str:
    """Create a topic with a group that has ten messages of history in a catch-up, which nobody works through."""
    await bus.admin.create_topic("events", semantics="PUB_SUB", lanes=1)
    async with bus.transaction() as tx:
        await bus.publish_many(tx, "events", range(10))
    store = await bus.connect()
    await store.subscribe("events", "late", Start.BEGINNING, "block", CatchUp(beside_from=1))
    return "events"


async def work_through(bus: Bus, conn: Any) -> None:
    """Settle the whole history."""
    await bus.admin.force_complete("events", 0)
    await (await bus.connect()).sweep_log()


async def test_catch_up_once_shows_the_progress(cli: Cli, bus: Bus, conn: Any, late: str) -> None:
    """It includes the rate and latency that the group's process reports."""
    [row] = await bus.admin.catch_ups(late)
    its_lane = "select token from postbus.lane where subscription_id = $1 and lane = 0"
    token = await conn.fetchval(its_lane, row.subscription_id)
    await (await bus.connect()).report_catch_up(token, 500.0, 0.0034)

    told = (await cli.quick("groups", "catch-up", late, "late", "--once")).done()
    as_json = (await cli.quick("groups", "catch-up", late, "late", "--once", "--json")).done().json

    assert told.out == "late on events: IN_PROGRESS, 0 of 10 messages, 0/s, allowed 500/s, p95 3.4 ms\n"
    assert (as_json["status"], as_json["total"], as_json["allowed_rate"]) == ("IN_PROGRESS", 10, 500)


async def test_catch_up_can_be_cancelled_and_resumed(cli: Cli, bus: Bus, late: str) -> None:
    """Each option prints the new status."""
    cancelled = await cli.quick("groups", "catch-up", late, "late", "--cancel")
    assert cancelled.done().out == "late on events: CANCELLED, 0 of 10 messages\n"
    resumed = await cli.quick("groups", "catch-up", late, "late", "--resume", "--json")
    assert resumed.done().json["status"] == "IN_PROGRESS"


@pytest.mark.parametrize("option", [(), ("--json",)])
async def test_catch_up_is_followed_in_lines_without_a_terminal(
    cli: Cli, bus: Bus, conn: Any, late: str, option: tuple[str, ...]
) -> None:
    """It is followed until the catch-up has ended."""
    following = await cli.start("groups", "catch-up", late, "late", *option)
    assert following.stdout is not None
    first = (await asyncio.wait_for(following.stdout.readline(), 20)).decode()
    await work_through(bus, conn)
    rest = (await asyncio.wait_for(following.stdout.read(), 20)).decode()
    assert await following.wait() == 0
    assert "IN_PROGRESS" in first
    assert "COMPLETED" in rest.splitlines()[-1]


async def test_catch_up_is_followed_in_a_bar_on_a_terminal(cli: Cli, bus: Bus, conn: Any, late: str) -> None:
    """The last line shows that the catch-up is complete."""

    async def asking() -> set[int]:
        rows = await conn.fetch(
            "select pid from pg_stat_activity where query like '%postbus.catch_ups%' and pid <> pg_backend_pid()"
        )
        return {row["pid"] for row in rows}

    before = await asking()
    ours, theirs = open_terminal(width=160, height=20)
    process = await asyncio.create_subprocess_exec(
        *POSTBUS, "groups", "catch-up", late, "late", stdin=theirs, stdout=theirs, stderr=theirs,
        env=environment(**cli.env, TERM="xterm", COLUMNS="160"),
    )  # fmt: skip
    STARTED.append(process)
    os.close(theirs)
    reading = asyncio.create_task(asyncio.to_thread(read_all, ours))

    async def is_watching() -> None:
        assert await asking() - before

    await eventually(is_watching, within=20)
    await work_through(bus, conn)
    assert await asyncio.wait_for(process.wait(), 20) == 0
    shown = await reading
    assert "━" in shown
    assert "COMPLETED" in shown


@pytest.mark.parametrize(
    ("pace", "rate"), [((), 50000), (("--catch-up", "conservative"), 10000), (("--catch-up", "aggressive"), 200000)]
)
async def test_consume_can_set_the_catch_up_pace(
    cli: Cli, bus: Bus, conn: Any, pace: tuple[str, ...], rate: int
) -> None:
    """A group that starts at the beginning reads the newest messages, as fast as the preset allows."""
    await bus.admin.create_topic("events", semantics="PUB_SUB", lanes=1)
    for n in range(5):
        await bus.send("events", n)

    consumed = await cli(
        "consume",
        "events",
        "--group",
        "g",
        "--from",
        "beginning",
        *pace,
        "--max-messages",
        "2",
        "--idle",
        "1",
        "--json",
    )

    assert [one["payload"] for one in consumed.done().lines] == [3, 4]
    assert await conn.fetchval("select (catch_up -> 'max_rate')::integer from postbus.subscription") == rate


async def test_catch_up_options_need_a_group(cli: Cli) -> None:
    """The remedy names --group."""
    for option in (("--catch-up", "default"), ("--max-messages", "1")):
        refused = await cli.quick("consume", "jobs", *option, "--json")
        assert "--group" in refused.failed(2).error["remedy"]
