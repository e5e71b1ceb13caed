"""The report of a run: figures, and checks of figures against goals."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<": operator.lt}


@dataclass(frozen=True)
class Check:
    """A figure and its goal, such as ">= 0.8"."""

    name: str
    value: float
    goal: str
    ok: bool


@dataclass
class Report:
    """The outcome of one scenario."""

    scenario: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    figures: dict[str, float] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def add(self, **figures: float) -> None:
        """Add figures. Their names end with the unit."""
        self.figures.update({name: shortened(value) for name, value in figures.items()})

    def check(self, name: str, value: float, comparison: str, goal: float) -> None:
        """Add a check. The rounded value decides, since that is what readers see."""
        shown = shortened(value)
        self.checks.append(Check(name, shown, f"{comparison} {goal:g}", _COMPARISONS[comparison](shown, goal)))

    @property
    def ok(self) -> bool:
        """Whether all checks hold."""
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        return asdict(self)


def shortened(value: float) -> float:
    """A number without meaningless digits: whole from 1000 on, else with four digits."""
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")
