"""Builds with a deliberate mistake, which the checks of `make faults` must catch."""

from __future__ import annotations

import pytest

from faults import report
from faults.controls import CONTROLS, Control
from faults.servers.run import Servers


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.fault.name.removeprefix("control: "))
async def test_deliberate_mistakes_are_caught(servers: Servers, control: Control, seed: str) -> None:
    """Each mistake makes the checks fail that exist for it."""
    verdict, is_caught = await control.run(servers, seed)
    assert is_caught, report.line(verdict)
