"""Figures that are points of a curve: name@parameter=value, such as publish_per_s@batch=100.

The name ends with the unit; the parameter's unit is in its name. A report draws one chart of all series that
have the same parameter and unit.
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
"""A unit comes before those that are the end of it."""


def point(name: str, parameter: str, value: float) -> str:
    """The name of a figure for one value of a parameter."""
    return f"{name}@{parameter}={value:g}" if isinstance(value, float) else f"{name}@{parameter}={value}"


def unit_of(name: str) -> str:
    """The unit at the end of a figure's name; empty if it is not a known one."""
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
    """The figures that belong to no series, and the series."""
    alone: dict[str, float] = {}
    series: dict[tuple[str, str], Series] = {}
    for name, value in figures.items():
        base, at, rest = name.partition("@")
        parameter, equals, value_text = rest.partition("=")
        if not (at and equals):
            alone[name] = value
            continue
        series.setdefault((base, parameter), Series(base, parameter)).points.append((float(value_text), value))
    for one in series.values():
        one.points.sort()
    return alone, list(series.values())
