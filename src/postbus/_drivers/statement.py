"""Statements that a driver runs, and the result of publishing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Statement(NamedTuple):
    """SQL with $1, $2, … and its arguments, which returns one value."""

    sql: str
    args: Sequence[Any]


class Published(NamedTuple):
    """The result of publishing."""

    ids: list[int]
    commit_notifies: bool
    """The commit itself wakes the consumers of other processes, so no separate NOTIFY is needed."""


def published(answer: Sequence[int | None]) -> Published:
    """Read the value of a statement that publishes: the ids and, last, whether the commit notifies."""
    ids: Any = answer[:-1]
    return Published(ids, answer[-1] == 1)  # the last value is null for an empty batch
