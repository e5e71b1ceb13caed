"""Catching up: a group works through messages from before it was new, or while it was DEAD."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import timedelta

from postbus.errors import InvalidOption
from postbus.options import Duration, as_timedelta, is_count


@dataclass(frozen=True)
class CatchUp:
    """Bounds for a group that is behind.

    If the group is behind by at most `beside_from` messages, it reads these first and new ones after them, in order. If
    it is further behind, it reads old and new messages side by side: new messages do not wait, and old and new messages
    each keep the order per key among themselves.
    """

    batch_size: int = 10_000
    """The number of messages per read, at most."""
    max_messages: int | None = None
    """Read only that many of the newest messages; older ones are skipped, and counted as skipped. None skips nothing.
    Groups of one key cannot have it."""
    max_rate: float | None = 50_000
    """Messages per second, for the whole group; None for no limit."""
    target_latency: Duration = timedelta(milliseconds=10)
    """The group slows down while the p95 of its own statements is above this."""
    beside_from: int = 100_000

    def __post_init__(self) -> None:
        latency = as_timedelta(self.target_latency)
        for name, is_right, rule in (
            ("batch_size", is_count(self.batch_size, 1_000_000), "batch_size goes from 1 to 1000000"),
            ("max_messages", self.max_messages is None or is_count(self.max_messages, least=0), "0 or more, or None"),
            ("max_rate", self.max_rate is None or _is_rate(self.max_rate), "max_rate is positive, or None"),
            ("target_latency", timedelta(0) < latency <= timedelta(days=1), "positive, up to 1 day"),
            ("beside_from", is_count(self.beside_from, least=0), "beside_from is 0 or more"),
        ):
            if not is_right:
                raise InvalidOption(f"a catch-up has {name} {getattr(self, name)!r}", remedy=rule)
        object.__setattr__(self, "target_latency", latency)

    @classmethod
    def conservative(cls) -> CatchUp:
        """A catch-up that others hardly notice."""
        return cls(batch_size=5_000, max_rate=10_000, target_latency=timedelta(milliseconds=5))

    @classmethod
    def aggressive(cls) -> CatchUp:
        """A catch-up that ends soon."""
        return cls(batch_size=50_000, max_rate=200_000, target_latency=timedelta(milliseconds=50))

    def as_json(self) -> str:
        """The options as SQL accepts them."""
        return json.dumps(asdict(self) | {"target_latency": f"{self.latency * 1000:.3f} ms"})

    @classmethod
    def from_json(cls, text: str) -> CatchUp:
        """The options that SQL returned."""
        options = json.loads(text)
        options.pop("preset", None)
        return cls(**options)

    @property
    def latency(self) -> float:
        """The target, in seconds."""
        return as_timedelta(self.target_latency).total_seconds()


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 <= value <= 1e15
