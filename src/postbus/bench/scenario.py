"""A scenario: parts that are measured one after the other, each on databases of its own."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from postbus.bench import load
from postbus.bench.lab import Lab
from postbus.bench.machine import machine
from postbus.bench.plan import BATCH, Plan
from postbus.bench.progress import Progress
from postbus.bench.report import Report

Part = Callable[[Lab, Plan, Report], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """What is measured under one name."""

    name: str
    parts: Mapping[str, Part]
    settings: Callable[[Plan], dict[str, Any]]
    """What of the plan a reader has to know to compare figures."""

    async def run(self, lab: Lab, plan: Plan, progress: Progress) -> Report:
        began = time.monotonic()
        settings = {**await lab.settings(), "payload_bytes": load.PAYLOAD_BYTES, **self.settings(plan)}
        report = Report(self.name, machine(), settings)
        for name, part in self.parts.items():
            progress.begin(name)
            await part(lab, plan, report)
            progress.end()
        report.settings["took_seconds"] = round(time.monotonic() - began, 1)
        return report


def settings_of_rounds(plan: Plan, *, backlog: int, old_seconds: float) -> dict[str, Any]:
    """The settings of scenarios that are measured beside peers, round by round."""
    return {
        "payload_entropy_bits_per_byte": round(load.entropy(load.payloads(1000)), 2),
        "batch": BATCH,
        "rounds": plan.rounds,
        "messages_per_round": plan.per_round,
        "messages_in_large_backlog": backlog,
        "messages_in_small_backlog": plan.few,
        "latency_seconds": plan.latency_seconds,
        "old_transaction_seconds": old_seconds,
    }
