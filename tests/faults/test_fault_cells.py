"""A short selection of `make faults`, with a seed, and builds with a mistake in them that must be caught."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from faults import cell, report
from faults.catalogue import FAULTS, mix
from faults.controls import CONTROLS, Control
from faults.modes import MODES
from faults.servers.run import Servers

SEED = os.environ.get("POSTBUS_FAULTS_SEED", "1")
CHOSEN = [
    "worker killed after putting off",
    "worker frozen",
    "postmaster killed",
    "connections cut during COMMIT",
    "failover to a standby",
]
BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Servers that share a template."""
    made = Servers()
    yield made
    asyncio.run(made.close())


@pytest.mark.parametrize("name", CHOSEN)
async def test_nothing_is_lost_doubled_or_out_of_order(servers: Servers, name: str) -> None:
    verdict = await cell.run(servers, BY_NAME[name], list(MODES.values()), SEED)
    assert verdict.is_green, report.line(verdict)
    assert verdict.messages > 100
    assert verdict.hurts > 0
    if name == "worker frozen":  # which takes longest
        assert verdict.dropped > 0, "nothing was dropped while it was needed, since nothing was dropped at all"


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.fault.name.removeprefix("control: "))
async def test_mistakes_are_caught(servers: Servers, control: Control) -> None:
    """One that is put in on purpose makes the checks fail that are there for it."""
    verdict, is_caught = await control.run(servers, SEED)
    assert is_caught, report.line(verdict)


def test_a_mix_is_the_same_for_the_same_seed() -> None:
    assert mix("mix 1", "7.1").name == mix("mix 1", "7.1").name
    assert len({mix("mix", str(n)).name for n in range(20)}) > 10


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(FAULTS)
