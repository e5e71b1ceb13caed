"""The scan floor of a queue: where a search begins, so that it need not step over messages that are gone."""

from __future__ import annotations

import math
import time

_AGE = 30.0  # seconds, at least, between two searches from the beginning, by default
_COST = 50  # a search from the beginning comes after this many times as long as the last one took in the server


class ScanFloor:
    """Where the next claim of a queue may begin, as the last one said.

    A claim that was rolled back leaves messages below the floor. So from time to time a search starts at the beginning.
    """

    def __init__(self, age: float = _AGE) -> None:
        self._age = age
        self._value: str | None = None
        self._until = 0.0
        self._last_took = math.inf

    def current(self) -> str | None:
        return self._value if time.monotonic() < self._until else None

    def moved(self, value: str | None, *, given: str | None, took: float) -> None:
        """Note the new floor after a claim that began at `given`, and that took so many seconds in the server.

        The quicker of the last two full searches sets the interval: a stalled server must not delay the next search.
        """
        self._value = value
        if given is None:
            self._until = time.monotonic() + max(self._age, _COST * min(took, self._last_took))
            self._last_took = took

    def forget(self) -> None:
        """Forget the floor. Another server may answer next, and the floor means nothing to it."""
        self._value = None
