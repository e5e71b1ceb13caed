"""The parent of a server that ends with us, also when we are killed.

It is a process of its own. Standard input tells what to run, and stays open as long as the server is wanted: the kernel
closes it when its other end dies, in whatever way. Then the server's processes are ended and its folder is removed. The
lines KILL and START in between end it, and start it again with what is in its folder.
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
    # Ctrl-C and a supervisor's SIGTERM reach our starter; when it ends, we do our work.
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
    """At once, with all of its processes: nobody needs what is in its folder any more."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


if __name__ == "__main__":
    main()
