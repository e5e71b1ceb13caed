"""The command line of the benchmarks: the options of each scenario reach what is measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bench.arguments import main
from bench.plan import Plan
from bench.run import SCENARIOS
from bench.scenario import Scenario

_OWN: dict[str, dict[str, Any]] = {
    **{name: {"messages": 2000, "seconds": 30} for name in ("queue", "log", "catch-up")},
    **{f"lt{number}": {"seconds": 30, "lanes": 3} for number in range(1, 8)},
    **{name: {"seconds": 30} for name in ("kill-and-resurrect", "isolation", "thinning", "partitions")},
    "curves": {"messages": 2000},
    **{name: {} for name in ("peers", "lanes", "relay", "http")},
}


@pytest.fixture
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenarios without parts, which tell their plan."""
    for name in SCENARIOS:
        monkeypatch.setitem(SCENARIOS, name, Scenario(name, {}, lambda plan: {"plan": asdict(plan)}))


@pytest.mark.usefixtures("nothing_measured")
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_is_as_large_as_its_options_say(name: str, dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All can be quick or short; a scenario has those further options that make a difference to it."""
    own = [f"--{option}={value}" for option, value in _OWN[name].items()]
    for options, plan in (
        (["--quick"], Plan.quick()),
        (["--short"], Plan.short()),
        (own, Plan().changed(**_OWN[name])),
    ):
        assert main([name, "--json", "--dsn", dsn, *options]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["settings"]["plan"] == json.loads(json.dumps(asdict(plan)))
    for option in {"messages", "seconds", "lanes"} - set(_OWN[name]):
        with pytest.raises(SystemExit, match="2"):
            main([name, f"--{option}=3000"])


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ("queue --messages=999", "999 is less than 1000"),
        ("lt1 --seconds=nan", "nan is less than 3"),
        ("lt1 --lanes=two", "two"),
        ("lt0", "kill-and-resurrect"),
        ("all --only=lt0", "kill-and-resurrect"),
        ("all --minutes=0.5", "0.5 is less than 1"),
        ("report /nowhere", "/nowhere is not a folder"),
    ],
)
def test_bad_option_is_refused(args: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is measured; the message says what is wrong, or lists the scenarios that exist."""
    with pytest.raises(SystemExit, match="2"):
        main(args.split())
    assert problem in capsys.readouterr().err


def test_server_that_is_away_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is that of a `postbus` command; the message has no traceback."""
    assert main(["lt1", "--quick", "--dsn", "postgresql://postgres@127.0.0.1:1/postgres"]) == 5
    told = capsys.readouterr().err
    assert told.strip().startswith("error: ")
    assert "Traceback" not in told


def test_report_lists_the_files_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty folder is an error with a remedy."""
    assert main(["report", str(tmp_path)]) == 1
    assert "python -m bench queue --json" in capsys.readouterr().err
