"""A group is killed, found dead, no longer waited for, and comes back. Minutes are seconds here."""

from __future__ import annotations

from bench.kill import story
from bench.scenario import Scenario

SCENARIO = Scenario(
    "kill-and-resurrect",
    {"the life of a group": story.measure},
    lambda plan: {
        "messages_per_second": story.RATE,
        "seconds_per_minute": plan.minute,
        "bound_messages": story.bound(plan),
    },
)
