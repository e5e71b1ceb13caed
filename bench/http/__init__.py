"""The HTTP server: pushing, popping, and a thousand waiting polls."""

from __future__ import annotations

from bench.http import polls, throughput
from bench.scenario import Scenario

SCENARIO = Scenario(
    "http",
    {
        "push batches": throughput.measure_push,
        "pop batches": throughput.measure_pop,
        "one by one": throughput.measure_single,
        "waiting polls": polls.measure,
    },
    lambda plan: {
        "connections": throughput.CONNECTIONS,
        "push_batch": throughput.PUSH_BATCH,
        "pop_batch": throughput.POP_BATCH,
        "polls": plan.polls,
        "messages_per_round": plan.per_round,
        "rounds": plan.rounds,
    },
)
