"""A scan floor is kept for as long as its age and the cost of a full search allow, and no longer."""

from __future__ import annotations

import pytest

from postbus._queue.scan_floor import ScanFloor


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("postbus._queue.scan_floor.time", clock)
    return clock


def test_quick_search_is_repeated_after_the_age(clock: Clock) -> None:
    """The floor lasts for its age, and then the next search starts at the beginning."""
    floor = ScanFloor(age=30)

    floor.moved("here", given=None, took=0.001)
    clock.now += 29
    before = floor.current()
    clock.now += 2

    assert before == "here"
    assert floor.current() is None


def test_slow_searches_are_repeated_less_often(clock: Clock) -> None:
    """Full searches take at most a fiftieth of the time."""
    floor = ScanFloor(age=30)

    floor.moved("here", given=None, took=2.0)
    floor.moved("here", given=None, took=2.0)
    clock.now += 99

    assert floor.current() == "here"


def test_one_delayed_search_does_not_postpone_the_next(clock: Clock) -> None:
    """A server that stalled for seconds makes one search slow, and the next one comes in time."""
    floor = ScanFloor(age=30)

    floor.moved("here", given=None, took=0.001)
    floor.moved("here", given=None, took=60.0)
    clock.now += 31

    assert floor.current() is None
