"""Reading the reports of a folder, and writing the page and the charts beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.paper.page import page
from bench.paper.pictures import pictures
from postbus.errors import PostbusError

PAGE = "REPORT.md"
_PARTS = {"scenario", "machine", "settings", "figures", "checks"}


class NoReports(PostbusError):
    """The folder has no reports, or a file that is not one."""


def write(folder: Path, *, order: list[str] | None = None) -> list[Path]:
    """Write REPORT.md and an SVG per chart into a folder with NAME.json files. Returns what was written.

    A NAME.log without a NAME.json belongs to a scenario that could not be run. `order` is that of the sections.
    """
    reports = read(folder)
    failures = {log.stem: _reason(log) for log in sorted(folder.glob("*.log")) if not log.with_suffix(".json").exists()}
    if not reports and not failures:
        raise NoReports(f"{folder} has no reports; make one: python -m bench queue --json > {folder}/queue.json")
    places = {name: number for number, name in enumerate(order or [])}
    reports.sort(key=lambda one: (places.get(one["scenario"], len(places)), one["scenario"]))
    written = []
    for report in reports:
        for picture in pictures(report):
            path = folder / f"{report['scenario']}-{picture.name}.svg"
            path.write_text(picture.svg, "utf-8")
            written.append(path)
    path = folder / PAGE
    path.write_text(page(reports, failures), "utf-8")
    return [path, *written]


def read(folder: Path) -> list[dict[str, Any]]:
    """All reports of a folder. Refuses other JSON files."""
    reports = []
    for path in sorted(folder.glob("*.json")):
        try:
            found = json.loads(path.read_text("utf-8"))
        except (ValueError, OSError) as error:
            raise NoReports(f"{path} is not JSON: {error}") from None
        if not isinstance(found, dict) or not set(found) >= _PARTS:
            raise NoReports(f"{path} is not what `python -m bench SCENARIO --json` prints")
        reports.append(found)
    return reports


def _reason(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
