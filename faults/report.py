"""Verdicts, as lines and as a table."""

from __future__ import annotations

from collections import Counter

from faults.cell import Verdict


def line(verdict: Verdict) -> str:
    """One line, and one more for each kind of finding."""
    if verdict.absent:
        return f"absent  {verdict.fault}: {verdict.absent}"
    word = "ok    " if verdict.is_green else "FAILED"
    told = (
        f"{word}  {verdict.fault:<32} {verdict.messages:>6} messages, {verdict.duplicates:>4} again, "
        f"{verdict.hurts:>3} faults, quiet after {verdict.settled_after:.1f} s, {verdict.seconds:.0f} s"
    )
    counted = Counter((one.check, one.mode) for one in verdict.findings)
    for (check, mode), count in counted.items():
        first = next(one.what for one in verdict.findings if (one.check, one.mode) == (check, mode))
        told += f"\n        {check} {mode or 'all'}: {count}, such as {first}"
    return told
