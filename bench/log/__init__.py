"""The log: publishing, consuming, fan-out and latency; a backlog, an old transaction, and many topics."""

from __future__ import annotations

from functools import partial

from bench import latency
from bench.log import backlog, consume, fanout, idle, publish
from bench.scenario import Scenario, settings_of_rounds

SCENARIO = Scenario(
    "log",
    {
        "publish in bulk": publish.measure,
        "consume": consume.measure,
        "ten groups": fanout.measure,
        "publish beside groups": fanout.measure_publishing,
        "latency": partial(latency.measure, semantics="PUB_SUB", p50_ms=1.5, p99_ms=5),
        "read from a backlog": backlog.measure,
        "many topics and groups": idle.measure,
    },
    lambda plan: settings_of_rounds(plan, backlog=plan.log_messages, old_seconds=plan.log_old_seconds),
)
