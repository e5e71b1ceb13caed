"""The throttle of catch-ups: batches begin small, shrink before the rate does, and both recover."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from postbus._group import catch_up_throttle
from postbus._group.catch_up_throttle import Throttle
from postbus.catch_up import CatchUp

OPTIONS = CatchUp(batch_size=1600, max_rate=1000.0, target_latency=timedelta(milliseconds=10))
QUICK, SLOW = 0.001, 0.02


class Clock:
    """A time that only statements make pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(catch_up_throttle, "time", made)
    return made


def read(throttle: Throttle, clock: Clock, seconds: float, times: int) -> None:
    """Read full batches, each of which begins as soon as it may."""
    for _ in range(times):
        clock.now = max(clock.now, throttle._next_at) + seconds
        throttle.was_read(throttle.batch, seconds)


def test_batches_begin_small_and_grow_with_quick_statements(clock: Clock) -> None:
    """The allowed rate stays at its maximum meanwhile."""
    throttle = Throttle(OPTIONS)
    sizes = [throttle.batch]
    for _ in range(5):
        read(throttle, clock, QUICK, 5)
        sizes.append(throttle.batch)
    assert sizes == [100, 200, 400, 800, 1600, 1600]
    assert throttle.allowed_rate == 1000


def test_slow_statements_reduce_the_batch_and_then_the_rate(clock: Clock) -> None:
    """The rate never falls to zero."""
    throttle = Throttle(OPTIONS)
    read(throttle, clock, QUICK, 20)
    sizes = []
    for _ in range(4):
        read(throttle, clock, SLOW, 2)
        sizes.append(throttle.batch)
    assert sizes == [800, 400, 200, 100]
    assert throttle.allowed_rate == 1000
    read(throttle, clock, SLOW, 2)
    assert throttle.allowed_rate is not None
    assert throttle.allowed_rate <= 700
    read(throttle, clock, SLOW, 200)
    assert throttle.allowed_rate == 100, "it never stops altogether"


def test_rate_falls_from_its_actual_value(clock: Clock) -> None:
    """Otherwise reading would continue as fast as before while only the limit falls."""
    throttle = Throttle(CatchUp(batch_size=1600, max_rate=1e6, target_latency="10ms"))
    read(throttle, clock, SLOW, 2)
    assert throttle.allowed_rate is not None
    assert throttle.allowed_rate < 100 / SLOW


def test_throttle_recovers_with_quick_statements(clock: Clock) -> None:
    """Batch and rate return to their maxima."""
    throttle = Throttle(OPTIONS)
    read(throttle, clock, SLOW, 6)
    slowed = throttle.allowed_rate
    assert slowed is not None
    assert slowed < 1000
    read(throttle, clock, QUICK, 100)
    assert (throttle.allowed_rate, throttle.batch) == (1000, 1600)


def test_recovery_takes_seconds_from_any_rate(clock: Clock) -> None:
    """Reads become smaller with the rate, so that there are several in a second to judge by."""
    throttle = Throttle(CatchUp(batch_size=50_000, max_rate=200_000, target_latency="10ms"))
    read(throttle, clock, 0.5, 20)
    assert throttle.allowed_rate is not None
    assert throttle.allowed_rate < 1000
    began = clock.now
    while throttle.allowed_rate < 200_000:
        read(throttle, clock, QUICK, 1)
    assert clock.now - began < 30


def test_few_slow_statements_among_many_change_nothing(clock: Clock) -> None:
    """Single outliers do not reduce the batch or the rate."""
    throttle = Throttle(OPTIONS)
    for place in range(200):
        read(throttle, clock, 0.05 if place % 50 == 49 else 0.008, 1)
    assert (throttle.allowed_rate, throttle.batch) == (1000, 100)


def test_unlimited_throttle_slows_down_and_recovers(clock: Clock) -> None:
    """It slows from its actual rate, and has no limit in the end."""
    throttle = Throttle(CatchUp(batch_size=100, max_rate=None, target_latency="10ms"))
    assert throttle.allowed_rate is None
    read(throttle, clock, SLOW, 4)
    slowed = throttle.allowed_rate
    assert slowed is not None
    assert slowed < 100 / SLOW
    read(throttle, clock, QUICK, 500)
    assert throttle.allowed_rate is None


async def test_throttle_pauses_for_as_long_as_it_read() -> None:
    """Others have the database for at least half of the time, at any rate."""
    throttle = Throttle(CatchUp(max_rate=None))
    throttle.was_read(1, 0.05)
    began = time.monotonic()
    await asyncio.wait_for(throttle.ready(), 5)
    assert time.monotonic() - began >= 0.04
