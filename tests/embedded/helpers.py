"""Users of a server, in this process and in others, and a look at the existing processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg

from postbus.embedded import EmbeddedPostgres

Eventually = Callable[[Callable[[], bool]], None]
Processes = Callable[[], list[int]]

USES_A_SERVER = """
import sys
from postbus.embedded import EmbeddedPostgres
postgres = EmbeddedPostgres.start(sys.argv[1])
print((postgres.data_dir / "server.json").read_text(), flush=True)
sys.stdin.read()
"""


def query(postgres: EmbeddedPostgres, sql: str) -> Any:
    """Return the first value of the first row."""

    async def ask() -> Any:
        connection = await asyncpg.connect(postgres.dsn())
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(ask())


def spawn(script: str, folder: Path) -> subprocess.Popen[str]:
    """Run a Python script in a process of its own, with a data folder as its argument."""
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


class User:
    """A process that uses the server of a folder until it is told to leave."""

    def __init__(self, folder: Path) -> None:
        self.process = spawn(USES_A_SERVER, folder)

    def server(self) -> int:
        """Return the pid of the server, as soon as this user has it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return int(json.loads(line)["pid"])

    def leave(self) -> None:
        """End normally without closing: that is left to the library."""
        _, complaints = self.process.communicate()
        assert self.process.returncode == 0, complaints

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def processes_of(folder: Path) -> list[int]:
    """Return the supervisor and all processes of PostgreSQL that work below a folder."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _works_on(entry, folder)]


def _works_on(process: Path, folder: Path) -> bool:
    try:
        command = (process / "cmdline").read_bytes()
        ours = b"supervisor.main" in command or b"postgres" in command or b"initdb" in command
        return ours and (os.fsencode(folder) in command or (process / "cwd").readlink().is_relative_to(folder))
    except OSError:
        return False


NewUser = Callable[[Path], User]
