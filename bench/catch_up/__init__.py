"""A late group works through history beside live groups and an application on the same database."""

from __future__ import annotations

from bench.catch_up import contention
from bench.scenario import Scenario

SCENARIO = Scenario(
    "catch-up",
    {"history beside other work": contention.measure},
    lambda plan: {
        "history_messages": plan.history,
        "live_messages_per_second": contention.LIVE_RATE,
        "transactions_per_second": contention.TRANSACTIONS,
        "seconds_at_most": plan.catch_up_seconds,
        **contention.options(plan),
    },
)
