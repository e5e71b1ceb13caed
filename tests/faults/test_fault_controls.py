"""Builds with a mistake in them, which the checks of `make faults` must catch."""

from __future__ import annotations

import pytest

from faults import report
from faults.controls import CONTROLS, Control
from faults.servers.run import Servers


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.fault.name.removeprefix("control: "))
async def test_mistakes_are_caught(servers: Servers, control: Control, seed: str) -> None:
    """One that is put in on purpose makes the checks fail that are there for it."""
    verdict, is_caught = await control.run(servers, seed)
    assert is_caught, report.line(verdict)
