"""All scenarios in one run: it goes on after a failure, ends in time, and leaves a report. Two of them in it."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.arguments import main
from bench.plan import Plan
from bench.suite import run_all
from postbus.embedded import EmbeddedPostgres
from support.bench_reports import held

_NOWHERE = ("--dsn", "postgresql://nobody@127.0.0.1:1/none")


class Finished(NamedTuple):
    """How `python -m bench all` ended."""

    code: int
    out: str
    err: str


def _all(folder: Path, *options: str) -> Finished:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            code = main(["all", "--folder", str(folder), *options])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Finished(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench") / "made" / "here"


@pytest.fixture(scope="module")
def finished(folder: Path, server: EmbeddedPostgres) -> Finished:
    """A quick run of two scenarios."""
    return _all(folder, "--quick", "--dsn", server.dsn(), "--only", "partitions", "--only", "isolation")


def _report(folder: Path, name: str) -> tuple[dict[str, float], dict[str, bool]]:
    """The figures of a scenario, and which checks hold."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found["figures"], held(found)


def test_all_scenarios_leave_figures_a_page_and_a_final_table(finished: Finished, folder: Path) -> None:
    """In the order in which they are listed; the exit code is that of all checks together."""
    assert "[ 1/2] isolation" in finished.out, finished.err
    assert "[ 2/2] partitions" in finished.out
    holds = {**_report(folder, "isolation")[1], **_report(folder, "partitions")[1]}
    for name in holds:
        assert name in finished.out
    assert f"{sum(holds.values())} of {len(holds)} checks hold" in finished.out
    assert finished.code == (0 if all(holds.values()) else 1)
    assert "1/1 a quiet topic beside a noisy one" in (folder / "isolation.log").read_text()
    page = (folder / "REPORT.md").read_text()
    assert "## isolation" in page
    assert "## partitions" in page


def test_a_quiet_topic_gets_all_of_its_messages_beside_a_noisy_one(finished: Finished, folder: Path) -> None:
    """Whatever the timings are on a busy machine: both are measured, alone and beside the noise."""
    del finished
    figures, holds = _report(folder, "isolation")

    assert holds["quiet_handled_to_published_ratio"]
    assert figures["quiet_published_messages"] == 20
    assert figures["noisy_slowest_group_messages"] > 0
    assert {"quiet_alone_fetch_p95_ms", "quiet_beside_noise_fetch_p95_ms"} <= set(figures)
    assert {"quiet_fetch_p95_ms", "quiet_lag_max_s", "noisy_published_per_s", "noisy_deliveries_per_s"} <= set(holds)


def test_partitions_come_and_go_and_nothing_is_lost(finished: Finished, folder: Path) -> None:
    """None is dropped before its time or before a live group had it; a dead group keeps none; space comes back."""
    del finished
    figures, holds = _report(folder, "partitions")

    for criterion in (
        "leaves_made_by_themselves",
        "leaves_made_ahead_ratio",
        "leaves_dropped",
        "kept_shortest_days",
        "leaves_kept_for_a_live_group",
        "zombie_is_dead_on_day_15",
        "zombie_lacks_leaves_that_are_dropped",
        "leaves_pinned_by_the_zombie",
        "publish_failures",
        "lost_messages",
        "space_that_came_back_percent",
    ):
        assert holds[criterion], (criterion, figures)
    assert {"publish_near_changes_to_apart_p95_ratio", "fetch_near_changes_to_apart_p95_ratio"} <= set(holds)


def test_a_scenario_that_fails_does_not_keep_others_from_running(tmp_path: Path) -> None:
    """Nobody listens there. Each is tried, the page says so, and the exit code is 1."""
    finished = _all(tmp_path, "--only", "queue", "--only", "lt1", *_NOWHERE)

    assert finished.code == 1
    assert "[ 2/2] lt1" in finished.out
    assert finished.out.count("FAILED") == 2
    page = (tmp_path / "REPORT.md").read_text()
    assert "`queue` could not be run:" in page
    assert "`lt1` could not be run:" in page
    assert not list(tmp_path.glob("*.json*"))


@pytest.mark.parametrize(("option", "has", "lacks"), [((), "--short", "--quick"), (("--long",), "--json", "--short")])
def test_scenarios_run_in_their_short_form_unless_the_long_one_is_asked_for(
    tmp_path: Path, option: tuple[str, ...], has: str, lacks: str
) -> None:
    """The log of each begins with its command."""
    _all(tmp_path, "--only", "lt1", *_NOWHERE, *option)

    began = (tmp_path / "lt1.log").read_text().splitlines()[0].split()
    assert began[:4] == ["python", "-m", "bench", "lt1"]
    assert has in began
    assert lacks not in began


def test_the_short_form_lies_between_the_quick_one_and_the_long_one() -> None:
    """In every size and length."""
    quick, short, long = (asdict(plan) for plan in (Plan.quick(), Plan.short(), Plan()))
    for name, size in long.items():
        if name == "points":
            continue
        low, high = sorted((quick[name], size))
        assert low <= short[name] <= high, name
    assert short["load_seconds"] == 20
    assert short["old_seconds"] < long["old_seconds"]


def test_a_run_ends_in_time(tmp_path: Path) -> None:
    """The running scenario is ended, with its server; later ones are not begun. Earlier reports are gone."""
    (tmp_path / "lt7.json").write_text("{}")
    out = io.StringIO()

    code = run_all(["kill-and-resurrect", "lt1"], folder=tmp_path, size="--quick", minutes=0.05, out=out)

    assert code == 1
    assert "ended: no time left" in (tmp_path / "kill-and-resurrect.log").read_text()
    assert "lt1                  no time left" in out.getvalue()
    assert "0 of 0 checks hold" in out.getvalue()
    assert not (tmp_path / "lt7.json").exists()


def test_files_of_others_are_neither_removed_nor_found_out_about_too_late(tmp_path: Path) -> None:
    """A folder with other JSON files is refused before anything is run."""
    (tmp_path / "package.json").write_text('{"name": "mine"}')
    (tmp_path / "drawing.svg").write_text("<svg/>")

    finished = _all(tmp_path, "--only", "lt1")

    assert finished.code == 1
    assert "package.json" in finished.err
    assert {path.name for path in tmp_path.iterdir()} == {"package.json", "drawing.svg"}


def test_a_scenario_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """Before anything is run; the message lists those that do."""
    finished = _all(tmp_path, "--only", "lt0")

    assert finished.code == 2
    assert "kill-and-resurrect" in finished.err
