"""The benchmarks of the log run, and tell what they found."""

from __future__ import annotations

import pytest

from support.bench_reports import held, quick_report

pytestmark = pytest.mark.timeout(180)  # a busy machine takes its time


def test_the_log_is_measured_beside_its_raw_limits() -> None:
    """Every part has figures, and every goal a check."""
    report = quick_report("log")

    assert set(held(report)) == {
        "publish_bulk_to_raw_segments_ratio",
        "publish_bulk_to_raw_copy_ratio",
        "consume_batch_handler_to_keyset_select_ratio",
        "ten_groups_one_process_deliveries_per_s",
        "ten_groups_five_processes_to_keyset_select_ratio",
        "publish_beside_10_groups_to_1_ratio",
        "latency_p50_ms",
        "latency_p99_ms",
        "read_large_to_small_backlog_speed_ratio",
        "read_old_transaction_speed_ratio",
        "idle_many_groups_client_cpu_percent",
    }
    assert all(value >= 0 for value in report["figures"].values())


def test_a_load_test_delivers_everything_to_every_group() -> None:
    """Whatever the timings are on a busy machine: each group has had each message, and the sweep dropped them."""
    report = quick_report("lt7", "--seconds", "3")

    figures = report["figures"]
    assert figures["published_messages"] > 0
    assert held(report)["delivered_to_published_ratio"]
    assert figures["delivered_messages"] >= 100 * figures["published_messages"]
    assert figures["fetches"] > 0
    assert figures["swept_messages"] == figures["published_messages"]
