"""How much one caller may ask for: requests per second, and polls at the same time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from postbus.errors import RequestTooLarge, TooManyRequests
from postbus.server.settings import Limits

_MOST_BUCKETS = 10_000


class Gate:
    """Counts what each caller does, and refuses what is beyond its limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._polls: Counter[str] = Counter()
        self._buckets: dict[str, tuple[float, float]] = {}
        """Of each caller how many requests it may send at once, and when that was so."""

    def admit(self, name: str, *, now: float | None = None) -> None:
        """Count a request."""
        rate = self.limits.rate
        if rate is None:
            return
        now = time.monotonic() if now is None else now
        most = max(rate, 1.0)
        left, since = self._buckets.get(name, (most, now))
        left = min(most, left + (now - since) * rate)
        if left < 1.0:
            self._buckets[name] = left, now
            raise TooManyRequests(
                f"more than {rate:g} requests per second",
                remedy="wait for as long as Retry-After says, and send more messages per request",
                retry_after=(1.0 - left) / rate,
            )
        if len(self._buckets) >= _MOST_BUCKETS:  # those that rest are full again, and need not be known
            self._buckets = {one: at for one, at in self._buckets.items() if (now - at[1]) * rate < most}
        self._buckets[name] = left - 1.0, now

    @contextmanager
    def polling(self, name: str) -> Iterator[None]:
        """Count a poll for as long as it waits."""
        self.check_polls(name)
        self._polls[name] += 1
        try:
            yield
        finally:
            self._polls[name] -= 1
            if not self._polls[name]:
                del self._polls[name]

    def check_polls(self, name: str) -> None:
        """Refuse one poll more than a caller may have."""
        if self._polls[name] >= self.limits.max_polls:
            raise TooManyRequests(
                f"{self._polls[name]} polls or streams of yours are open already, "
                f"and no more than {self.limits.max_polls} may be open at once",
                remedy="wait in fewer places, and take more messages per pop",
            )

    def check_batch(self, count: int) -> None:
        """Refuse more messages than one request may hold."""
        if count > self.limits.max_batch:
            raise RequestTooLarge(
                f"the request has {count} messages, and no more than {self.limits.max_batch} are allowed",
                remedy="make several requests of it",
            )
