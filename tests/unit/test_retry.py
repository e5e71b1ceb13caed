"""When a failed message is retried."""

from __future__ import annotations

from typing import Any

import pytest

from postbus import InvalidOption, RetryPolicy


def test_delays_grow_up_to_the_maximum() -> None:
    """Each delay is longer by the factor, for any number of attempts."""
    policy = RetryPolicy(initial=1, factor=3, maximum=20, jitter=0)
    assert [policy.delay(attempt).total_seconds() for attempt in (1, 2, 3, 4, 1000)] == [1, 3, 9, 20, 20]


def test_jitter_spreads_delays() -> None:
    """Delays differ by no more than the jitter."""
    policy = RetryPolicy(initial=10, jitter=0.5)
    waits = {policy.delay(1).total_seconds() for _ in range(100)}
    assert len(waits) > 50
    assert all(5 <= wait <= 15 for wait in waits)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0}, {"initial": -1}, {"factor": 0.5}, {"maximum": 0.5}, {"jitter": 2}, {"jitter": -0.1},
        {"initial": float("nan")}, {"factor": float("nan")}, {"maximum": float("inf")}, {"jitter": float("nan")},
    ],
)  # fmt: skip
def test_bad_policy_is_refused(options: dict[str, Any]) -> None:
    """The error names the option and its value, the remedy the rule."""
    with pytest.raises(InvalidOption) as caught:
        RetryPolicy(**options)
    [(name, value)] = options.items()
    assert caught.value.message == f"a retry policy has {name} {value!r}"
    assert caught.value.remedy.startswith(f"{name} goes from ")
