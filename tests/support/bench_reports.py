"""Reports of benchmarks: of quick runs, and made up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

Quick = Callable[..., dict[str, Any]]
"""Makes a quick run of a scenario, and returns its report."""


def quick_report(scenario: str, *options: str, dsn: str | None = None) -> dict[str, Any]:
    """The one JSON object that a quick run prints. Without `dsn` it starts a server of its own."""
    on = [] if dsn is None else ["--dsn", dsn]
    command = [sys.executable, "-m", "bench", scenario, "--quick", "--json", *on, *options]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=170)
    assert finished.stdout, finished.stderr
    report: dict[str, Any] = json.loads(finished.stdout)
    assert list(report) == ["scenario", "machine", "settings", "figures", "checks"]
    assert report["scenario"] == scenario
    assert finished.returncode == (0 if all(held(report).values()) else 1)
    return report


def held(report: dict[str, Any]) -> dict[str, bool]:
    """Whether each check of a report holds, by its name."""
    return {check["name"]: check["ok"] for check in report["checks"]}


def report(scenario: str, figures: dict[str, float], **more: Any) -> dict[str, Any]:
    """The output of `python -m bench SCENARIO --json`."""
    return {
        "scenario": scenario,
        "machine": {"cores": 2, "cpu": "a cpu", "load_at_start": 0.5, "measured_at": "2026-01-02T03:04:05+00:00"},
        "settings": {"postgresql_version": "18", "took_seconds": 12.5},
        "figures": figures,
        "checks": [],
        **more,
    }
