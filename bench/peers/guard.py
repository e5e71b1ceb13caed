"""The parent process of a server. It ends the server when the benchmark ends, even if that is killed.

It reads the command from standard input, which stays open as long as the server is needed: the kernel
closes it when the other end dies, however it dies. Then this process ends the server and removes its folder. The
line KILL kills the server meanwhile, and the line START starts it again on the same folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from postbus._embedded.supervisor.programs import spawn

KILL, START = "kill", "start"


def main() -> None:
    # Ctrl-C and SIGTERM are for the benchmark; when it ends, this process cleans up.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    plan = json.loads(sys.stdin.readline())
    folder = Path(plan["folder"])
    servers = _started(plan, folder)
    for line in sys.stdin:
        for server in servers:
            _end(server)
        servers = _started(plan, folder) if line.strip() == START else []
    for server in servers:
        _end(server)
    shutil.rmtree(folder, ignore_errors=True)


def _started(plan: dict[str, Any], folder: Path) -> list[subprocess.Popen[bytes]]:
    with (folder / "server.log").open("ab") as log:
        return [
            spawn(
                command,
                death_signal=signal.SIGKILL,
                env=plan["environment"],
                output=log,
                cwd=folder,
                start_new_session=True,
            )
            for command in plan["commands"]
        ]


def _end(server: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the server at once; its folder is not needed any more."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


if __name__ == "__main__":
    main()
