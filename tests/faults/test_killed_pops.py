"""Programs that pop, and are killed with -9 in the middle of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postbus import Bus, Start
from support.eventually import eventually
from support.grouping import create_log, publish_numbers
from support.queue_sql import count_of

PROGRAM = Path(__file__).with_name("piping_program.py")
MESSAGES = 3000
KILLS = 3


@pytest.fixture
def programs() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Collect started programs, which end with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for program in started:
        program.kill()
        program.wait()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("group", ["", "g"])
async def test_popped_messages_are_transformed_exactly_once(
    bus: Bus, conn: Any, dsn: str, group: str, programs: list[subprocess.Popen[bytes]]
) -> None:
    """The program is killed repeatedly between consuming and producing: no result is lost or doubled."""
    if group:
        await create_log(bus, "in")
        await (await bus.connect()).subscribe("in", group, Start.NOW, "block")
    await publish_numbers(bus, range(MESSAGES), "in", keys=50 if group else 0)
    for share in range(1, KILLS + 2):
        programs.append(subprocess.Popen([sys.executable, str(PROGRAM), dsn, group]))

        async def has_done_its_share(enough: int = share * MESSAGES // (KILLS + 1)) -> None:
            assert await count_of(conn, "out") >= enough

        await eventually(has_done_its_share, within=100)
        os.kill(programs[-1].pid, signal.SIGKILL)

    rows = await conn.fetch("select payload from postbus.messages where topic = 'out'")
    assert Counter(int(row["payload"]) for row in rows) == Counter(2 * number for number in range(MESSAGES))
