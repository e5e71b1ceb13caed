"""Running the command line as users do: in a process of its own."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from postbus.cli._app import run
from support.eventually import eventually

STARTED: list[asyncio.subprocess.Process] = []
POSTBUS = (sys.executable, "-m", "postbus.cli")


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Return the output as a stream of JSON objects."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, str]:
        """Return the error in --json mode, which is the last line of stderr."""
        return dict(json.loads(self.err.splitlines()[-1])["error"])

    def done(self) -> Result:
        """Return this result if the command succeeded."""
        assert self.code == 0, self.err
        return self

    def failed(self, code: int) -> Result:
        """Return this result if the command reported an error in plain words and ended with the given code."""
        assert self.code == code, f"{self.code}: {self.out} {self.err}"
        assert "Traceback" not in self.err + self.out
        return self


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a user who has set nothing but the given variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POSTBUS_")}
    return kept | {"COLUMNS": "80", "PYTHONWARNINGS": "error::ResourceWarning"} | variables


async def start(
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    program: tuple[str, ...] = POSTBUS,
    new_session: bool = False,
) -> asyncio.subprocess.Process:
    """Start a command that goes on running. It is killed at the end of the test if it has not ended by then."""
    process = await asyncio.create_subprocess_exec(
        *program,
        *args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**(env or {})),
        cwd=cwd,
        start_new_session=new_session,
    )
    STARTED.append(process)
    return process


async def finish(process: asyncio.subprocess.Process, given: bytes = b"") -> Result:
    """Return the output of a started command until it ends."""
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate(given)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return Result(process.returncode, out.decode(), err.decode())


async def deliver(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal and wait until it has arrived: a second one sent before that would be lost."""
    process.send_signal(number)

    async def none_is_pending() -> None:
        assert re.search(r"ShdPnd:\s*0+\n", _status(process.pid))

    await eventually(none_is_pending)


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


class Cli:
    """The command, with the DSN of the test's database in its environment."""

    def __init__(self, dsn: str, cwd: Path) -> None:
        self.env = {"POSTBUS_DSN": dsn}
        self.cwd = cwd

    async def __call__(self, *args: str, given: str | bytes = b"") -> Result:
        process = await start(*args, env=self.env, cwd=self.cwd)
        return await finish(process, given.encode() if isinstance(given, str) else given)

    async def quick(self, *args: str) -> Result:
        """Run the command within this process, for tests that need neither stdin nor signals."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = await asyncio.to_thread(run, ["--dsn", self.env["POSTBUS_DSN"], *args])
        return Result(code, out.getvalue(), err.getvalue())

    async def start(self, *args: str) -> asyncio.subprocess.Process:
        return await start(*args, env=self.env, cwd=self.cwd)

    async def piped(self, reader: str, *args: str, given: bytes = b"") -> Result:
        """Run the command into a reader that may leave early, such as `head -n 1`. Returns the command's exit code."""
        return await self._in_shell(f'timeout 30 "$@" | {reader}; exit "${{PIPESTATUS[0]}}"', *args, given=given)

    async def redirected(self, redirections: str, *args: str) -> Result:
        """Run the command with shell redirections, such as `>&-` for a closed stream."""
        return await self._in_shell(f'timeout 30 "$@" {redirections}', *args)

    async def _in_shell(self, script: str, *args: str, given: bytes = b"") -> Result:
        process = await start(*args, env=self.env, cwd=self.cwd, program=("bash", "-c", script, "bash", *POSTBUS))
        return await finish(process, given)


def processes_of(folder: Path) -> list[str]:
    """Return all processes that belong to a folder, or to a server in it."""
    return [told for process in psutil.process_iter() if (told := _if_about(process, str(folder)))]


def _if_about(process: psutil.Process, folder: str) -> str:
    try:
        command = " ".join(process.cmdline())
        about = [command, process.cwd(), *process.environ().values()]
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        return f"{process.pid} {command}" if is_alive and any(folder in one for one in about) else ""
    except (psutil.Error, OSError):
        return ""


def open_terminal(*, width: int, height: int) -> tuple[int, int]:
    """Open a terminal: our end and the command's."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    return ours, theirs


def read_all(terminal: int) -> str:
    """Return everything written to a terminal until its last writer has ended."""
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:
        pass  # how Linux reports that nobody has it open any more
    os.close(terminal)
    return b"".join(parts).decode(errors="replace")
