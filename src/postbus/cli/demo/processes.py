"""The worker processes: started, listened to, started again if they die, and ended."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress

from postbus.cli.demo.tally import Tally

_SIZE = 2  # processes
_PAUSE_BEFORE_RESTART = 0.5


class WorkerProcesses:
    """Processes of `consumers.py`. They end when their stdin closes, even if we are killed."""

    def __init__(self, dsn: str, tally: Tally) -> None:
        self._dsn = dsn
        self._tally = tally
        self._names = [f"demo-worker-{number}" for number in range(1, _SIZE + 1)]
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ending = asyncio.Event()

    async def run(self) -> None:
        """Keep all of them running until `end`."""
        await asyncio.gather(*(self._keep(name) for name in self._names))

    def end(self) -> None:
        """Let them finish what they have begun."""
        self._ending.set()
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()

    def kill(self) -> None:
        """End them without waiting for anything."""
        self._ending.set()
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.kill()

    async def _keep(self, name: str) -> None:
        while not self._ending.is_set():
            code = await self._run_once(name)
            if not self._ending.is_set():
                self._tally.tell(_short(name), f"ended with status {code}; another takes its place")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), _PAUSE_BEFORE_RESTART)

    async def _run_once(self, name: str) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "postbus.cli.demo.consumers", name, str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | {"POSTBUS_DSN": self._dsn},
            start_new_session=True,  # Ctrl-C is for us: we end them
        )  # fmt: skip
        self._processes[name] = process
        if self._ending.is_set() and process.stdin is not None:
            process.stdin.close()
        try:
            await self._listen(name, process)
            return await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            del self._processes[name]

    async def _listen(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            try:
                self._tally.add_report(_short(name), json.loads(line))
            except ValueError:  # an error message, and no report
                self._tally.tell(_short(name), line.decode("utf-8", "replace").rstrip())


def _short(name: str) -> str:
    return name.removeprefix("demo-")
