"""The benchmark runs, and says what it found in the form that its readers rely on."""

from __future__ import annotations

from typing import Any

import pytest

from support.bench_reports import held, quick_report

pytestmark = pytest.mark.timeout(180)  # a busy machine takes its time

_PARTS = ("publish_bulk", "publish_single", "send", "drain", "latency", "old_transaction", "worker_memory")
_CHECKS = {
    "publish_bulk_to_handwritten_ratio",
    "drain_batch_handler_to_handwritten_ratio",
    "drain_single_handler_to_handwritten_ratio",
    "latency_p50_ms",
    "latency_p99_ms",
    "drain_large_to_small_backlog_ratio",
    "drain_old_transaction_ratio",
    "worker_memory_growth_mb",
}
_UNITS = ("_per_s", "_ms", "_mb", "_ratio", "_messages")


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return quick_report("queue")


def test_a_run_tells_on_which_machine_it_was_made(report: dict[str, Any]) -> None:
    """Figures of another one cannot be compared."""
    machine = report["machine"]
    assert {"cores", "memory_gib", "cpu", "python", "platform"} <= set(machine)
    assert (machine["event_loop"], machine["million_additions_ms"] > 0) == ("uvloop", True)


def test_figures_are_numbers_with_their_unit_in_the_name(report: dict[str, Any]) -> None:
    """Every part of the run has figures."""
    for name, value in report["figures"].items():
        assert isinstance(value, int | float), name
        assert name.endswith(_UNITS), name
    for part in _PARTS:
        assert any(name.startswith(part) for name in report["figures"]), part


def test_the_settings_tell_what_was_measured(report: dict[str, Any]) -> None:
    """Commits were durable, and payloads had the size and the content that the goals are for."""
    assert report["settings"]["fsync"] == "on"
    assert report["settings"]["synchronous_commit"] == "on"
    assert report["settings"]["payload_bytes"] == 200
    assert report["settings"]["payload_entropy_bits_per_byte"] > 5
    assert report["settings"]["old_transaction_seconds"] < 300


def test_every_goal_has_a_check(report: dict[str, Any]) -> None:
    """Each check is consistent in itself. Whether timings are met is not tested on a busy machine."""
    assert {check["name"] for check in report["checks"]} == _CHECKS
    for check in report["checks"]:
        comparison, goal = check["goal"].split()
        assert check["ok"] == (check["value"] >= float(goal) if comparison == ">=" else check["value"] < float(goal))


def test_the_memory_of_a_worker_stays_flat(report: dict[str, Any]) -> None:
    """A backlog passes through a worker without staying there."""
    assert held(report)["worker_memory_growth_mb"], report["figures"]
