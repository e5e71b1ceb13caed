"""Locks on files, which the kernel releases when their holder dies, and files of a folder of ours."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from pathlib import Path

SHARED = fcntl.LOCK_SH
EXCLUSIVE = fcntl.LOCK_EX

POLL = 0.01


class FileLock:
    """One holder's claim on a lock file."""

    def __init__(self, path: Path) -> None:
        self.fd = open_ours(path, os.O_RDWR)

    def try_acquire(self, mode: int) -> bool:
        try:
            fcntl.flock(self.fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self, mode: int, deadline: float) -> bool:
        """False if others did not release it before `deadline`, on the monotonic clock."""
        while not self.try_acquire(mode):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL)
        return True

    def wait(self, mode: int) -> None:
        fcntl.flock(self.fd, mode)

    def release(self) -> None:
        """Unlock for everybody who shares this claim.

        A process that was forked meanwhile has a copy of the descriptor, and must not keep what it never
        asked for.
        """
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)

    def leave(self) -> None:
        """Drop this process's part of the claim: a forked child that shares it still holds it."""
        os.close(self.fd)


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock exclusively."""
    if not path.exists():
        return False
    probe = FileLock(path)
    free = probe.try_acquire(SHARED)
    probe.release()
    return not free


def open_ours(path: Path, flags: int) -> int:
    """Open a file in a folder of ours; a file that root creates gets the owner of the folder.

    The folder may belong to a less trusted user than we are, so links are not followed.
    """
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return _open_existing(path, flags)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)
    return fd


def _open_existing(path: Path, flags: int) -> int:
    """Open what is there, if it is a plain file; in somebody else's folder no file that has a name elsewhere too."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(fd)
    is_shared = os.geteuid() == 0 and path.parent.stat().st_uid != 0 and found.st_nlink != 1
    if not stat.S_ISREG(found.st_mode) or is_shared:
        os.close(fd)
        raise PermissionError(f"{path} is no plain file of its own")
    return fd


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power failure."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
