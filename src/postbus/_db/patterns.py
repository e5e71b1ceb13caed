"""Patterns of names, in which * stands for any text."""

from __future__ import annotations

import re
from collections.abc import Sequence


def like(pattern: str) -> str:
    """The same pattern for LIKE."""
    return re.sub(r"([\\%_])", r"\\\1", pattern).replace("*", "%")


def likes(patterns: Sequence[str] | None) -> list[str] | None:
    """The same patterns for LIKE. None if every name fits."""
    return None if patterns is None or "*" in patterns else [like(one) for one in patterns]
