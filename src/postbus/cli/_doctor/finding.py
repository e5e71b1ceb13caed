"""The arguments and results of checks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """A finding of a check, with its remedy."""

    check: str
    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Target:
    """The facts that the checks look at."""

    dsn: str = field(repr=False)
    conn: Any


def ok(check: str, text: str) -> list[Finding]:
    return [Finding(check, Level.OK, text)]


Check = Callable[[Target], Awaitable[list[Finding]]]
