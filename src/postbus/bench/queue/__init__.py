"""The queue: publishing, draining, latency, and what must not make them slower."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from postbus.bench import latency, load
from postbus.bench.lab import Lab
from postbus.bench.load import PAYLOAD_BYTES
from postbus.bench.machine import machine
from postbus.bench.plan import BATCH, Plan
from postbus.bench.progress import Progress
from postbus.bench.queue import backlog, drain, memory, old_transaction, publish
from postbus.bench.report import Report

_Part = Callable[[Lab, Plan, Report], Awaitable[None]]

PARTS: dict[str, _Part] = {
    "publish in bulk": publish.measure_bulk,
    "publish one by one": publish.measure_single,
    "drain": drain.measure,
    "latency": partial(latency.measure, semantics="QUEUE", p50_ms=2, p99_ms=6),
    "drain a backlog": backlog.measure,
    "memory": memory.measure,
    "drain beside an old transaction": old_transaction.measure,
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
        "messages_in_large_backlog": plan.messages,
        "messages_in_small_backlog": plan.few,
        "latency_seconds": plan.latency_seconds,
        "old_transaction_seconds": plan.old_seconds,
    }
    report = Report("queue", machine(), settings)
    for name, part in PARTS.items():
        progress.begin(name)
        await part(lab, plan, report)
        progress.end()
    return report
