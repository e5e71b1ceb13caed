"""postbus up, and the demo"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
from rich.console import Console

from cli.helpers import (
    POSTBUS,
    Cli,
    deliver,
    environment,
    finish,
    open_terminal,
    processes_of,
    read_all,
    start,
)
from postbus import Bus
from postbus.cli.demo.tally import Tally
from postbus.cli.demo.views import _screen
from support.eventually import eventually


async def next_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        line = await process.stdout.readline()
    assert line, f"it has ended: {await finish(process)}"
    return line.decode()


async def wait_for_workers(process: asyncio.subprocess.Process) -> None:
    """Read lines of the demo until both workers are at work."""
    while " workers 2" not in await next_line(process):
        pass


async def nothing_remains(folder: Path) -> None:
    async def none() -> None:
        assert processes_of(folder) == []

    await eventually(none, within=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_up_runs_until_a_signal(folder: Path, number: signal.Signals) -> None:
    """It prints a working address, and a signal ends it and everything with it. The exit code is 0."""
    process = await start("up", "--data-dir", str(folder))
    text = "".join([await next_line(process) for _ in range(6)])
    dsn = text.partition("export POSTBUS_DSN='")[2].partition("'")[0]
    conn: Any = await asyncpg.connect(dsn)
    topics = await conn.fetch("select * from postbus.topics")
    await conn.close()

    process.send_signal(number)

    (await finish(process)).done()
    assert topics == []
    assert f"psql '{dsn}'" in text
    assert processes_of(folder) == []


async def test_up_ends_with_5_when_its_server_is_killed(folder: Path) -> None:
    """The end of the server is noticed."""
    process = await start("up", "--data-dir", str(folder), "--json")
    await next_line(process)

    os.kill(json.loads((folder / "server.json").read_text())["supervisor"], signal.SIGKILL)

    (await finish(process)).failed(5)


async def test_demo_runs_and_ends_by_itself(folder: Path) -> None:
    """Without a terminal it prints a line per second and a summary, and leaves no process."""
    process = await start("up", "--demo", "--seconds", "5", "--data-dir", str(folder))

    ended = (await finish(process)).done()

    assert processes_of(folder) == []
    lines = ended.out.splitlines()
    assert sum("published" in line and "/s" in line for line in lines) >= 4
    assert "rolled back; 0 of their messages were delivered" in ended.out
    assert "handled" in lines[-3]


async def test_ctrl_c_ends_the_demo(folder: Path) -> None:
    """Workers and server end too, after a summary. The exit code is 0."""
    process = await start("up", "--demo", "--data-dir", str(folder), new_session=True)
    await wait_for_workers(process)

    os.killpg(process.pid, signal.SIGINT)

    ended = (await finish(process)).done()
    assert "orders were committed" in ended.out
    assert processes_of(folder) == []


async def test_nothing_survives_a_killed_demo(folder: Path) -> None:
    """After kill -9 of the demo, its workers and its server end by themselves."""
    process = await start("up", "--demo", "--data-dir", str(folder))
    await wait_for_workers(process)
    assert len(processes_of(folder)) > 5

    process.kill()

    await nothing_remains(folder)
    await process.communicate()


async def test_second_ctrl_c_does_not_wait_for_the_demo(cli: Cli) -> None:
    """A worker that does not end holds the demo up only until the second signal. The exit code is 130."""
    process = await cli.start("up", "--demo")
    await wait_for_workers(process)
    children = psutil.Process(process.pid).children()
    children[0].suspend()

    await deliver(process, signal.SIGTERM)
    await deliver(process, signal.SIGTERM)

    (await finish(process)).failed(130)
    assert not any(child.is_running() for child in children)


async def test_killed_demo_worker_is_replaced(cli: Cli) -> None:
    """The demo goes on."""
    process = await cli.start("up", "--demo")
    await wait_for_workers(process)
    first, _ = psutil.Process(process.pid).children()

    first.kill()

    async def another_runs() -> None:
        pids = {child.pid for child in psutil.Process(process.pid).children()}
        assert len(pids - {first.pid}) == 2

    await eventually(another_runs)
    process.send_signal(signal.SIGTERM)
    (await finish(process)).done()


async def test_demo_runs_on_an_existing_server(cli: Cli, bus: Bus, conn: Any) -> None:
    """With a DSN it runs there, and exactly the committed orders had their message."""
    ended = await cli("up", "--demo", "--seconds", "8", "--json")

    *_, last = ended.done().lines
    summary = last["summary"]
    orders = await conn.fetchval("select count(*) from postbus_demo.demo_orders")
    assert summary["orders"] == orders > 0
    assert summary["messages_of_rolled_back_orders"] == 0
    assert summary["handled"] > 0
    names = {topic.name for topic in await bus.admin.topics()}
    assert names == {"demo.orders", "demo.payments", "demo.emails", "demo.events"}
    assert summary["lag"].keys() == {"analytics", "fraud", "sales"}
    assert summary["passed"]["sales"] > 0
    sales = await conn.fetchval("select coalesce(sum(paid), 0) from postbus_demo.demo_sales")
    assert sales <= await conn.fetchval("select count(*) from postbus_demo.demo_orders where state = 'paid'")


async def test_demo_leaves_foreign_topics_alone(cli: Cli, bus: Bus) -> None:
    """A database with a topic of the demo's name, but without the demo, is refused."""
    await bus.admin.create_topic("demo.payments")

    failed = (await cli("up", "--demo")).failed(4)

    assert "topics with the demo's names: demo.payments" in failed.err


async def test_up_with_a_dsn_needs_the_demo(cli: Cli) -> None:
    """The server runs already, so there is nothing else to run."""
    assert "add --demo" in (await cli.quick("up")).failed(2).err


async def test_demo_shows_a_live_view_on_a_terminal(cli: Cli) -> None:
    """The view is in the alternate screen, and the summary follows after leaving it."""
    ours, theirs = open_terminal(width=100, height=30)
    variables = environment(**cli.env, TERM="xterm-256color", COLUMNS="", LINES="")
    process = await asyncio.create_subprocess_exec(
        *POSTBUS, "up", "--demo", "--seconds", "2", stdin=theirs, stdout=theirs, stderr=theirs, env=variables
    )
    os.close(theirs)
    shown = await asyncio.to_thread(read_all, ours)

    assert await process.wait() == 0
    live, left, after = shown.partition("\x1b[?1049l")
    assert "Postbus demo" in live
    assert "demo.orders" in live
    assert "analytics" in live
    assert left
    assert "orders were committed" in after


@pytest.mark.parametrize(("width", "height"), [(200, 60), (100, 30), (80, 24), (60, 12), (30, 6), (10, 3)])
def test_view_fits_the_terminal(width: int, height: int) -> None:
    """The view does not exceed the terminal, whatever its size."""
    tally = Tally()
    for number in range(100):
        tally.add_report(
            f"worker-{number}",
            {"event": "message.dead", "fields": {"topic": "x" * 99, "id": 1, "error": "e" * 300}},
        )
    console = Console(width=width, height=height, force_terminal=True, legacy_windows=False)

    lines = console.render_lines(_screen("a title\nanother line", tally, width, height), pad=False)

    assert len(lines) <= height
    assert all(sum(segment.cell_length for segment in line) <= width for line in lines)
