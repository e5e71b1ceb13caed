"""Programs that run as another user, and end with the process that started them."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIND_REFUSED = """
for path; do
    if [ -d "$path" ]; then [ -x "$path" ]; else [ -r "$path" ]; fi || { printf %s "$path"; exit; }
done
"""


@dataclass(frozen=True)
class Account:
    """The account that PostgreSQL runs as when root starts it."""

    name: str
    uid: int
    gid: int
    groups: list[int]

    @classmethod
    def find(cls, name_or_uid: str) -> Account | None:
        try:
            entry = pwd.getpwuid(int(name_or_uid)) if name_or_uid.isdecimal() else pwd.getpwnam(name_or_uid)
        except KeyError:
            return None
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, groups)

    def first_refused(self, paths: Iterable[Path]) -> str:
        """The first folder that this account may not enter, or file that it may not read.

        Asked of the kernel as that user, since permissions are more than the bits of a mode.
        """
        return subprocess.run(
            ["/bin/sh", "-c", FIND_REFUSED, "sh", *map(str, paths)],
            check=False,
            user=self.uid,
            group=self.gid,
            extra_groups=self.groups,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        ).stdout


def clean_environment() -> dict[str, str]:
    """Nothing of the starter's shell (PGPORT, LANG, TZ, …) may change the server."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", **kept}


def spawn(
    command: Sequence[str],
    *,
    account: Account | None = None,
    death_signal: int,
    env: Mapping[str, str],
    output: Any = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a program that the kernel sends `death_signal` when the thread that called this ends, in whatever way.

    Where the kernel cannot do that, one that is killed leaves its child behind. `output` and `options` are for Popen.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=env,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=account.groups if account else None,
        preexec_fn=_die_with_parent(death_signal),  # noqa: PLW1509 - it calls the kernel, and nothing else
        **options,
    )


def _die_with_parent(death_signal: int) -> Callable[[], None] | None:
    """The function that a child runs before exec. None if the kernel cannot do it."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, AttributeError, OSError):
        return None
    parent = os.getpid()
    set_parent_death_signal = 1

    def tie() -> None:
        prctl(set_parent_death_signal, ctypes.c_ulong(death_signal))
        # The parent may have died just before.
        if os.getppid() != parent:
            os._exit(1)

    return tie
