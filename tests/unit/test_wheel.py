"""The files that users install."""

from __future__ import annotations

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]


def test_wheel_has_the_package_alone() -> None:
    """Neither benchmarks, nor faults, nor tests are installed; SQL files and type hints are."""
    builder = WheelBuilder(str(ROOT))

    files = {file.distribution_path for file in builder.recurse_included_files()}

    assert {"postbus/__init__.py", "postbus/py.typed", "postbus/cli/bench.py"} <= files
    assert any(file.startswith("postbus/sql/") for file in files)
    assert {file.partition("/")[0] for file in files} == {"postbus"}
    assert not [file for file in files if file.startswith("postbus/bench/")]
