"""Draining with a large backlog and with a small one."""

from __future__ import annotations

from functools import partial

from bench import load
from bench.consume import BATCHES, drain_some
from bench.lab import Lab, connection
from bench.plan import Plan
from bench.report import Report
from bench.rounds import alternate
from postbus import Bus

_TOPIC = "bench.backlog"


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Drain the same number of messages per round: the first of a large backlog, or the whole small one."""
    given = load.payloads(min(plan.messages, 50_000))
    async with lab.database() as full, lab.database() as almost_empty:

        async def fill(dsn: str, count: int) -> None:
            async with Bus.open(dsn) as bus, connection(dsn) as conn:
                await load.fill(bus, conn, _TOPIC, given, count)

        async def from_small() -> float:
            await fill(almost_empty, plan.few)
            return await drain_some(almost_empty, _TOPIC, BATCHES, count=plan.few)

        for dsn in (full, almost_empty):
            async with Bus.open(dsn) as bus:
                await bus.admin.create_topic(_TOPIC)
                await bus.admin.pause_topic(_TOPIC)
        # Enough for the last round to find the whole backlog, too.
        rounds = plan.more_rounds(2)
        await fill(full, plan.messages + rounds * plan.few)
        from_large = partial(drain_some, full, _TOPIC, BATCHES, count=plan.few)
        rates = await alternate({"large": from_large, "small": from_small}, rounds=rounds)
    report.add(
        drain_with_large_backlog_per_s=rates.median("large"),
        drain_with_small_backlog_per_s=rates.median("small"),
    )
    report.check("drain_large_to_small_backlog_ratio", rates.ratio("large", "small"), ">=", 0.8)
