"""The benchmark runs, and says what it found in the form that its readers rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

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
def finished() -> subprocess.CompletedProcess[str]:
    """A quick run, on a server of its own."""
    command = [sys.executable, "-m", "postbus.bench", "queue", "--quick", "--json"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def report(finished: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert finished.stdout, finished.stderr
    parsed: dict[str, Any] = json.loads(finished.stdout)
    return parsed


def test_a_run_prints_one_json_object(report: dict[str, Any]) -> None:
    """Standard output holds the report and nothing else."""
    assert list(report) == ["scenario", "machine", "settings", "figures", "checks"]
    assert report["scenario"] == "queue"
    assert {"cores", "memory_gib", "cpu", "python", "platform"} <= set(report["machine"])


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
    """What a check says about itself is consistent. Whether the timings are met is not tested on a busy machine."""
    assert {check["name"] for check in report["checks"]} == _CHECKS
    for check in report["checks"]:
        comparison, goal = check["goal"].split()
        assert check["ok"] == (check["value"] >= float(goal) if comparison == ">=" else check["value"] < float(goal))


def test_the_memory_of_a_worker_stays_flat(report: dict[str, Any]) -> None:
    """A backlog passes through a worker without staying there."""
    (memory,) = [check for check in report["checks"] if check["name"] == "worker_memory_growth_mb"]
    assert memory["ok"], memory


def test_the_exit_code_tells_whether_all_checks_hold(
    finished: subprocess.CompletedProcess[str], report: dict[str, Any]
) -> None:
    """A script need not read the report."""
    assert finished.returncode == (0 if all(check["ok"] for check in report["checks"]) else 1)
