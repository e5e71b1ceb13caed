"""By groups: the deliveries of one process with that many groups, each of which gets all messages."""

from __future__ import annotations

import itertools
from functools import partial

from bench import load
from bench.curves.at_once import deliver_at_once
from bench.lab import Lab
from bench.log.groups import BATCHES
from bench.plan import BATCH, Plan
from bench.processes import elsewhere
from bench.report import Report
from bench.rounds import alternate
from bench.series import point

_MOST = 100_000  # messages
_numbers = itertools.count(1)


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure by turns, each number of groups on a topic of its own and in a fresh process."""
    points = plan.points
    async with lab.database() as dsn:

        async def rate(groups: int) -> float:
            return await elsewhere(partial(_read, dsn, groups, min(points.deliveries // groups, _MOST), next(_numbers)))

        rates = await alternate({str(groups): partial(rate, groups) for groups in points.groups}, rounds=points.rounds)
    for groups in points.groups:
        per_s = rates.median(str(groups))
        report.add(
            **{
                point("deliveries_per_s", "groups", groups): per_s,
                point("messages_to_all_per_s", "groups", groups): per_s / groups,
            }
        )
    ratio = rates.ratio(str(points.groups[-1]), str(points.groups[0]))
    report.check("deliveries_to_most_groups_to_one_ratio", ratio, ">=", 1)


async def _read(dsn: str, groups: int, count: int, number: int) -> float:
    given = load.payloads(count)
    return await deliver_at_once(dsn, f"bench.groups-{number}", groups, BATCHES, given, batch=BATCH)
