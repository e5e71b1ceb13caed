"""Which charts a scenario's figures become."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from bench.paper import words
from bench.paper.charts import bar_chart, line_chart
from bench.series import Series, split, unit_of

_QUANTITIES = {"per_s": "throughput", "mb_per_s": "throughput in bytes", "bytes_per_message": "space per message"}
"""The subject of a chart by unit. For other units, the names of the lines tell it."""
_BY = {
    "batch": "by batch",
    "backlog_messages": "by backlog",
    "payload_bytes": "by payload",
    "rate_per_s": "by load",
    "seconds": "over time",
}
_BARS = {
    "queue": {
        "publishing in bulk": ("publish_bulk*_per_s",),
        "publishing one by one": ("publish_single*_per_s", "send_*_per_s"),
        "draining": ("drain_*_handler_per_s", "drain_handwritten_*[05]0_per_s", "drain_raw_*_per_s"),
        "draining beside an old transaction": ("drain_*_old_transaction_per_s",),
        "latency": ("latency_publish_to_handler_p*_ms", "latency_handwritten_p*_ms"),
    },
    "log": {
        "publishing in bulk": ("publish_bulk*_per_s",),
        "consuming": ("consume_*_per_s",),
        "ten groups": ("ten_*_per_s",),
        "latency": ("latency_publish_to_handler_p*_ms", "latency_handwritten_p*_ms"),
    },
}  # fmt: skip
_OURS = "postbus"
_OTHERS = ("handwritten", "raw", "keyset")
_ROW = "row_"
"""The settings of a scenario with peers name its rows: row_NAME stands for the figures NAME_PEER_UNIT."""
_PERCENTILE = re.compile(r"_(p\d+)$")


@dataclass(frozen=True)
class Picture:
    """A chart, and its numbers as a table."""

    name: str
    title: str
    svg: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def pictures(report: Mapping[str, Any]) -> list[Picture]:
    """The charts of a report, in the order of its figures."""
    alone, series = split(report["figures"])
    return [*_bars(report["scenario"], alone), *_rows(report["settings"], alone), *_lines(series)]


def _lines(series: Sequence[Series]) -> list[Picture]:
    """A chart for all series with the same parameter and unit."""
    charts: dict[tuple[str, str], list[Series]] = {}
    for one in series:
        charts.setdefault((one.parameter, one.unit), []).append(one)
    return [_line_picture(lines) for lines in charts.values()]


def _line_picture(lines: list[Series]) -> Picture:
    parameter, unit = lines[0].parameter, lines[0].unit
    names = [line.label for line in lines]
    about = _QUANTITIES.get(unit)
    labels = [words.plain(name) for name in names]
    if about is None:
        common = _common_words(names)
        about = words.plain(common) or words.unit(unit)
        about += " rows" if unit == "rows" else ""
        labels = [words.plain(name.removeprefix(common)) or words.plain(name) for name in names]
    by = _BY.get(parameter, f"by {words.plain(parameter)}")
    title = words.title(f"{about} {by}")
    return Picture(_file_name(title), title, line_chart(title, lines, labels), *_table(parameter, unit, lines, labels))


def _table(
    parameter: str, unit: str, lines: Sequence[Series], labels: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    values = [dict(line.points) for line in lines]
    places = sorted({at for line in lines for at, _ in line.points})
    header = [words.parameter(parameter), *(f"{label}, {words.unit(unit)}" for label in labels)]
    rows = [[words.full(at), *(words.full(one[at]) if at in one else "" for one in values)] for at in places]
    return header, rows


def _bars(scenario: str, figures: Mapping[str, float]) -> list[Picture]:
    """Bars of Postbus beside hand-written queues and limits of the server."""
    made = []
    for about, patterns in _BARS.get(scenario, {}).items():
        chosen = {name: value for name, value in figures.items() if any(fnmatch(name, one) for one in patterns)}
        if len(chosen) >= 2:
            unit = unit_of(next(iter(chosen)))
            names = [name.removesuffix(f"_{unit}") for name in chosen]
            common = _common_words(names)
            labels = [f"{name}_".removeprefix(common).strip("_") or _OURS for name in names]
            values = dict(zip(labels, chosen.values(), strict=True))
            ours = [name for name in values if not any(word in name for word in _OTHERS)]
            made.append(_bar_picture(about, values, unit, ours))
    return made


def _rows(settings: Mapping[str, Any], figures: Mapping[str, float]) -> list[Picture]:
    """A chart for each row that all peers have; for a latency, one for each percentile."""
    charts: dict[tuple[str, str], dict[str, float]] = {}
    rows = sorted((name.removeprefix(_ROW) for name in settings if name.startswith(_ROW)), key=len, reverse=True)
    for name, value in figures.items():
        row = next((one for one in rows if name.startswith(f"{one}_")), None)
        unit = unit_of(name)
        if row is None or unit == "ratio":
            continue
        peer = name.removeprefix(f"{row}_").removesuffix(f"_{unit}")
        percentile = _PERCENTILE.search(peer)
        about = row if percentile is None else f"{row}_{percentile.group(1)}"
        charts.setdefault((about, unit), {})[_PERCENTILE.sub("", peer)] = value
    return [
        _bar_picture(words.plain(about), values, unit, [name for name in values if name.startswith(_OURS)])
        for (about, unit), values in charts.items()
        if len(values) >= 2
    ]


def _bar_picture(about: str, values: Mapping[str, float], unit: str, ours: Sequence[str]) -> Picture:
    title = words.title(about)
    best_first = dict(sorted(values.items(), key=lambda one: one[1], reverse=unit != "ms"))
    rows = [[words.plain(name), words.full(value)] for name, value in best_first.items()]
    svg = bar_chart(title, best_first, unit, ours=ours)
    return Picture(_file_name(title), title, svg, ["", words.unit(unit)], rows)


def _common_words(names: Sequence[str]) -> str:
    """The common beginning of all names, up to an underscore."""
    common: list[str] = []
    for column in zip(*(name.split("_") for name in names), strict=False):
        if len(set(column)) > 1:
            break
        common.append(column[0])
    return "_".join(common) + ("_" if common and len(names) > 1 else "")


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
