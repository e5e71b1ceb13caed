"""The points at which the curves are measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True)
class Points:
    """The values of each parameter, and the size of each measurement. The defaults are those of the long form."""

    batches: tuple[int, ...] = (1, 10, 100, 1000)
    """Messages per call: published, and handled."""
    batch_messages: int = 20_000
    """Messages at each batch size; for small batches fewer, down to a twentieth."""
    groups: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100, 200)
    deliveries: int = 1_000_000
    """Messages at each number of groups."""
    lanes: tuple[int, ...] = (1, 2, 4, 8)
    processes: tuple[int, ...] = (1, 2, 4)
    lane_messages: int = 200_000
    """Messages at each number of lanes and processes."""
    backlogs: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    drained: int = 5_000
    """Messages that are drained from each backlog, per round."""
    payload_bytes: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    payload_total_bytes: int = 20_000_000
    """Bytes at each payload size, but at most 20,000 messages."""
    rates: tuple[int, ...] = (50, 200, 500, 1_000, 2_000, 4_000)
    """Messages per second at which latency is measured, from the lowest on."""
    rate_seconds: float = 4.0
    """… for this many seconds, after one that is not counted."""
    over_seconds: float = 30.0
    """Seconds for which dead rows and memory are watched."""
    rounds: int = 2

    @classmethod
    def quick(cls) -> Self:
        """Two or three points of each curve."""
        return cls(batches=(10, 1000), batch_messages=2_000, groups=(1, 10), deliveries=20_000,
                   lanes=(2,), processes=(1, 2), lane_messages=5_000, backlogs=(2_000, 10_000), drained=500,
                   payload_bytes=(100, 10_000), payload_total_bytes=500_000, rates=(50, 100), rate_seconds=0.4,
                   over_seconds=2.0, rounds=1)  # fmt: skip

    @classmethod
    def short(cls) -> Self:
        """All curves, with fewer points on some, and less time for each."""
        return cls(groups=(1, 5, 20, 100, 200), lanes=(1, 4, 8), rate_seconds=3.0, over_seconds=20.0)

    def up_to(self, messages: int) -> Self:
        """The points with backlogs of up to this many messages, each ten times the previous one."""
        backlogs = [messages]
        while backlogs[0] >= 10 * max(self.drained, 1) and len(backlogs) < 4:
            backlogs.insert(0, backlogs[0] // 10)
        return replace(self, backlogs=tuple(backlogs))
