"""python -m bench http: it measures what it says, at a small size."""

from __future__ import annotations

from typing import Any

import pytest

from support.bench_reports import Quick


@pytest.fixture(scope="module")
def report(quick: Quick) -> dict[str, Any]:
    return quick("http")


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
