"""The policy for trying failed messages again."""

from __future__ import annotations

import random
from datetime import timedelta

import msgspec

from postbus.errors import InvalidOption

_LONGEST = 366 * 86400.0


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential backoff with jitter. A subscription without a policy uses that of its topic."""

    max_attempts: int = 25
    """The number of attempts after which the message becomes a dead letter."""
    initial: float = 1.0
    """Seconds before the second attempt."""
    factor: float = 2.0
    """Each further wait is this many times longer …"""
    maximum: float = 3600.0
    """… up to this many seconds."""
    jitter: float = 0.2
    """Each wait is changed at random by up to this share of it."""

    def __post_init__(self) -> None:
        for name, is_right, rule in (
            ("max_attempts", 1 <= self.max_attempts <= 10_000, "max_attempts goes from 1 to 10000"),
            ("initial", 0 <= self.initial <= _LONGEST, "initial goes from 0 to a year, in seconds"),
            ("factor", 1 <= self.factor <= 100, "factor goes from 1 to 100"),
            ("maximum", self.initial <= self.maximum <= _LONGEST, "maximum goes from initial to a year, in seconds"),
            ("jitter", 0 <= self.jitter <= 1, "jitter goes from 0 to 1"),
        ):
            if not is_right:
                raise InvalidOption(f"a retry policy has {name} {getattr(self, name)!r}", remedy=rule)

    def delay(self, attempt: int) -> timedelta:
        """The wait after a failed attempt."""
        grown = self.initial * min(self.factor ** min(attempt - 1, 60), 1e9)
        spread = 1 + self.jitter * (2 * random.random() - 1)
        return timedelta(seconds=min(grown, self.maximum) * spread)
