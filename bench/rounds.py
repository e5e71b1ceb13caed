"""Measuring by turns, so that a busy moment of the machine affects all measurements alike."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Mapping
from statistics import median

Measure = Callable[[], Awaitable[float]]


class Rates:
    """The rates of alternating rounds, by name: one rate per round."""

    def __init__(self, by_name: Mapping[str, list[float]]) -> None:
        self._by_name = by_name

    def median(self, name: str) -> float:
        return median(self._by_name[name])

    def medians(self) -> dict[str, float]:
        return {name: median(rates) for name, rates in self._by_name.items()}

    def fastest(self, *names: str) -> str:
        return max(names, key=self.median)

    def ratio(self, name: str, beside: str) -> float:
        """The median of the ratios of all rounds. Both sides of a ratio were measured within the same seconds."""
        pairs = zip(self._by_name[name], self._by_name[beside], strict=True)
        return median(one / other for one, other in pairs)


async def alternate(measures: Mapping[str, Measure], *, rounds: int) -> Rates:
    """Make each measurement once per round, in reverse order every other round."""
    rates: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        names = list(measures)
        for name in names if number % 2 == 0 else reversed(names):
            gc.collect()  # so that no measurement pays for the garbage of another
            rates[name].append(await measures[name]())
    return Rates(rates)


async def at_once(measures: Mapping[str, Measure]) -> Rates:
    """Make each measurement once, all at the same time."""
    rates = await asyncio.gather(*(measure() for measure in measures.values()))
    return Rates({name: [rate] for name, rate in zip(measures, rates, strict=True)})
