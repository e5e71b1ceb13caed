"""Slowing down: a catch-up goes no faster than it may, and slower while the database is under pressure."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from postbus.catch_up import CatchUp

_SAMPLES = 100
_JUDGED = 20  # samples since the last change, at most, of which …
_TOO_MANY = 2  # … so many above the target make it slower: one may be an accident
_ENOUGH = 5  # … and so many, all well below it, make it faster
_ALL_WELL = 0.7  # of the target
_SMALLEST_BATCH = 100
_SMALLEST_PART = 16  # of the batch size: where it begins, and below which it becomes rarer instead of smaller
_SLOWEST = 100.0  # messages per second
_SOON = 0.2  # seconds between reads, where the rate has fallen
_PAUSE = 1.0  # of the time that a read took: so the database has nothing to do with it for half of the time


class Throttle:
    """Decides when the next read of a catch-up may begin, and how much it may bring.

    The measure is how long its own statements take. It begins with small batches, which grow as long as they are
    quick. Above the target the batch shrinks first, since a large one takes long in itself; a small one that takes long
    tells of others who need the database more.
    """

    def __init__(self, options: CatchUp) -> None:
        self._options = options
        self._most = math.inf if options.max_rate is None else float(options.max_rate)
        self._rate = self._most
        self._least = min(max(options.batch_size // _SMALLEST_PART, _SMALLEST_BATCH), options.batch_size)
        self._batch = self._least
        self._share = 1.0
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._judged: deque[float] = deque(maxlen=_JUDGED)
        self._next_at = 0.0
        self._counted: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=_JUDGED)

    @property
    def batch(self) -> int:
        """Messages that the next read may bring. Few where the rate has fallen: so it is soon seen when all is well."""
        if self._rate < self._most:
            return max(min(self._batch, int(self._rate * self._share * _SOON)), 1)
        return self._batch

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
        now = time.monotonic()
        self._samples.append(seconds)
        self._judged.append(seconds)
        self._counted.append((now, count))
        self._judge()
        wait = _PAUSE * seconds
        if self._share > 0 and not math.isinf(self._rate):
            wait = max(wait, count / (self._rate * self._share))
        self._next_at = max(self._next_at, now) + wait

    def _judge(self) -> None:
        target = self._options.latency
        if sum(one > target for one in self._judged) >= _TOO_MANY:
            self._slow_down()
        elif len(self._judged) >= _ENOUGH and all(one < _ALL_WELL * target for one in self._judged):
            self._speed_up()
        else:
            return
        self._judged.clear()  # what comes now is measured anew

    def _slow_down(self) -> None:
        if self._batch > self._least:
            self._batch = max(self._batch // 2, self._least)
        else:
            # From what it really came to: a limit far above that would have to fall for long to make a difference.
            self._rate = max(min(self._rate, self._measured_rate()) * 0.7, min(_SLOWEST, self._most))

    def _speed_up(self) -> None:
        if self._rate < self._most:
            self._rate *= 1.3
            if self._rate > self._most or (math.isinf(self._most) and self._rate > 2 * self._measured_rate()):
                self._rate = self._most
        else:
            self._batch = min(self._batch * 2, self._options.batch_size)

    def _measured_rate(self) -> float:
        """Messages per second that it came to lately, as if this process had all of the work."""
        since = self._counted[0][0]
        read = sum(count for _, count in list(self._counted)[1:])
        return read / max(time.monotonic() - since, 0.001) / max(self._share, 0.001)
