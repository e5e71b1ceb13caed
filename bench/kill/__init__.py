"""A group is killed, becomes DEAD, is no longer required, and comes back. A few seconds stand for a minute."""

from __future__ import annotations

from bench.kill import timeline
from bench.scenario import Scenario

SCENARIO = Scenario(
    "kill-and-resurrect",
    {"the life of a group": timeline.measure},
    lambda plan: {
        "messages_per_second": timeline.RATE,
        "seconds_per_minute": plan.minute,
        "bound_messages": timeline.bound(plan),
    },
)
