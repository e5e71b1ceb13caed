"""The curves run, and each has its points."""

from __future__ import annotations

from typing import Any

import pytest

from bench.paper.pictures import pictures
from bench.plan import Plan
from bench.series import split
from support.bench_reports import Quick, held

pytestmark = pytest.mark.timeout(180)  # a busy machine takes its time


@pytest.fixture(scope="module")
def report(quick: Quick) -> dict[str, Any]:
    return quick("curves")


def test_every_curve_has_a_point_for_each_value_of_its_parameter(report: dict[str, Any]) -> None:
    """Of the queue and of the log, and nothing but numbers above zero where something was measured."""
    _, series = split(report["figures"])
    places = {(one.name, one.parameter): [at for at, _ in one.points] for one in series}

    for kind in ("queue", "log"):
        for name in (f"publish_{kind}_per_s", f"consume_{kind}_per_s", f"wal_{kind}_bytes_per_message"):
            assert places[name, "batch"] == [10, 1000]
        for name in (f"publish_{kind}_per_s", f"consume_{kind}_mb_per_s"):
            assert places[name, "payload_bytes"] == [100, 10_000]
        for name in ("p50", "p95", "p99"):
            assert places[f"latency_{kind}_{name}_ms", "rate_per_s"] == [50, 100]
        assert len(places[f"worker_memory_{kind}_mb", "seconds"]) >= 10
        assert len(places[f"dead_{kind}_rows", "seconds"]) >= 10
    assert places["deliveries_per_s", "groups"] == [1, 10]
    assert places["consume_2_processes_per_s", "lanes"] == [2]
    assert places["drain_queue_per_s", "backlog_messages"] == [2_000, 10_000]
    assert places["read_log_per_s", "backlog_messages"] == [2_000, 10_000]
    assert all(value > 0 for one in series if not one.name.startswith("dead_") for _, value in one.points)


def test_the_largest_backlog_can_be_chosen() -> None:
    """Others are a tenth of the next one each."""
    assert Plan().points.backlogs == (10_000, 100_000, 1_000_000)
    assert Plan().changed(messages=10_000_000).points.backlogs == (10_000, 100_000, 1_000_000, 10_000_000)
    assert Plan().changed(messages=30_000).points.backlogs == (30_000,)


def test_nothing_is_lost_on_the_way(report: dict[str, Any]) -> None:
    """A latency is of every message; memory stays flat; and dead rows beside an open transaction are counted."""
    holds = held(report)

    for name in ("latency_queue_lost_messages", "latency_log_lost_messages", "worker_memory_queue_growth_mb"):
        assert holds[name], name
    assert {"dead_queue_to_handwritten_rows_ratio", "read_log_largest_to_smallest_backlog_ratio"} <= set(holds)


def test_every_curve_becomes_a_line_of_a_chart(report: dict[str, Any]) -> None:
    """The title of the chart names what the curve shows."""
    titles = [picture.title for picture in pictures(report)]

    assert titles == [
        "Throughput by batch",
        "Space per message by batch",
        "Throughput by groups",
        "Throughput by lanes",
        "Throughput by backlog",
        "Throughput by payload",
        "Throughput in bytes by payload",
        "Latency by load",
        "Throughput by load",
        "Dead rows over time",
        "Worker memory over time",
    ]
