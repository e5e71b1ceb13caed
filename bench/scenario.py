"""A scenario: parts that are measured one after the other, each in databases of its own."""

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
"""Measures something in the scenario's workspace, and adds it to the report."""


@dataclass(frozen=True)
class Scenario:
    """The measurements under one name."""

    name: str
    parts: Mapping[str, Part]
    settings: Callable[[Plan], dict[str, Any]]
    """The parts of the plan that a reader needs to compare figures."""

    async def run(self, lab: Lab, plan: Plan, progress: Progress) -> Report:
        began = time.monotonic()
        settings = {**await lab.settings(), "payload_bytes": load.PAYLOAD_BYTES, **self.settings(plan)}
        report = Report(self.name, machine(), settings)
        async with self.workspace(lab, report) as workspace:
            for name, part in self.parts.items():
                progress.begin(name)
                await part(workspace, plan, report)
                progress.end()
        report.settings["took_seconds"] = round(time.monotonic() - began, 1)
        return report

    def summary(self, report: Report) -> dict[str, dict[str, float]]:
        """Figures that are easier to read side by side: a line by name, with the value of each column."""
        return {}

    @contextlib.asynccontextmanager
    async def workspace(self, lab: Lab, report: Report) -> AsyncIterator[Any]:
        """The workspace of the parts: by default the server."""
        yield lab


def settings_of_rounds(plan: Plan, *, backlog: int, old_seconds: float) -> dict[str, Any]:
    """The settings of a scenario that is measured beside peers, round by round."""
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
