"""Throttles catch-ups: to the rate that is allowed, and further while the database is under pressure."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from postbus.catch_up import CatchUp

_SAMPLES = 100
_JUDGED = 20  # samples that count, at most, all since the last change
_TOO_SLOW = 2  # samples above the target that make a catch-up slower: one may be an accident
_ENOUGH = 5  # samples that make it faster, if all are well below the target
_WELL_BELOW = 0.7  # of the target
_SMALLEST_BATCH = 100
_SMALLEST_PART = 16  # the first batch is this part of the batch size. Below it, reads become rarer instead of smaller
_SLOWEST = 100.0  # messages per second
_SOON = 0.2  # seconds between two reads after the rate has fallen
_PAUSE = 1.0  # pause after a read, in times of its duration: so a catch-up uses the database half of the time at most


class Throttle:
    """Decides when the next read of a catch-up may begin, and how many messages it may bring.

    The measure is how long the catch-up's own statements take. Batches begin small, and grow as long as they are quick.
    Above the target the batch shrinks first, since a large batch takes long in itself. If a small batch takes long,
    others need the database more, and the rate falls.
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
        """How many messages the next read may bring. After the rate has fallen it is few, to notice recovery soon."""
        if self._rate < self._most:
            return max(min(self._batch, int(self._rate * self._share * _SOON)), 1)
        return self._batch

    @property
    def allowed_rate(self) -> float | None:
        """Messages per second of all processes, or None if there is no limit."""
        return None if math.isinf(self._rate) else self._rate

    @property
    def p95(self) -> float | None:
        """The 95th percentile of the seconds that its statements take."""
        if not self._samples:
            return None
        return sorted(self._samples)[min(int(len(self._samples) * 0.95), len(self._samples) - 1)]

    def take_share(self, share: float) -> None:
        """Set the share of the lanes, and so of the work, that this process has."""
        self._share = share

    async def ready(self) -> None:
        """Wait until the next read may begin."""
        wait = self._next_at - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)

    def was_read(self, count: int, seconds: float) -> None:
        """Note a read: how many messages it brought, and how long its statement took. The next one waits for that."""
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
        if sum(one > target for one in self._judged) >= _TOO_SLOW:
            self._slow_down()
        elif len(self._judged) >= _ENOUGH and all(one < _WELL_BELOW * target for one in self._judged):
            self._speed_up()
        else:
            return
        self._judged.clear()  # measure the change on its own

    def _slow_down(self) -> None:
        if self._batch > self._least:
            self._batch = max(self._batch // 2, self._least)
        else:
            # Begin at the measured rate: a limit far above it would have to fall for long to make a difference.
            self._rate = max(min(self._rate, self._measured_rate()) * 0.7, min(_SLOWEST, self._most))

    def _speed_up(self) -> None:
        if self._rate < self._most:
            self._rate *= 1.3
            if self._rate > self._most or (math.isinf(self._most) and self._rate > 2 * self._measured_rate()):
                self._rate = self._most
        else:
            self._batch = min(self._batch * 2, self._options.batch_size)

    def _measured_rate(self) -> float:
        """Messages per second that were read lately, extrapolated from this process's share."""
        since = self._counted[0][0]
        read = sum(count for _, count in list(self._counted)[1:])
        return read / max(time.monotonic() - since, 0.001) / max(self._share, 0.001)
