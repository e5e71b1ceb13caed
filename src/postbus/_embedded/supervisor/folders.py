"""Folders and files where others may be at work: nothing is done by a name that could be somebody else's link.

Root gives folders to the server's account, and works in folders that belong to it. So every file is opened without
following a link, owners and modes are changed by descriptor, and nobody but root can change the way to a folder.
"""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from .locks import sync_folder

_OWN_GROUPS = range(60_600, 61_100)  # numbers that no distribution gives to anybody
_MOST = 1 << 20  # bytes of a file that is read as a whole


@contextmanager
def folder_fd(path: Path) -> Iterator[int]:
    """A descriptor of a folder. For root never of one that a link leads to; others only harm themselves by links."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | (os.O_NOFOLLOW if os.geteuid() == 0 else 0))
    try:
        yield fd
    finally:
        os.close(fd)


def make_folder(path: Path, mode: int, *, owner: tuple[int, int] | None = None) -> None:
    """Make a folder, and give it a mode and an owner. Whatever somebody puts in its place meanwhile keeps its own."""
    path.mkdir(0o700)
    with folder_fd(path) as fd:
        if os.fstat(fd).st_uid != os.geteuid():
            raise PermissionError(f"somebody has put another folder in the place of {path}")
        os.fchmod(fd, mode)
        if owner is not None:
            os.fchown(fd, *owner)


def make_folders(path: Path, mode: int) -> None:
    """Make what is missing of `path`; the mode goes to the folders that we made, and to no other."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            with suppress(FileExistsError):
                make_folder(folder, mode)
                sync_folder(folder.parent)


def remove(path: Path) -> None:
    """Remove a folder with all in it, or a file; of a link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_text(path: Path, *, last: int = _MOST) -> str:
    """The end of a file, which may be somebody else's. Raises FileNotFoundError also where there is no plain file."""
    with folder_fd(path.parent) as folder:
        try:
            fd = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            raise FileNotFoundError(f"there is no plain file {path}") from error
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(f"there is no plain file {path}")
        file.seek(max(0, found.st_size - last))
        return file.read(last).decode("utf-8", "replace")


def unlink(path: Path) -> None:
    """Remove a file, if it is there, from a folder that is no link."""
    with folder_fd(path.parent) as folder, suppress(FileNotFoundError):
        os.unlink(path.name, dir_fd=folder)


def changeable_by_others(path: Path) -> Path | None:
    """The first folder on the way to this one in which others than root may replace the next.

    The last one may belong to somebody else, but if it is root's, nobody else may write to it.
    """
    for parent, child in pairwise((*reversed(path.parents), path)):
        found = parent.stat()
        if found.st_uid != 0:
            return parent
        if _lets_others_write(found) and not (found.st_mode & stat.S_ISVTX and child.lstat().st_uid == 0):
            return parent
    found = path.stat()
    return path if found.st_uid == 0 and _lets_others_write(found) else None


def _lets_others_write(found: os.stat_result) -> bool:
    return bool(found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != 0))


def own_group(path: Path) -> int:
    """The number of a group that may enter a folder of root, and that nobody else is in.

    The folder remembers it. Groups are numbers: this one needs no entry in a list, and only we put anybody in it.
    """
    if path.exists() and (found := path.stat().st_gid) in _OWN_GROUPS:
        return found
    taken = {entry.gr_gid for entry in grp.getgrall()} | {entry.pw_gid for entry in pwd.getpwall()}
    free = [one for one in _OWN_GROUPS if one not in taken]
    return free[int.from_bytes(hashlib.sha256(os.fsencode(path)).digest()[:8]) % len(free)]


def close_to_others(path: Path, group: int) -> None:
    """Let root and this group enter a folder of root, and nobody else."""
    with folder_fd(path) as fd:
        os.fchown(fd, 0, group)
        os.fchmod(fd, 0o710)
