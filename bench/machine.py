"""The machine of a run, and how much of it the processes use."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """The facts that a reader needs to compare figures."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "event_loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
        "million_additions_ms": round(1000 * _million_additions(), 1),
        "platform": platform.platform(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _million_additions() -> float:
    """The fastest of several tries, in seconds, since the speed of a virtual machine varies."""

    def once() -> float:
        began, total = time.perf_counter(), 0
        for number in range(1_000_000):
            total += number
        return time.perf_counter() - began

    return min(once() for _ in range(3))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def resident_mb(pid: int | None = None) -> float:
    """The memory of a process, by default this one. Without /proc: the most that this process ever had."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text("ascii").split()[1])
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used. 0 where /proc does not show it."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[_OWN_TICKS]
    except OSError:
        return 0.0
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def server_cpu_seconds(backend: int) -> float:
    """The processor time that all processes of a server have used, found by one of its backends.

    0 where /proc does not show it, as for a server on another machine.
    """
    postmaster = _stat(backend)[_PARENT]
    if not postmaster:
        return 0.0
    now = [_stat(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")]
    ticks = sum(sum(one[_OWN_TICKS]) for one in now if one[_PARENT] == postmaster)
    ticks += sum(_stat(postmaster)[_ALL_TICKS])
    return ticks / os.sysconf("SC_CLK_TCK")


_PARENT = 1
_OWN_TICKS = slice(11, 13)
_ALL_TICKS = slice(11, 15)  # including those of ended children


def _stat(pid: int) -> list[int]:
    """The fields of /proc/PID/stat for a process of PostgreSQL, from its state (0) on. Zeros for other processes."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")
    except OSError:
        name = ""
    if not name.endswith("(postgres"):
        return [0] * 15
    return [0, *map(int, rest.split()[1:15])]
