"""From values to pixels of a chart, with the marks of an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LOG_FROM = 20.0
"""An axis of values is logarithmic if the largest is at least this many times the smallest …"""
_PARAMETER_LOG_FROM = 8.0
"""… and an axis of a parameter, whose values are usually chosen by doubling or by tens, from this factor on."""

_MOST_CHOSEN = 10
"""A parameter with more values than this is treated as continuous, such as time."""
_ROUND = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`, over the pixels from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        low, high, given = self.low, self.high, value
        if self.is_log:
            low, high, given = math.log10(low), math.log10(high), math.log10(value)
        return self.begin + (given - low) / (high - low) * (self.end - self.begin)


def _calls_for_log(values: Sequence[float], times: float) -> bool:
    return min(values) > 0 and max(values) / min(values) >= times


def values_axis(values: Sequence[float], begin: float, end: float) -> Scale:
    """An axis with round numbers, from zero or logarithmic."""
    if _calls_for_log(values, _LOG_FROM):
        low, high = _down(min(values)), _up(max(values))
        return Scale(low, high, begin, end, is_log=True, ticks=tuple(_log_ticks(low, high)))
    largest = max(*values, 1e-9)
    step = _step(largest)
    high = step * math.ceil(largest / step - 1e-9)
    count = round(high / step)
    return Scale(0.0, high, begin, end, is_log=False, ticks=tuple(step * n for n in range(count + 1)))


def parameter_axis(values: Sequence[float], begin: float, end: float) -> Scale:
    """An axis marked with the measured values, as far as there is room."""
    found = sorted(set(values))
    if len(found) == 1:
        return Scale(0.0, 2 * found[0] or 1.0, begin, end, is_log=False, ticks=(found[0],))
    is_log = len(found) <= _MOST_CHOSEN and _calls_for_log(found, _PARAMETER_LOG_FROM)
    if len(found) > _MOST_CHOSEN:
        step = _step(found[-1])
        high = max(found[-1], step * math.floor(found[-1] / step + 1e-9))
        ticks = tuple(step * n for n in range(math.floor(high / step + 1e-9) + 1))
        return Scale(min(found[0], 0.0), high, begin, end, is_log=False, ticks=ticks)
    low = found[0] if is_log else min(found[0], 0.0)
    scale = Scale(low, found[-1], begin, end, is_log=is_log, ticks=())
    ticks_with_room: list[float] = []
    for value in found:
        if not ticks_with_room or scale.at(value) - scale.at(ticks_with_room[-1]) >= 34:
            ticks_with_room.append(value)
    return Scale(low, found[-1], begin, end, is_log=is_log, ticks=tuple(ticks_with_room))


def _step(largest: float) -> float:
    """A round step, so that four to eight steps reach the largest value."""
    power = _power(largest)
    for part in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0):
        if largest / (part * power) <= 6:
            return part * power
    return 2 * power


def _down(value: float) -> float:
    """The next lower of 1, 2, 5, 10, 20, …"""
    power = _power(value)
    return power * max(one for one in _ROUND if one <= value / power + 1e-9)


def _up(value: float) -> float:
    """The next higher of these numbers."""
    power = _power(value)
    return power * min(one for one in _ROUND if one >= value / power - 1e-9)


def _power(value: float) -> float:
    return float(10.0 ** math.floor(math.log10(value) + 1e-12))


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them if they are few."""
    decades = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1)
    parts = (1.0, 2.0, 5.0) if math.log10(high / low) <= 2.5 else (1.0,)
    ticks = [part * 10.0**decade for decade in decades for part in parts]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
