"""The memory of a worker process while it drains a large backlog."""

from __future__ import annotations

from functools import partial

from bench import load
from bench.consume import SINGLES, Counter, reached, running, subscribe
from bench.lab import Lab, connection
from bench.machine import resident_mb
from bench.plan import Plan
from bench.processes import elsewhere
from bench.report import Report
from postbus import Bus

_TOPIC = "bench.memory"
_MOST_GROWTH_MB = 20.0
_MOST_GROWTH_PART = 0.2


class _Marks(Counter):
    """Notes the memory of the process at the first message, after a tenth of all, and at the last."""

    def __init__(self, wanted: int) -> None:
        super().__init__(wanted)
        self.memory: list[float] = []
        self._marks = [1, wanted // 10, wanted]

    def add(self, count: int) -> None:
        super().add(count)
        if self._marks and self.handled >= self._marks[0]:
            self._marks.pop(0)
            self.memory.append(resident_mb())


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure one process with a single handler: the kind with the most tasks in memory."""
    async with lab.database() as dsn:
        async with Bus.open(dsn) as bus, connection(dsn) as conn:
            await load.fill(bus, conn, _TOPIC, load.payloads(min(plan.messages, 50_000)), plan.messages)
        start, tenth, end = await elsewhere(partial(_drain, dsn, plan.messages))
    report.add(worker_memory_start_mb=start, worker_memory_tenth_mb=tenth, worker_memory_end_mb=end)
    report.check("worker_memory_growth_mb", end - tenth, "<", max(_MOST_GROWTH_MB, _MOST_GROWTH_PART * tenth))


async def _drain(dsn: str, count: int) -> list[float]:
    marks = _Marks(count)
    async with Bus.open(dsn) as bus:
        subscribe(bus, _TOPIC, SINGLES, marks)
        async with running(bus) as worker:
            await reached(marks, worker)
    return marks.memory
