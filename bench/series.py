"""Figures that are points of a curve: name@parameter=value, as in publish_per_s@batch=100.

The unit is at the end of the name, and the parameter's own in its name. A report draws one chart of all series that
have parameter and unit in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

UNITS = (
    "bytes_per_message",
    "mb_per_s",
    "deliveries_per_s",
    "per_s",
    "ms",
    "mb",
    "rows",
    "percent",
    "ratio",
    "messages",
    "s",
)
"""The longest first, where one is the end of another."""


def point(name: str, parameter: str, value: float) -> str:
    """The name of a figure that belongs to a value of a parameter."""
    return f"{name}@{parameter}={value:g}" if isinstance(value, float) else f"{name}@{parameter}={value}"


def unit_of(name: str) -> str:
    """The unit at the end of a figure's name; empty if there is none that we know."""
    return next((unit for unit in UNITS if name.endswith(f"_{unit}")), "")


@dataclass
class Series:
    """One line of a chart."""

    name: str
    parameter: str
    points: list[tuple[float, float]] = field(default_factory=list)

    @property
    def unit(self) -> str:
        return unit_of(self.name)

    @property
    def label(self) -> str:
        """The name without its unit."""
        return self.name.removesuffix(self.unit).rstrip("_")


def split(figures: Mapping[str, float]) -> tuple[dict[str, float], list[Series]]:
    """The figures that stand alone, and the series."""
    alone: dict[str, float] = {}
    series: dict[tuple[str, str], Series] = {}
    for name, value in figures.items():
        base, at, rest = name.partition("@")
        parameter, equals, place = rest.partition("=")
        if not (at and equals):
            alone[name] = value
            continue
        series.setdefault((base, parameter), Series(base, parameter)).points.append((float(place), value))
    for one in series.values():
        one.points.sort()
    return alone, list(series.values())
