"""How a group works through history: what was published before it came, or while it was DEAD."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import timedelta

from postbus.errors import InvalidOption
from postbus.options import Duration, as_timedelta


@dataclass(frozen=True)
class CatchUp:
    """Bounds for a group that is behind.

    Up to `beside_from` messages come first, in order with what is published now. More come beside it: then what is
    published now does not wait, and each of the two keeps the order per key for itself.
    """

    batch_size: int = 10_000
    """Messages per read, at most."""
    max_messages: int | None = None
    """Work through the newest only; older messages are skipped, and counted as such. None skips nothing. Not for
    groups of one key."""
    max_rate: float | None = 50_000
    """Messages per second, for the whole group. None for as fast as it goes."""
    target_latency: Duration = timedelta(milliseconds=10)
    """It slows down while the p95 of its own statements is above this."""
    beside_from: int = 100_000

    def __post_init__(self) -> None:
        latency = as_timedelta(self.target_latency)
        for name, is_right, rule in (
            ("batch_size", _is_count(self.batch_size, 1, 1_000_000), "batch_size goes from 1 to 1000000"),
            ("max_messages", self.max_messages is None or _is_count(self.max_messages, 0), "0 or more, or None"),
            ("max_rate", self.max_rate is None or _is_rate(self.max_rate), "max_rate is positive, or None"),
            ("target_latency", timedelta(0) < latency <= timedelta(days=1), "positive, up to 1 day"),
            ("beside_from", _is_count(self.beside_from, 0), "beside_from is 0 or more"),
        ):
            if not is_right:
                raise InvalidOption(f"a catch-up has {name} {getattr(self, name)!r}", remedy=rule)
        object.__setattr__(self, "target_latency", latency)

    @classmethod
    def conservative(cls) -> CatchUp:
        """Hardly to be noticed by others."""
        return cls(batch_size=5_000, max_rate=10_000, target_latency=timedelta(milliseconds=5))

    @classmethod
    def aggressive(cls) -> CatchUp:
        """Soon at its end."""
        return cls(batch_size=50_000, max_rate=200_000, target_latency=timedelta(milliseconds=50))

    def as_json(self) -> str:
        """As SQL takes it."""
        return json.dumps(asdict(self) | {"target_latency": f"{self.latency * 1000:.3f} ms"})

    @classmethod
    def from_json(cls, text: str) -> CatchUp:
        """As SQL tells it."""
        options = json.loads(text)
        options.pop("preset", None)
        return cls(**options)

    @property
    def latency(self) -> float:
        """The target, in seconds."""
        return as_timedelta(self.target_latency).total_seconds()


def _is_count(value: object, least: int, most: int = 2**63 - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 <= value <= 1e15
