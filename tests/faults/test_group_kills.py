"""Members of groups that are killed, stopped and restarted in the middle of their work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postbus import Bus
from support.eventually import eventually
from support.grouping import create_log, in_order, is_through, publish_numbers

WORKER = Path(__file__).with_name("group_worker.py")
MESSAGES = int(os.environ.get("POSTBUS_TEST_MESSAGES", "10000"))
KEYS = 50

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "handled"


@pytest.fixture
def start(dsn: str, log: Path) -> Iterator[Start]:
    """Start processes; the remaining ones are killed in the end."""
    processes: list[subprocess.Popen[bytes]] = []

    def started(mode: str, *name: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, str(WORKER), dsn, str(log), mode, *name], stderr=subprocess.DEVNULL)
        processes.append(process)
        return process

    yield started
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def handled(log: Path) -> list[int]:
    """Return the numbers in the processes' file. The last line of a killed one may be cut off."""
    lines = log.read_text().split("\n") if log.exists() else []
    return [int(line) for line in lines if line.isdigit()]


async def has_handled(log: Path, count: int) -> None:
    assert len(handled(log)) >= count


async def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    assert await asyncio.to_thread(process.wait, 10) == 0


@pytest.mark.parametrize("mode", ["plain", "transactional"])
async def test_killed_members_lose_nothing(bus: Bus, conn: Any, log: Path, start: Start, mode: str) -> None:
    """Two processes share a group and one is killed repeatedly: all messages are handled in order, with effects
    once."""
    messages = MESSAGES if mode == "plain" else MESSAGES // 5
    await create_log(bus)
    await conn.execute("create table effect (n int, pid int)")
    steady = start(mode)
    publishing = asyncio.create_task(publish_numbers(bus, range(messages), keys=KEYS, at_once=50))
    kills = 3
    for kill in range(kills):
        victim = start(mode)

        async def holds_lanes(pid: int = victim.pid) -> None:
            assert await conn.fetchval(
                "select count(*) from postbus.lane where holder like '%:' || $1 || ':%'", str(pid)
            )

        await eventually(holds_lanes, within=15)
        await eventually(has_handled, log, (kill + 1) * messages // 8, within=10 + messages / 1000)
        victim.kill()
        victim.wait()
    await publishing
    await is_through(conn, passed=messages, dead=0, within=30 + messages / 1000)
    await end(steady)

    got = handled(log)
    assert set(got) == set(range(messages))
    if mode == "transactional":
        effects = Counter(row["n"] for row in await conn.fetch("select n from effect"))
        assert effects == Counter(range(messages))
    else:
        assert in_order(got, KEYS)
        assert len(got) - messages <= kills * 2 * 1000, "more came twice than was in hand"


async def test_killed_member_restarted_under_its_name_takes_its_lanes(
    bus: Bus, conn: Any, log: Path, start: Start
) -> None:
    """Its heartbeats differ from those of the killed one, so it gets the lanes when the lease is over."""
    await create_log(bus)
    await publish_numbers(bus, range(MESSAGES), keys=KEYS)
    victim = start("plain", "me")
    await eventually(has_handled, log, MESSAGES // 10, within=15)
    victim.kill()
    victim.wait()
    again = start("plain", "me")
    await is_through(conn, passed=MESSAGES, dead=0, within=30 + MESSAGES / 1000)
    await end(again)

    assert set(handled(log)) == set(range(MESSAGES))
    assert in_order(handled(log), KEYS)


async def test_deadly_message_is_isolated(bus: Bus, conn: Any, log: Path, start: Start) -> None:
    """A message that ends its process is given up after `max_attempts` calls alone, and all others are handled."""
    await create_log(bus, lanes=2, max_attempts=2, retry_initial="100ms")
    await publish_numbers(bus, range(40))
    deaths = 0
    process = start("deadly")

    async def is_given_up() -> None:
        nonlocal process, deaths
        if process.poll() is not None:
            assert process.returncode == 1
            deaths += 1
            process = start("deadly")
        assert await conn.fetchval("select count(*) from postbus.dead_letter") > 0

    await eventually(is_given_up, within=45)
    await is_through(conn, passed=40, dead=1, within=15)
    await end(process)

    dead = await conn.fetch("select convert_from(payload, 'utf8') as n, reason from postbus.dead_letters")
    assert [row["n"] for row in dead] == ["13"]
    assert "died" in dead[0]["reason"]
    assert set(handled(log)) == set(range(40)) - {13}
    assert 3 <= deaths <= 3 + 1 + 2, "a few to find it beside others, and two that it was alone in"


async def test_kills_of_idle_processes_make_nothing_suspect(bus: Bus, conn: Any, log: Path, start: Start) -> None:
    """The next message does not become a dead letter."""
    await create_log(bus)
    process = start("plain")

    async def is_held() -> None:
        assert await conn.fetchval("select count(holder) from postbus.lane") == 8

    await eventually(is_held)
    process.kill()
    process.wait()
    await conn.execute(
        "update postbus.lane set deaths = 7, careful_until = (select last_value from postbus.segment_number)"
    )
    start("plain")
    await publish_numbers(bus, range(20), keys=20)
    await is_through(conn, passed=20, dead=0, within=15)
    assert Counter(handled(log)) == Counter(range(20))


async def test_frozen_process_is_fenced(bus: Bus, conn: Any, log: Path, start: Start) -> None:
    """A process frozen longer than its lease loses its lanes, and what it does afterwards moves no cursor."""
    await create_log(bus)
    frozen = start("plain")
    publishing = asyncio.create_task(publish_numbers(bus, range(2000), keys=KEYS, at_once=20))
    await eventually(has_handled, log, 200)
    os.kill(frozen.pid, signal.SIGSTOP)
    other = start("plain")

    async def other_has_all() -> None:
        holders = await conn.fetch("select distinct holder from postbus.lane")
        assert [f":{other.pid}:" in row["holder"] for row in holders if row["holder"]] == [True]

    await eventually(other_has_all)
    await publishing
    await is_through(conn, passed=2000)
    os.kill(frozen.pid, signal.SIGCONT)

    async def shared_again() -> None:
        rows = await conn.fetch("select count(*) as n from postbus.lane where holder is not null group by holder")
        assert sorted(row["n"] for row in rows) == [4, 4]

    await eventually(shared_again)
    await publish_numbers(bus, range(2000, 2200), keys=KEYS)
    await is_through(conn, passed=2200, dead=0)
    for process in (frozen, other):
        await end(process)
    got = handled(log)
    assert set(got) == set(range(2200))
    assert in_order(got, KEYS)
    assert len(got) - 2200 <= 1000, "more came twice than was in hand"


async def test_frozen_process_begins_no_further_message(bus: Bus, conn: Any, log: Path, start: Start) -> None:
    """It was frozen in a handler longer than its lease: other messages it had read are left to the lane's new
    holder."""
    await create_log(bus, lanes=1)
    await publish_numbers(bus, range(100), keys=1)
    frozen = start("freezing")
    of_frozen = log.with_name(f"{log.name}.{frozen.pid}")
    await eventually(has_handled, of_frozen, 11)
    other = start("freezing")
    of_other = log.with_name(f"{log.name}.{other.pid}")

    async def other_is_in_the_middle() -> None:
        assert handled(of_other)[-1:] == [20]

    await eventually(other_is_in_the_middle, within=15)
    os.kill(frozen.pid, signal.SIGCONT)
    for _ in range(3):
        since = await conn.fetchval("select clock_timestamp()")

        async def is_alive_again(since: Any = since) -> None:
            assert await conn.fetchval("select seen_at from postbus.worker where pid = $1", frozen.pid) > since

        await eventually(is_alive_again)
    assert handled(of_frozen) == list(range(11))

    log.with_name(f"{log.name}.gate").touch()
    await is_through(conn, passed=100, dead=0)
    for process in (frozen, other):
        await end(process)
    first, second = handled(of_frozen), handled(of_other)
    assert second == list(range(second[0], second[-1] + 1))
    assert second[0] <= 11
    assert first == [*range(11), *range(second[-1] + 1, 100)]
