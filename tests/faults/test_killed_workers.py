"""Workers that are killed with -9 in the middle of their work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from postbus import Bus
from support.eventually import eventually

WORKER = Path(__file__).with_name("counting_worker.py")
MESSAGES = 10_000


def handled(log: Path) -> list[int]:
    """Return the numbers in the workers' file. The last line of a killed worker may be cut off."""
    lines = log.read_text().split("\n") if log.exists() else []
    return [int(line) for line in lines if line.isdigit()]


async def kill_in_the_middle(start: Any, log: Path, kills: int) -> None:
    """Run workers one after the other, kill each after it has handled its share, and let the last one finish."""
    share = MESSAGES // (kills + 1)
    for kill in range(1, kills + 1):
        worker = start()

        async def has_handled_its_share(enough: int = kill * share) -> None:
            assert len(handled(log)) >= enough

        await eventually(has_handled_its_share, within=60)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
    start()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["plain", "transactional"])
async def test_killed_workers_lose_nothing(bus: Bus, conn: Any, dsn: str, tmp_path: Path, mode: str) -> None:
    """With three kills in 10,000 messages all are handled, and effects of transactional handlers happen once."""
    await conn.execute("create table effect (n int, pid int)")
    log = tmp_path / "handled"
    for begin in range(0, MESSAGES, 1000):
        async with bus.transaction() as tx:
            await bus.publish_many(tx, "t", [{"n": n} for n in range(begin, begin + 1000)])
    workers: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        workers.append(subprocess.Popen([sys.executable, str(WORKER), dsn, str(log), mode]))
        return workers[-1]

    async def nothing_is_left() -> None:
        topic = await bus.admin.topic("t")
        assert (topic.waiting, topic.leased, topic.delayed, topic.dead) == (0, 0, 0, 0)

    try:
        await kill_in_the_middle(start, log, kills=3)
        await eventually(nothing_is_left, within=120)
        workers[-1].terminate()
        assert await asyncio.to_thread(workers[-1].wait) == 0
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()

    counts = Counter(handled(log))
    assert set(counts) == set(range(MESSAGES))
    if mode == "transactional":
        effects = Counter(row["n"] for row in await conn.fetch("select n from effect"))
        assert effects == Counter(range(MESSAGES))
        assert len({row["pid"] for row in await conn.fetch("select distinct pid from effect")}) == 4
    else:
        twice = sum(count - 1 for count in counts.values())
        assert twice <= 3 * 2 * 200, "more than what was in hand came twice"
