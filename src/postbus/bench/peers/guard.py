"""The parent of a server that ends with us, also when we are killed.

It is started as a file, without the package. Standard input tells what to run, and stays open as long as the server
is wanted: the kernel closes it when its other end dies, in whatever way. Then the server's processes are ended and its
folder is removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

_SET_PARENT_DEATH_SIGNAL = 1


def _tie() -> None:
    """Let the kernel kill the server if even the guard is killed, where it can."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL))


def _end(servers: list[subprocess.Popen[bytes]]) -> None:
    """At once: nobody needs what is in its folder any more."""
    for server in servers:
        # The whole process group, whose leader it is.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def main() -> None:
    # Ctrl-C and a supervisor's SIGTERM reach our starter; when it ends, we do our work.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    plan = json.loads(sys.stdin.readline())
    servers: list[subprocess.Popen[bytes]] = []
    threading.Thread(target=_end_us_when_unused, args=(servers, plan["folder"]), daemon=True).start()
    with open(os.path.join(plan["folder"], "server.log"), "ab") as log:  # noqa: PTH123, PTH118 -- pathlib loads slowly
        for command in plan["commands"]:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=plan["folder"],
                                      env=plan["environment"], process_group=0, preexec_fn=_tie)  # noqa: PLW1509  # fmt: skip
            servers.append(server)
    threading.Event().wait()


def _end_us_when_unused(servers: list[subprocess.Popen[bytes]], folder: str) -> None:
    sys.stdin.read()
    _end(servers)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
