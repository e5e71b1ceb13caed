"""The floor of a queue: where a search for messages begins, so that it need not step over what was taken before."""

from __future__ import annotations

import time

_AGE = 30.0  # seconds after which a search starts at the beginning again, unless told otherwise
_COST = 50  # … and this many times longer than such a search takes


class Floor:
    """What the last claim of a queue said about where the next one may begin.

    A claim that was rolled back leaves messages below it, so from time to time a search starts at the beginning.
    """

    def __init__(self, age: float = _AGE) -> None:
        self._age = age
        self._value: str | None = None
        self._until = 0.0

    def current(self) -> str | None:
        return self._value if time.monotonic() < self._until else None

    def moved(self, value: str | None, *, given: str | None, began: float) -> None:
        """A claim that began at this time, from the floor it was given, says where the next one may begin."""
        self._value = value
        if given is None:
            now = time.monotonic()
            self._until = now + max(self._age, _COST * (now - began))

    def forget(self) -> None:
        """Another server may answer next, to which it means nothing."""
        self._value = None
