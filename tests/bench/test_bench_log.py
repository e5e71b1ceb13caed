"""The benchmarks of the log run, and tell what they found."""

from __future__ import annotations

import pytest

from support.bench_reports import Quick, held

pytestmark = pytest.mark.timeout(180)  # a busy machine takes its time


def test_the_log_is_measured_beside_its_raw_limits(quick: Quick) -> None:
    """Every part has figures, and every goal a check."""
    report = quick("log")

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


def test_a_load_test_delivers_everything_to_every_group(quick: Quick) -> None:
    """Whatever the timings are on a busy machine: each group has had each message, and the sweep dropped them."""
    report = quick("lt7", "--seconds", "3")

    figures = report["figures"]
    assert figures["published_messages"] > 0
    assert held(report)["delivered_to_published_ratio"]
    assert figures["delivered_messages"] >= 100 * figures["published_messages"]
    assert figures["fetches"] > 0
    assert figures["swept_messages"] == figures["published_messages"]


def test_named_lanes_are_served_by_turns(quick: Quick) -> None:
    """Nothing is lost; among many lanes, each one with work is popped from as often as the others."""
    report = quick("lanes")

    holds = held(report)
    assert set(holds) == {"many_to_few_lanes_ratio", "most_to_least_turns_of_a_lane", "lost_messages"}
    assert holds["lost_messages"]
    assert holds["most_to_least_turns_of_a_lane"]
    assert report["figures"]["least_turns_of_a_lane"] > 0
