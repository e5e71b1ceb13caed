"""A server's clock that can be set, while the server runs.

By a library of our own, since libfaketime tells the real time in a signal handler that interrupts a wait: timeouts of
a PostgreSQL whose clock is ahead then never come.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

from faults.servers import NotInstalled

_SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """Sets the clock of the processes that get `env`, and of no others."""

    def __init__(self, folder: Path) -> None:
        """`folder` is one that the processes may read."""
        library = folder / "clock.so"
        _compile(library)
        moment = folder / "clock"
        moment.write_bytes(struct.pack("q", 0))
        moment.chmod(0o644)
        with moment.open("r+b") as file:
            self._moment = mmap.mmap(file.fileno(), 8)
        self._ahead = 0.0
        self.env = {"LD_PRELOAD": str(library), "POSTBUS_FAULTS_CLOCK": str(moment)}

    @property
    def ahead(self) -> float:
        """By how many seconds it is ahead of the real one."""
        return self._ahead

    def jump(self, seconds: float) -> None:
        """Set it forward, or back if that is negative. All processes see it at once."""
        self._ahead += seconds
        self._moment[:] = struct.pack("q", round(self._ahead * 1e9))


def _compile(library: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        raise NotInstalled("setting a server's clock needs a C compiler: apt-get install gcc libc6-dev")
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(f"setting a server's clock needs a C compiler with headers: {done.stderr.strip()[-300:]}")
    library.chmod(0o755)
