"""postbus bench: the options of each scenario reach what is measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cli.helpers import Cli, finish, start
from postbus.bench.plan import Plan
from postbus.bench.run import SCENARIOS
from postbus.bench.scenario import Scenario

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
async def test_a_scenario_is_as_large_as_its_options_say(cli: Cli, name: str) -> None:
    """All can be quick, short or long; what else can be chosen is what makes a difference to them."""
    own = [f"--{option}={value}" for option, value in _OWN[name].items()]
    for options, plan in (
        (["--quick"], Plan.quick()),
        (["--short"], Plan.short()),
        (own, Plan().changed(**_OWN[name])),
    ):
        ended = await cli.quick("bench", name, "--json", "--dsn", cli.env["POSTBUS_DSN"], *options)
        assert ended.done().json["settings"]["plan"] == json.loads(json.dumps(asdict(plan)))
    for option in {"messages", "seconds", "lanes"} - set(_OWN[name]):
        (await cli.quick("bench", name, f"--{option}=30")).failed(2)


@pytest.mark.usefixtures("nothing_measured")
async def test_options_before_the_command(cli: Cli, tmp_path: Path) -> None:
    """They are not ignored: the database is the one that is named, and a folder is of no use."""
    nowhere = Cli("postgresql://postgres@127.0.0.1:1/postgres", tmp_path)

    assert (await cli.quick("--json", "bench", "log", "--quick")).done().json["scenario"] == "log"
    (await nowhere.quick("bench", "log", "--quick")).failed(5)
    folder = await finish(await start("--data-dir", "/nowhere", "bench", "all"))
    assert "bench does not use --data-dir" in folder.failed(2).err
