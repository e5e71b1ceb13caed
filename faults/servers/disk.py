"""A disk that can be full: a file system in memory, of a limited size, for a part of a server's data."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from faults.servers import NotInstalled
from faults.servers.installation import Installation

_PIECE = b"\0" * (1 << 16)
_FILLER = "filler"

TABLES = "base"
"""Where tables are. Statements fail when it is full, and the server stays up."""
WAL = "pg_wal"
"""When this is full the server goes down, and does not start before there is space again."""


class Disk:
    """A folder of a server's data, on a disk of its own."""

    def __init__(self, folder: Path, *, megabytes: int, installation: Installation) -> None:
        """Moves what is in `folder` to the new disk. Nobody may be using it."""
        self._folder = folder
        aside = folder.with_name(f"{folder.name}.aside")
        folder.rename(aside)
        folder.mkdir(0o700)
        try:
            _mount(folder, megabytes, installation)
        except NotInstalled:
            folder.rmdir()
            aside.rename(folder)
            raise
        subprocess.run(["cp", "-a", f"{aside}/.", str(folder)], check=True)
        shutil.rmtree(aside)

    def fill(self) -> None:
        """Write until nothing more can be written."""
        with (self._folder / _FILLER).open("ab", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(_PIECE)
        with (self._folder / _FILLER).open("ab", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"\0")

    def free(self) -> None:
        """Give the space back."""
        (self._folder / _FILLER).unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize

    def remove(self) -> None:
        """Unmount it; what was on it is lost."""
        subprocess.run(["umount", str(self._folder)], check=False)


def _mount(folder: Path, megabytes: int, installation: Installation) -> None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or installation.account is None:
        raise NotInstalled("a disk of limited size needs root on Linux: run it as root")
    owner = f"uid={installation.account.uid},gid={installation.account.gid}"
    options = f"size={megabytes}m,mode=0700,{owner}"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "postbus-faults", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise NotInstalled(f"a disk of limited size cannot be mounted here: {done.stderr.strip()}")
