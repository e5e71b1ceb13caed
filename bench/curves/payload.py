"""By payload size: publishing and consuming, in messages and in bytes."""

from __future__ import annotations

from functools import partial

from bench import load
from bench.consume import BATCHES, Handling
from bench.curves.topics import LOG, QUEUE, Topics, topics
from bench.lab import Lab
from bench.plan import BATCH, Plan
from bench.report import Report
from bench.rounds import Measure, alternate
from bench.series import point

_MOST_MESSAGES = 20_000
_CALL_BYTES = 1_000_000  # per call of publish_many, at most


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Publish to and consume from the log and the queue, all sizes by turns."""
    points = plan.points
    measures: dict[str, Measure] = {}
    async with topics(lab) as here:
        for size in points.payload_bytes:
            given = load.payloads(max(min(_MOST_MESSAGES, points.payload_total_bytes // size), 1), size=size)
            batch = max(min(BATCH, _CALL_BYTES // size), 1)
            handling = Handling(concurrency=1, batch=batch)
            works: dict[str, Measure] = {
                "publish_log": partial(here.publish, LOG, given, batch=batch),
                "publish_queue": partial(_publish_to_queue, here, given, batch),
                "consume_log": partial(here.read_log, given, handling, batch=batch),
                "consume_queue": partial(here.drain_queue, given, BATCHES, batch=batch),
            }
            measures |= {point(f"{name}_per_s", "payload_bytes", size): work for name, work in works.items()}
        rates = (await alternate(measures, rounds=points.rounds)).medians()
    report.add(**rates)
    for name, rate in rates.items():
        size = int(name.partition("=")[2])
        report.add(**{name.replace("_per_s@", "_mb_per_s@"): rate * size / 2**20})


async def _publish_to_queue(here: Topics, given: list[load.Payload], batch: int) -> float:
    rate = await here.publish(QUEUE, given, batch=batch)
    await here.empty_queue()
    return rate
