"""A statement that a driver runs, and what publishing answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Statement(NamedTuple):
    """SQL with $1, $2, … and its arguments. It returns one value."""

    sql: str
    args: Sequence[Any]


class Published(NamedTuple):
    """What has come of publishing."""

    ids: list[int]
    commit_notifies: bool
    """Consumers are woken by the commit itself: nobody needs to ring for them."""


def published(answer: Sequence[int | None]) -> Published:
    """Read the value of a statement that publishes: the ids, and last what is told of it."""
    ids: Any = answer[:-1]
    return Published(ids, answer[-1] == 1)  # nothing is told of a batch that is empty
