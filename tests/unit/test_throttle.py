"""The throttle of catch-ups: batches shrink first, then the rate, and both recover."""

from __future__ import annotations

from datetime import timedelta

from postbus._throttle import Throttle
from postbus.catch_up import CatchUp

OPTIONS = CatchUp(batch_size=1600, max_rate=1000.0, target_latency=timedelta(milliseconds=10))


def read(throttle: Throttle, seconds: float, times: int = 20) -> None:
    for _ in range(times):
        throttle.was_read(0, seconds)


def test_slow_statements_make_batches_smaller_and_then_the_rate() -> None:
    throttle = Throttle(OPTIONS)
    sizes = []
    for _ in range(4):
        read(throttle, 0.02)
        sizes.append(throttle.batch)
    assert sizes == [800, 400, 200, 100]
    assert throttle.allowed_rate == 1000
    read(throttle, 0.02)
    assert throttle.allowed_rate == 700
    for _ in range(100):
        read(throttle, 0.02)
    assert throttle.allowed_rate == 100, "it never stops altogether"


def test_it_recovers_when_statements_are_quick_again() -> None:
    throttle = Throttle(OPTIONS)
    for _ in range(6):
        read(throttle, 0.02)
    slowed = throttle.allowed_rate
    assert slowed is not None
    assert slowed < 1000
    for _ in range(20):
        read(throttle, 0.001)
    assert (throttle.allowed_rate, throttle.batch) == (1000, 1600)


def test_a_few_slow_statements_among_many_change_nothing() -> None:
    throttle = Throttle(OPTIONS)
    for place in range(200):
        throttle.was_read(0, 0.05 if place % 50 == 49 else 0.008)
    assert (throttle.allowed_rate, throttle.batch) == (1000, 1600)


def test_without_a_limit_it_slows_down_from_what_it_came_to() -> None:
    throttle = Throttle(CatchUp(batch_size=100, max_rate=None, target_latency="10ms"))
    assert throttle.allowed_rate is None
    for _ in range(20):
        throttle.was_read(100, 0.02)
    assert throttle.allowed_rate is not None
