"""Builds with a deliberate mistake, which the checks of `make faults` must catch."""

from __future__ import annotations

import pytest

from faults import report
from faults.controls import CONTROLS, Control
from faults.servers.run import Servers

# One for each thing that the checks look for; `make faults` runs all of them.
CHOSEN = (
    "control: a position is the last one read",
    "control: settlement before the effect",
    "control: no fencing",
    "control: what is done ahead is forgotten",
    "control: a stream knows messages by their bare ids, two databases",
)


@pytest.mark.parametrize(
    "control",
    [control for control in CONTROLS if control.fault.name in CHOSEN],
    ids=lambda control: control.fault.name.removeprefix("control: "),
)
async def test_deliberate_mistakes_are_caught(servers: Servers, control: Control, seed: str) -> None:
    """Each mistake makes the checks fail that exist for it."""
    verdict, is_caught = await control.run(servers, seed)
    assert is_caught, report.line(verdict)


def test_chosen_mistakes_exist() -> None:
    """A control that is renamed is not left out in silence."""
    assert set(CHOSEN) <= {control.fault.name for control in CONTROLS}
