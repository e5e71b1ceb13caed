"""The benchmark of the relay runs, and tells what it found."""

from __future__ import annotations

import pytest

from support.bench_reports import Quick, held


@pytest.mark.timeout(180)
def test_relaying_is_measured_beside_reading(quick: Quick) -> None:
    """Both ways of publishing have figures of reading, of a sink that does nothing, and of JetStream."""
    report = quick("relay")

    for way in ("bulk", "singles"):
        for what in ("read", "relay_to_null", "relay_to_jetstream", "jetstream_alone"):
            assert report["figures"][f"{way}_{what}_per_s"] > 0
    assert len(held(report)) == 4
