"""The Markdown page of a folder of reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.paper import words
from bench.paper.pictures import Picture, pictures
from bench.series import split

_VARIES = ("load_at_start", "measured_at")
"""Facts that differ from run to run on the same machine."""
_LOAD_SETTINGS = ("groups", "messages_per_second", "tracking")
_LOAD_FIGURES = ("deliveries_per_s", "lag_max_s", "fetch_p95_ms", "bloat_worst_table_percent", "wal_mb_per_s")
_HELD, _MISSED = "✓", "✗ missed"


def page(reports: Sequence[Mapping[str, Any]], failures: Mapping[str, str], *, folder: str = "") -> str:
    """The page: first which checks hold, then each scenario with its charts and figures."""
    lines = ["# Benchmarks", ""]
    dates = sorted(str(one["machine"].get("measured_at", "")) for one in reports)
    if dates and dates[-1]:
        lines += [f"Measured {_period(dates)} by `make bench`; bench/METHODOLOGY.md explains how.", ""]
    for machine in _machines(reports):
        lines += [*_table(["machine", ""], [[words.plain(name), str(value)] for name, value in machine.items()]), ""]
    lines += [
        "## Verdicts",
        "",
        *_table(["scenario", "checks", "held", "seconds", ""], _verdicts(reports, failures)),
        "",
    ]
    for name, reason in failures.items():
        lines += [f"`{name}` could not be run: {_cell(reason)}", ""]
    lines += _load_tests(reports)
    for report in reports:
        lines += _section(report, folder)
    return "\n".join(lines).rstrip() + "\n"


def _period(dates: Sequence[str]) -> str:
    return dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"


def _machines(reports: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The machines of the runs: usually one."""
    found: list[dict[str, Any]] = []
    for report in reports:
        same = {name: value for name, value in report["machine"].items() if name not in _VARIES}
        same["postgresql"] = report["settings"].get("postgresql_version", "")
        if same not in found:
            found.append(same)
    return found


def _verdicts(reports: Sequence[Mapping[str, Any]], failures: Mapping[str, str]) -> list[list[str]]:
    rows = []
    for report in reports:
        held = sum(1 for check in report["checks"] if check["ok"])
        verdict = _HELD if held == len(report["checks"]) else _MISSED
        name = report["scenario"]
        took = words.full(report["settings"].get("took_seconds", 0))
        rows.append([f"[{name}](#{name})", str(len(report["checks"])), str(held), took, verdict])
    return [*rows, *([name, "", "", "", "✗ not run"] for name in failures)]


def _load_tests(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of all load tests of fan-out."""
    tests = [one for one in reports if one["scenario"].startswith("lt")]
    if not tests:
        return []
    header = ["load test", *map(words.plain, (*_LOAD_SETTINGS, *_LOAD_FIGURES))]
    rows = [
        [
            f"[{one['scenario']}](#{one['scenario']})",
            *(str(one["settings"].get(name, "")) for name in _LOAD_SETTINGS),
            *(words.full(one["figures"][name]) if name in one["figures"] else "" for name in _LOAD_FIGURES),
        ]
        for one in tests
    ]
    return ["## Load tests", "", *_table(header, rows, right=set(range(4, len(header)))), ""]


def _section(report: Mapping[str, Any], folder: str) -> list[str]:
    name = report["scenario"]
    lines = [f"## {name}", ""]
    if report["checks"]:
        checks = [
            [f"`{one['name']}`", words.full(one["value"]), one["goal"], _HELD if one["ok"] else _MISSED]
            for one in report["checks"]
        ]
        lines += [*_table(["check", "value", "goal", ""], checks, right={1}), ""]
    for picture in pictures(report):
        lines += _picture(f"{folder}{name}-{picture.name}.svg", picture)
    alone, _ = split(report["figures"])
    if alone:
        figures = [[f"`{figure}`", words.full(value)] for figure, value in alone.items()]
        lines += [*_table(["figure", "value"], figures, right={1}), ""]
    about = {**report["settings"], **{one: report["machine"].get(one, "") for one in _VARIES}}
    settings = [[words.plain(setting), str(value)] for setting, value in about.items()]
    lines += ["<details><summary>Settings</summary>", "", *_table(["setting", ""], settings), "", "</details>", ""]
    return lines


def _picture(path: str, picture: Picture) -> list[str]:
    right = set(range(1, len(picture.header)))
    return [
        f"### {picture.title}",
        "",
        f"![{picture.title}]({path})",
        "",
        "<details><summary>Numbers</summary>",
        "",
        *_table(picture.header, picture.rows, right=right),
        "",
        "</details>",
        "",
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: set[int] | None = None) -> list[str]:
    marks = ["---:" if number in (right or ()) else "---" for number in range(len(header))]
    return [f"| {' | '.join(map(_cell, row))} |" for row in (header, marks, *rows)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
