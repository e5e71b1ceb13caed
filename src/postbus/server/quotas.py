"""The limits of each caller: requests per second, polls at the same time, and messages of a request."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from postbus.errors import RequestTooLarge, TooManyRequests
from postbus.server.settings import CallerLimits

_MOST_BUCKETS = 10_000


class RateLimiter:
    """Token buckets, one for each name."""

    def __init__(self, rate: float, most: float) -> None:
        self._rate = rate
        self._most = most
        self._left: dict[str, tuple[float, float]] = {}
        """The tokens left for each name, and the time of that count."""

    def wait_for(self, name: str, now: float) -> float:
        """The seconds for which a name has to wait; 0 if it may go on at once."""
        left = self._left_of(name, now)
        return 0.0 if left >= 1.0 else (1.0 - left) / self._rate

    def take(self, name: str, now: float) -> None:
        """Count once."""
        if len(self._left) >= _MOST_BUCKETS:  # full buckets need not be kept
            self._left = {one: at for one, at in self._left.items() if (now - at[1]) * self._rate < self._most}
        self._left[name] = max(self._left_of(name, now) - 1.0, 0.0), now

    def _left_of(self, name: str, now: float) -> float:
        left, since = self._left.get(name, (self._most, now))
        return min(self._most, left + (now - since) * self._rate)


class Quotas:
    """Counts the requests and polls of each caller, and refuses those beyond its limits."""

    def __init__(self, limits: CallerLimits) -> None:
        self.limits = limits
        self._polls: Counter[str] = Counter()
        self._requests = None if limits.rate is None else RateLimiter(limits.rate, max(limits.rate, 1.0))

    def admit(self, name: str, *, now: float | None = None) -> None:
        """Count a request."""
        if self._requests is None:
            return
        now = time.monotonic() if now is None else now
        if wait := self._requests.wait_for(name, now):
            raise TooManyRequests(
                f"you send more than {self.limits.rate:g} requests per second",
                remedy="wait for as long as Retry-After says, and send more messages per request",
                retry_after=wait,
            )
        self._requests.take(name, now)

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
        """Refuse a poll if its caller has as many as it may."""
        if self._polls[name] >= self.limits.max_polls:
            raise TooManyRequests(
                f"you have {self._polls[name]} open polls and streams, and may have {self.limits.max_polls}",
                remedy="open fewer of them, and take more messages per pop",
            )

    def check_batch(self, count: int) -> None:
        """Refuse more messages than one request may hold."""
        if count > self.limits.max_batch:
            raise RequestTooLarge(
                f"the request has {count} messages, and no more than {self.limits.max_batch} are allowed",
                remedy="split it into several requests",
            )
