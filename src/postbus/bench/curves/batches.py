"""By batch: publishing and consuming, and what a message takes of the disk and of the write-ahead log."""

from __future__ import annotations

from functools import partial
from statistics import median

from postbus.bench import load
from postbus.bench.consume import Handling
from postbus.bench.curves.place import LOG, QUEUE, Place, place
from postbus.bench.lab import Lab
from postbus.bench.plan import Plan
from postbus.bench.points import Points
from postbus.bench.report import Report
from postbus.bench.rounds import Measure, alternate
from postbus.bench.series import point

_CONCURRENCY = 2
_LOG_TIMES = 4
"""The log is so much faster that it gets more to read."""
_WRITTEN = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
_SIZE = """
    select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c
     where c.relnamespace = 'postbus'::regnamespace and c.relkind = 'r'
"""


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Each size by turns: the log, the queue."""
    async with place(lab) as here:
        for size in plan.points.batches:
            await _publish(here, plan.points, size, report)
            await _consume(here, plan.points, size, report)


async def _publish(here: Place, points: Points, size: int, report: Report) -> None:
    given = load.payloads(_count(points, size))
    written: dict[str, list[float]] = {"log": [], "queue": []}
    stored: dict[str, list[float]] = {"log": [], "queue": []}

    async def rate(kind: str, topic: str) -> float:
        await here.empty_queue()
        wal, disk = await here.conn.fetchval(_WRITTEN), await here.conn.fetchval(_SIZE)
        published = await here.publish(topic, given, batch=size)
        written[kind].append((await here.conn.fetchval(_WRITTEN) - wal) / len(given))
        stored[kind].append((await here.conn.fetchval(_SIZE) - disk) / len(given))
        return published

    rates = await alternate(
        {"log": partial(rate, "log", LOG), "queue": partial(rate, "queue", QUEUE)}, rounds=points.rounds
    )
    await here.empty_queue()
    for kind in ("log", "queue"):
        report.add(
            **{
                point(f"publish_{kind}_per_s", "batch", size): rates.median(kind),
                point(f"wal_{kind}_bytes_per_message", "batch", size): median(written[kind]),
                point(f"disk_{kind}_bytes_per_message", "batch", size): median(stored[kind]),
            }
        )


async def _consume(here: Place, points: Points, size: int, report: Report) -> None:
    """Handlers that get up to so many messages per call."""
    handling = Handling(concurrency=_CONCURRENCY, batch=None if size == 1 else size)
    given = load.payloads(_count(points, size))
    measures: dict[str, Measure] = {
        "log": partial(here.read_log, given * _LOG_TIMES, handling),
        "queue": partial(here.drain_queue, given, handling),
    }
    rates = await alternate(measures, rounds=points.rounds)
    for kind in measures:
        report.add(**{point(f"consume_{kind}_per_s", "batch", size): rates.median(kind)})


def _count(points: Points, size: int) -> int:
    """Messages for a batch size: small batches take longer, and get less."""
    return max(points.batch_messages // 20, min(points.batch_messages, points.batch_messages * size // 100))
