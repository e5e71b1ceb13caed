"""The benchmark of the relay runs, and tells what it found."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(180)
def test_relaying_is_measured_beside_reading() -> None:
    """Both ways of publishing have figures of reading, of a sink that does nothing, and of JetStream."""
    command = [sys.executable, "-m", "bench", "relay", "--quick", "--json"]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, timeout=170)
    assert finished.stdout, finished.stderr
    report = json.loads(finished.stdout)
    assert finished.returncode == (0 if all(check["ok"] for check in report["checks"]) else 1)
    for way in ("bulk", "singles"):
        for what in ("read", "relay_to_null", "relay_to_jetstream", "jetstream_alone"):
            assert report["figures"][f"{way}_{what}_per_s"] > 0
    assert len(report["checks"]) == 4
