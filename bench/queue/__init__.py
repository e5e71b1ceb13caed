"""The queue: publishing, draining and latency; a backlog, an old transaction, and the memory of a worker."""

from __future__ import annotations

from functools import partial

from bench import latency
from bench.queue import backlog, drain, memory, old_transaction, publish
from bench.scenario import Scenario, settings_of_rounds

SCENARIO = Scenario(
    "queue",
    {
        "publish in bulk": publish.measure_bulk,
        "publish one by one": publish.measure_single,
        "drain": drain.measure,
        "latency": partial(latency.measure, semantics="QUEUE", p50_ms=2, p99_ms=6),
        "drain a backlog": backlog.measure,
        "memory": memory.measure,
        "drain beside an old transaction": old_transaction.measure,
    },
    lambda plan: settings_of_rounds(plan, backlog=plan.messages, old_seconds=plan.old_seconds),
)
