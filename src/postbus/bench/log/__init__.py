"""The log: publishing, consuming, fan-out, latency, and what must not make them slower."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from postbus.bench import latency, load
from postbus.bench.lab import Lab
from postbus.bench.load import PAYLOAD_BYTES
from postbus.bench.log import backlog, consume, fanout, idle, publish
from postbus.bench.machine import machine
from postbus.bench.plan import BATCH, Plan
from postbus.bench.progress import Progress
from postbus.bench.report import Report

_Part = Callable[[Lab, Plan, Report], Awaitable[None]]

PARTS: dict[str, _Part] = {
    "publish in bulk": publish.measure,
    "consume": consume.measure,
    "ten groups": fanout.measure,
    "publish beside groups": fanout.measure_publishing,
    "latency": partial(latency.measure, semantics="PUB_SUB", p50_ms=1.5, p99_ms=5),
    "read from a backlog": backlog.measure,
    "many topics and groups": idle.measure,
}


async def run(lab: Lab, plan: Plan, progress: Progress) -> Report:
    """Measure all parts, one after the other, each on databases of its own."""
    settings = {
        **await lab.settings(),
        "payload_bytes": PAYLOAD_BYTES,
        "payload_entropy_bits_per_byte": round(load.entropy(load.payloads(1000)), 2),
        "batch": BATCH,
        "rounds": plan.rounds,
        "messages_per_round": plan.per_round,
        "messages_in_large_backlog": plan.log_messages,
        "messages_in_small_backlog": plan.few,
        "latency_seconds": plan.latency_seconds,
        "old_transaction_seconds": plan.log_old_seconds,
    }
    report = Report("log", machine(), settings)
    for name, part in PARTS.items():
        progress.begin(name)
        await part(lab, plan, report)
        progress.end()
    return report
