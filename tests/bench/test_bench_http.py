"""python -m bench http: it measures what it says, at a small size."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """The report that a quick run prints."""
    command = [sys.executable, "-m", "bench", "http", "--quick", "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert finished.returncode in (0, 1), finished.stderr
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer


def test_every_part_has_figures(report: dict[str, Any]) -> None:
    """Pushing and popping, in batches and one by one, and polls that wait."""
    figures = report["figures"]
    for name in ("push_batch", "push_batch_python", "pop_batch", "pop_batch_python", "push_single", "pop_single"):
        assert figures[f"http_{name}_per_s"] > 0
    assert figures["http_polls"] == report["settings"]["polls"] == 50
    assert figures["http_polls_resident_mb"] > 10
    assert 0 < figures["http_poll_wake_up_p50_ms"] <= figures["http_poll_wake_up_p99_ms"]


def test_goals_are_checked(report: dict[str, Any]) -> None:
    """It has the cost of a poll, how soon it wakes up, and what HTTP takes of the throughput."""
    assert {check["name"] for check in report["checks"]} == {
        "http_push_batch_to_python_ratio", "http_pop_batch_to_python_ratio", "http_poll_wake_up_p99_ms",
        "http_polls_idle_cpu_percent", "http_poll_kib",
    }  # fmt: skip
