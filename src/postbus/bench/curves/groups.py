"""By groups: how many deliveries a process makes that has so many groups, each of which gets everything."""

from __future__ import annotations

import asyncio
from functools import partial

from postbus.bench import load
from postbus.bench.curves.at_once import deliver_at_once
from postbus.bench.lab import Lab
from postbus.bench.log.groups import BATCHES
from postbus.bench.plan import BATCH, Plan
from postbus.bench.processes import elsewhere
from postbus.bench.report import Report
from postbus.bench.series import point

_MOST = 100_000  # messages


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Each number of groups on a topic of its own, in a fresh process."""
    points = plan.points
    async with lab.database() as dsn:
        for groups in points.groups:
            per_s = await elsewhere(partial(_read, dsn, groups, min(points.deliveries // groups, _MOST)))
            report.add(
                **{
                    point("deliveries_per_s", "groups", groups): per_s,
                    point("messages_to_all_per_s", "groups", groups): per_s / groups,
                }
            )
    few, many = (report.figures[point("deliveries_per_s", "groups", points.groups[place])] for place in (0, -1))
    report.check("deliveries_to_most_groups_to_one_ratio", many / few, ">=", 1)


def _read(dsn: str, groups: int, count: int) -> float:
    given = load.payloads(count)
    return asyncio.run(deliver_at_once(dsn, f"bench.groups-{groups}", groups, BATCHES, given, batch=BATCH))
