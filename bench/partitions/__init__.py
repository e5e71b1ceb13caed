"""Partitions are created ahead and dropped while publishing and consuming go on. A few seconds stand for a day."""

from __future__ import annotations

from bench.partitions import timeline
from bench.scenario import Scenario

SCENARIO = Scenario(
    "partitions",
    {"partitions come and go": timeline.measure},
    lambda plan: {
        "messages_per_second": plan.day_rate,
        "seconds_per_day": plan.day,
        "days": timeline.DAYS,
        "retention_days": timeline.RETENTION,
    },
)
