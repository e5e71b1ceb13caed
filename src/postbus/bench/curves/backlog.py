"""By backlog: the first messages of it, drained from the queue and read from the log."""

from __future__ import annotations

from functools import partial
from statistics import median

from postbus import Bus
from postbus.bench import load
from postbus.bench.consume import BATCHES, drain_some
from postbus.bench.curves.place import QUEUE
from postbus.bench.lab import Lab, connection
from postbus.bench.log.backlog import reads
from postbus.bench.log.publish import TOPIC
from postbus.bench.plan import BATCH, Plan
from postbus.bench.report import Report
from postbus.bench.series import point

_READS = 40  # of the log, per round
_IN_HAND = 3_000  # that a worker may take beyond what is counted, before it ends


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """The backlogs grow: each size is what was there before, and more."""
    points = plan.points
    given = load.payloads(50_000)
    rounds = points.rounds + 1
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(QUEUE)
        await bus.admin.pause_topic(QUEUE)
        await bus.admin.create_topic(TOPIC, semantics="PUB_SUB", lanes=1)
        await conn.execute("select postbus.subscribe($1, 'reader', 'FROM_BEGINNING')", TOPIC)
        in_queue = in_log = 0
        fill = partial(load.fill, bus, conn)
        for size in points.backlogs:
            # Enough for all rounds: the last one still finds the whole backlog.
            await fill(QUEUE, given, size + rounds * (points.drained + _IN_HAND) - in_queue)
            await fill(TOPIC, given, size - in_log)
            in_log = size
            drained = [await drain_some(dsn, QUEUE, BATCHES, count=points.drained) for _ in range(rounds)]
            in_queue = await conn.fetchval("select count(*) from postbus.queued")
            await conn.execute("select postbus.seek($1, 'reader', 'FROM_BEGINNING')", TOPIC)
            seconds = [one for _ in range(rounds) for one in await reads(dsn, _READS)]
            report.add(
                **{
                    point("drain_queue_per_s", "backlog_messages", size): median(drained),
                    point("read_log_per_s", "backlog_messages", size): BATCH / median(seconds),
                }
            )
    for name in ("drain_queue", "read_log"):
        small, large = (
            report.figures[point(f"{name}_per_s", "backlog_messages", points.backlogs[place])] for place in (0, -1)
        )
        report.check(f"{name}_largest_to_smallest_backlog_ratio", large / small, ">=", 0.5)
