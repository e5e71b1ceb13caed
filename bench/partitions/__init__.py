"""Partitions are made ahead and dropped while publishing and consuming go on. Days are seconds here."""

from __future__ import annotations

from bench.partitions import story
from bench.scenario import Scenario

SCENARIO = Scenario(
    "partitions",
    {"partitions come and go": story.measure},
    lambda plan: {
        "messages_per_second": plan.day_rate,
        "seconds_per_day": plan.day,
        "days": story.DAYS,
        "retention_days": story.RETENTION,
    },
)
