"""How throughput, latency, space and memory depend on batch size, groups, lanes, backlog, payload, load and time."""

from __future__ import annotations

from dataclasses import asdict

from bench.curves import backlog, batches, groups, lanes, latency, over_time, payload
from bench.scenario import Scenario

SCENARIO = Scenario(
    "curves",
    {
        "by batch": batches.measure,
        "by groups": groups.measure,
        "by lanes and processes": lanes.measure,
        "by backlog": backlog.measure,
        "by payload": payload.measure,
        "latency by load": latency.measure,
        "over time": over_time.measure,
    },
    lambda plan: {f"points_{name}": value for name, value in asdict(plan.points).items()},
)
