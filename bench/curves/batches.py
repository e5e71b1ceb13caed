"""By batch size: publishing and consuming, and the bytes of disk and write-ahead log per message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

from bench import load
from bench.consume import Handling
from bench.curves.topics import LOG, QUEUE, Topics, topics
from bench.lab import Lab
from bench.plan import Plan
from bench.points import Points
from bench.report import Report
from bench.rounds import Measure, alternate
from bench.series import point

_CONCURRENCY = 2
_LOG_TIMES = 4
"""How many more messages the log gets, since it is so much faster."""
_WRITTEN = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
_SIZE = """
    select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c
     where c.relnamespace = 'postbus'::regnamespace and c.relkind = 'r'
"""


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure all sizes by turns, for the log and the queue."""
    points = plan.points
    async with topics(lab) as here:
        space: dict[str, list[float]] = {}
        publishing: dict[str, Measure] = {}
        consuming: dict[str, Measure] = {}
        for size in points.batches:
            given = load.payloads(_count(points, size))
            handling = Handling(concurrency=_CONCURRENCY, batch=None if size == 1 else size)
            for kind, topic in (("log", LOG), ("queue", QUEUE)):
                name = point(f"publish_{kind}_per_s", "batch", size)
                publishing[name] = partial(_publish, here, kind, topic, given, size, space)
            consuming[point("consume_log_per_s", "batch", size)] = partial(here.read_log, given * _LOG_TIMES, handling)
            consuming[point("consume_queue_per_s", "batch", size)] = partial(here.drain_queue, given, handling)
        report.add(**(await alternate(publishing, rounds=points.rounds)).medians())
        await here.empty_queue()
        report.add(**(await alternate(consuming, rounds=points.rounds)).medians())
    report.add(**{name: median(found) for name, found in space.items()})


async def _publish(
    here: Topics, kind: str, topic: str, given: Sequence[load.Payload], size: int, space: dict[str, list[float]]
) -> float:
    """Messages per second, and the bytes per message by the name of their series."""
    await here.empty_queue()
    wal, disk = await here.conn.fetchval(_WRITTEN), await here.conn.fetchval(_SIZE)
    rate = await here.publish(topic, given, batch=size)
    written, stored = await here.conn.fetchval(_WRITTEN) - wal, await here.conn.fetchval(_SIZE) - disk
    for what, taken in (("wal", written), ("disk", stored)):
        name = point(f"{what}_{kind}_bytes_per_message", "batch", size)
        space.setdefault(name, []).append(taken / len(given))
    return rate


def _count(points: Points, size: int) -> int:
    """How many messages to measure with. Small batches take longer, so they get fewer."""
    return max(points.batch_messages // 20, min(points.batch_messages, points.batch_messages * size // 100))
