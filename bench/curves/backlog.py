"""By backlog: drain the first messages from the queue, and read them from the log."""

from __future__ import annotations

import contextlib
from functools import partial
from statistics import median

from bench import load
from bench.consume import BATCHES, drain_some
from bench.curves.topics import QUEUE
from bench.lab import Lab, connection
from bench.log.backlog import reads
from bench.log.publish import TOPIC
from bench.plan import BATCH, Plan
from bench.points import Points
from bench.report import Report
from bench.rounds import Measure, alternate
from bench.series import point
from postbus import Bus

_READS = 40  # reads of the log per round
_IN_HAND = 3_000  # messages that a worker may claim beyond the counted ones before it ends
_NAMES = ("drain_queue", "read_log")


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Fill a database for each size first, then measure them by turns."""
    points = plan.points
    rounds = 2 * points.rounds - 1  # more than for other curves, since these values are expected to be equal
    measures: dict[str, Measure] = {}
    async with contextlib.AsyncExitStack() as stack:
        for size in points.backlogs:
            dsn = await stack.enter_async_context(lab.database())
            await _fill(dsn, size, points, rounds)
            measures[f"drain_queue {size}"] = partial(drain_some, dsn, QUEUE, BATCHES, count=points.drained)
            measures[f"read_log {size}"] = partial(_read, dsn)
        async with connection(dsn) as conn:
            await conn.execute("checkpoint")  # so that earlier writes do not slow down what follows
        rates = await alternate(measures, rounds=rounds)
    for name in _NAMES:
        for size in points.backlogs:
            report.add(**{point(f"{name}_per_s", "backlog_messages", size): rates.median(f"{name} {size}")})
        ratio = rates.ratio(f"{name} {points.backlogs[-1]}", f"{name} {points.backlogs[0]}")
        report.check(f"{name}_largest_to_smallest_backlog_ratio", ratio, ">=", 0.7)


async def _fill(dsn: str, size: int, points: Points, rounds: int) -> None:
    """The queue gets enough messages for the last round to find the whole backlog, too."""
    given = load.payloads(min(size, 50_000))
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(QUEUE)
        await bus.admin.pause_topic(QUEUE)
        await load.fill(bus, conn, QUEUE, given, size + rounds * (points.drained + _IN_HAND))
        await bus.admin.create_topic(TOPIC, semantics="PUB_SUB", lanes=1)
        await load.fill(bus, conn, TOPIC, given, size)
        await conn.execute("select postbus.subscribe($1, 'reader', 'FROM_BEGINNING')", TOPIC)


async def _read(dsn: str) -> float:
    """Messages per second: the median of several reads at the beginning of the log."""
    async with connection(dsn) as conn:
        await conn.execute("select postbus.seek($1, 'reader', 'FROM_BEGINNING')", TOPIC)
    return BATCH / median(await reads(dsn, _READS))
