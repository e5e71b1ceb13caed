"""The description of the machine in a benchmark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import asyncpg

from bench.machine import server_cpu_seconds
from postbus.embedded import EmbeddedPostgres

_WORK = "select count(*) from generate_series(1, 3000000)"


async def test_the_time_of_a_server_is_that_of_its_own_processes(conn: Any, own_folder: Path) -> None:
    """Also of those that have ended; not that of other servers on the machine, nor of anything else."""
    with EmbeddedPostgres.start(own_folder) as other:
        idle: Any = await asyncpg.connect(other.dsn())
        here, there = conn.get_server_pid(), idle.get_server_pid()
        before = server_cpu_seconds(here), server_cpu_seconds(there)
        await conn.execute(_WORK)
        used, unused = server_cpu_seconds(here) - before[0], server_cpu_seconds(there) - before[1]

        short: Any = await asyncpg.connect(other.dsn())
        await short.execute(_WORK)
        await short.close()
        used_by_one_that_ended = server_cpu_seconds(there) - before[1]
        await idle.close()

    assert used > 0.05
    assert unused < used / 2
    assert used_by_one_that_ended > 0.05
    assert server_cpu_seconds(os.getpid()) == 0
