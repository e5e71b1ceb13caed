"""Slowing down: a catch-up goes no faster than it may, and slower while the database is under pressure."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from postbus.catch_up import CatchUp

_SAMPLES = 100
_ENOUGH = 20  # samples to judge by: the p95 is the slowest but one
_SMALLEST_BATCH = 100
_SLOWEST = 100.0  # messages per second
_ALL_WELL = 0.7  # of the target: then it may go faster


class Throttle:
    """Decides when the next read of a catch-up may begin, and how much it may bring.

    The measure is the p95 of its own statements. Above the target the batch shrinks first, since a large one takes
    long in itself; a small one that takes long tells of others who need the database more.
    """

    def __init__(self, options: CatchUp) -> None:
        self._options = options
        self._most = math.inf if options.max_rate is None else float(options.max_rate)
        self._rate = self._most
        self.batch = options.batch_size
        self._share = 1.0
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._next_at = 0.0
        self._counted: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=_SAMPLES)

    @property
    def allowed_rate(self) -> float | None:
        """Messages per second, of all processes; None where there is no limit."""
        return None if math.isinf(self._rate) else self._rate

    @property
    def p95(self) -> float | None:
        """Seconds that its statements take, but for the slowest 5 %."""
        if not self._samples:
            return None
        return sorted(self._samples)[min(int(len(self._samples) * 0.95), len(self._samples) - 1)]

    def take_share(self, share: float) -> None:
        """This process has so much of the work: of the lanes."""
        self._share = share

    async def ready(self) -> None:
        """Wait until the next read may begin."""
        wait = self._next_at - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)

    def was_read(self, count: int, seconds: float) -> None:
        """So many messages have come, in a statement that took so long: the next has to wait accordingly."""
        self._judge(seconds)
        self._counted.append((time.monotonic(), count))
        if self._share > 0 and not math.isinf(self._rate):
            self._next_at = max(self._next_at, time.monotonic()) + count / (self._rate * self._share)

    def _judge(self, seconds: float) -> None:
        self._samples.append(seconds)
        if len(self._samples) < _ENOUGH:
            return
        p95 = self.p95
        assert p95 is not None
        if p95 > self._options.latency:
            if self.batch > max(_SMALLEST_BATCH, self._options.batch_size // 16):
                self.batch = max(self.batch // 2, _SMALLEST_BATCH)
            else:
                self._rate = max((self.allowed_rate or self._measured_rate()) * 0.7, _SLOWEST)
        elif p95 < _ALL_WELL * self._options.latency:
            if self._rate < self._most:
                self._rate = min(self._rate * 1.3, self._most)
            elif self.batch < self._options.batch_size:
                self.batch = min(self.batch * 2, self._options.batch_size)
            else:
                return
        else:
            return
        self._samples.clear()  # what comes now is measured anew

    def _measured_rate(self) -> float:
        """What it came to lately, where nothing limits it."""
        since = self._counted[0][0]
        return sum(count for _, count in self._counted) / max(time.monotonic() - since, 0.001) / max(self._share, 0.001)
