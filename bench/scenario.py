"""A scenario: parts that are measured one after the other, each on databases of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench import load
from bench.lab import Lab
from bench.machine import machine
from bench.plan import BATCH, Plan
from bench.progress import Progress
from bench.report import Report

Part = Callable[[Any, Plan, Report], Awaitable[None]]
"""Measures something at the scenario's place, and adds it to the report."""


@dataclass(frozen=True)
class Scenario:
    """One scenario: everything that is measured under one name."""

    name: str
    parts: Mapping[str, Part]
    settings: Callable[[Plan], dict[str, Any]]
    """What of the plan a reader has to know to compare figures."""

    async def run(self, lab: Lab, plan: Plan, progress: Progress) -> Report:
        began = time.monotonic()
        settings = {**await lab.settings(), "payload_bytes": load.PAYLOAD_BYTES, **self.settings(plan)}
        report = Report(self.name, machine(), settings)
        async with self.place(lab, report) as place:
            for name, part in self.parts.items():
                progress.begin(name)
                await part(place, plan, report)
                progress.end()
        report.settings["took_seconds"] = round(time.monotonic() - began, 1)
        return report

    def summary(self, report: Report) -> dict[str, dict[str, float]]:
        """Figures that are easier to read side by side: lines by name, and what stands in their columns."""
        return {}

    @contextlib.asynccontextmanager
    async def place(self, lab: Lab, report: Report) -> AsyncIterator[Any]:
        """Where the parts measure."""
        yield lab


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
