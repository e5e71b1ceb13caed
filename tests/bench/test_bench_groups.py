"""Load tests with receipts, a late group beside an application, a group that is killed: each run tells the truth."""

from __future__ import annotations

import pytest

from support.bench_reports import Quick, held

pytestmark = pytest.mark.timeout(180)  # a busy machine takes its time


def test_a_load_test_with_receipts_tells_of_each_message_who_had_it(quick: Quick) -> None:
    """The ledger is folded while the load goes on, and nothing of it is lost on the way to the receipts."""
    report = quick("lt1", "--seconds", "7")
    figures, holds = report["figures"], held(report)

    assert figures["delivered_messages"] >= 4 * figures["published_messages"] > 0
    assert holds["delivered_to_published_ratio"]
    assert holds["receipts_folded_during_load"]
    assert holds["receipts_to_ledger_rows_ratio"]
    assert figures["sampled_messages"] == 200
    assert holds["sampled_with_all_receipts_ratio"]
    assert figures["wal_mb_per_s"] > 0
    assert {"bloat_worst_table_percent", "fetch_p95_ms", "lag_max_s", "sweep_to_publish_rate_ratio"} <= set(holds)


def test_a_late_group_loses_nothing_when_it_is_interrupted(quick: Quick) -> None:
    """Whatever the application's latencies are on a busy machine: both are measured, and history is handled once."""
    report = quick("catch-up")
    figures, holds = report["figures"], held(report)

    assert holds["handled_to_passed_ratio"]
    assert holds["history_handled_again_messages"]
    assert holds["processed_while_cancelled_messages"]
    assert figures["history_handled_messages"] > 0
    assert figures["oltp_baseline_p95_ms"] > 0
    assert figures["oltp_catch_up_p95_ms"] > 0
    assert figures["allowed_rate_before_load_per_s"] > 0
    assert {
        "oltp_catch_up_to_baseline_p95_ratio",
        "allowed_rate_beside_load_to_before_ratio",
        "allowed_rate_recovered_to_before_ratio",
        "live_lag_max_s",
    } <= set(holds)


def test_a_group_that_is_killed_holds_up_nobody_and_comes_back_within_bounds(quick: Quick) -> None:
    """A verdict for each of: detection, cleaning up, growth, bounds, no stalls, recovery."""
    report = quick("kill-and-resurrect")
    figures, holds = report["figures"], held(report)

    for criterion in ("dead_detection", "cleanup_unblocked", "bounded_backfill", "steady_state_recovery"):
        of_it = {name: is_so for name, is_so in holds.items() if name.startswith(criterion)}
        assert of_it, criterion
        assert all(of_it.values()), of_it
    assert {"growth_while_dead_percent", "no_stalls_others_lag_max_s"} <= set(holds)
    assert holds["no_stalls_lost_messages"]
    assert figures["caught_up_messages"] > 0


def test_publishing_is_measured_while_partitions_are_thinned(quick: Quick) -> None:
    """Messages go in each round of that kind; whether the ratio holds is not tested on a busy machine."""
    report = quick("thinning")
    figures, holds = report["figures"], held(report)

    assert figures["kept_published_per_s"] > 0
    assert holds["thinned_in_each_round_messages"]
    assert holds["held_partitions"]
    assert "thinned_to_kept_publish_ratio" in holds
