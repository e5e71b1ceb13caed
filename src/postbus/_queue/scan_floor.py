"""The floor of a queue: where a search for messages begins, so that it need not step over what was taken before."""

from __future__ import annotations

import math
import time

_AGE = 30.0  # seconds after which a search starts at the beginning again, unless told otherwise
_COST = 50  # … and this many times longer than such a search takes in the server


class ScanFloor:
    """What the last claim of a queue said about where the next one may begin.

    A claim that was rolled back leaves messages below it, so from time to time a search starts at the beginning.
    """

    def __init__(self, age: float = _AGE) -> None:
        self._age = age
        self._value: str | None = None
        self._until = 0.0
        self._last_took = math.inf

    def current(self) -> str | None:
        return self._value if time.monotonic() < self._until else None

    def moved(self, value: str | None, *, given: str | None, took: float) -> None:
        """A claim that began at `given` says where the next one may begin, and how many seconds the server took.

        The quicker of the last two full searches counts: one that a stalled server held up must not put off the next.
        """
        self._value = value
        if given is None:
            self._until = time.monotonic() + max(self._age, _COST * min(took, self._last_took))
            self._last_took = took

    def forget(self) -> None:
        """Another server may answer next, to which it means nothing."""
        self._value = None
