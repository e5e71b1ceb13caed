"""Verdicts as lines, as a table in Markdown, and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from faults.cell import Verdict
from faults.modes import MODES
from faults.oracle import CHECKS


def line(verdict: Verdict) -> str:
    """One line, and one more for each kind of finding."""
    if verdict.absent:
        return f"absent  {verdict.fault}: {verdict.absent}"
    word = "ok    " if verdict.is_green else "FAILED"
    told = (
        f"{word}  {verdict.fault:<34} {verdict.messages:>5} messages, {verdict.duplicates:>3} again, "
        f"quiet after {verdict.settled_after:.1f} s, seed {verdict.seed}, {verdict.seconds:.0f} s"
    )
    return told + "".join(f"\n        {one}" for one in _findings(verdict))


def control_line(verdict: Verdict, *, is_caught: bool) -> str:
    """A control is right when the checks have failed."""
    found = _checks(verdict) or "nothing"
    return f"{'caught' if is_caught else 'MISSED'}  {verdict.fault:<56} by {found}, {verdict.seconds:.0f} s"


def _checks(verdict: Verdict) -> str:
    return ", ".join(sorted({one.check for one in verdict.findings}, key=CHECKS.index))


def _findings(verdict: Verdict) -> list[str]:
    counted = Counter((one.check, one.mode) for one in verdict.findings)
    first = {(one.check, one.mode): one.what for one in reversed(verdict.findings)}
    return [
        f"{check} {mode or 'all'}: {count}, such as {first[check, mode]}" for (check, mode), count in counted.items()
    ]


def markdown(about: Mapping[str, Any], verdicts: Sequence[Verdict], controls: Sequence[tuple[Verdict, bool]]) -> str:
    """The table: a row for each fault, a column for each mode."""
    modes = list(MODES)
    lines = [
        "| fault | " + " | ".join(modes) + " | messages | came again | quiet after |",
        "|---|" + "---|" * len(modes) + "---:|---:|---:|",
        *(_row(verdict, modes) for verdict in verdicts),
    ]
    if controls:
        lines += ["", "| a mistake put in on purpose | caught by |", "|---|---|"]
        lines += [
            f"| {verdict.fault.removeprefix('control: ')} | {_checks(verdict) if caught else '**missed**'} |"
            for verdict, caught in controls
        ]
    told = ", ".join(f"{name} {value}" for name, value in about.items())
    return "\n".join([f"{told[:1].upper()}{told[1:]}.", "", *lines, ""])


def _row(verdict: Verdict, modes: Sequence[str]) -> str:
    concerned = {mode.name for mode in verdict.modes}
    if verdict.absent:
        return f"| {verdict.fault} | " + " | ".join("absent" for _ in modes) + f" | {verdict.absent} | | |"
    cells = [_cell(verdict, mode) if mode in concerned else "" for mode in modes]
    quiet = f"{verdict.settled_after:.1f} s"
    return f"| {verdict.fault} | {' | '.join(cells)} | {verdict.messages} | {verdict.duplicates} | {quiet} |"


def _cell(verdict: Verdict, mode: str) -> str:
    return ", ".join(sorted({f"**{one.check}**" for one in verdict.of(mode)})) or "ok"


def as_json(about: Mapping[str, Any], verdicts: Sequence[Verdict], controls: Sequence[tuple[Verdict, bool]]) -> str:
    told = {
        **about,
        "cells": [_told(one) for one in verdicts],
        "controls": [{**_told(one), "caught": caught} for one, caught in controls],
    }
    return json.dumps(told, indent=1)


def _told(verdict: Verdict) -> dict[str, Any]:
    return {
        "fault": verdict.fault,
        "seed": verdict.seed,
        "absent": verdict.absent or None,
        "modes": {mode.name: sorted({one.check for one in verdict.of(mode.name)}) for mode in verdict.modes},
        "findings": [one._asdict() for one in verdict.findings],
        "messages": verdict.messages,
        "came_again": verdict.duplicates,
        "quiet_after_s": round(verdict.settled_after, 2),
        "seconds": round(verdict.seconds, 1),
    }
