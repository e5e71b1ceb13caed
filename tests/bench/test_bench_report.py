"""The report of a folder: every figure, check and setting of every scenario is in it, and series become charts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.paper.pictures import pictures
from bench.paper.scales import parameter_axis, values_axis
from bench.paper.write import NoReports, write
from bench.series import point, split
from support.bench_reports import report

_SVG = "{http://www.w3.org/2000/svg}"
_CURVE = {
    "publish_log_per_s@batch=1": 900.0,
    "publish_log_per_s@batch=1000": 200_000,
    "publish_log_per_s@batch=10": 9_000,
    "publish_queue_per_s@batch=1": 1_000,
    "publish_queue_per_s@batch=1000": 90_000,
}
_CHECKS = [
    {"name": "kept", "value": 2.0, "goal": ">= 1", "ok": True},
    {"name": "missed", "value": 0.5, "goal": ">= 1", "ok": False},
]


def test_the_points_of_a_series_come_back_from_their_names_in_order() -> None:
    """name@parameter=value, whatever the order of the figures; other figures stand alone."""
    figures = {"lag_s": 1.0, point("rows", "seconds", 2.5): 7.0, point("rows", "seconds", 1000000): 8.0}

    alone, series = split({**figures, **_CURVE})

    assert alone == {"lag_s": 1.0}
    assert [(one.name, one.parameter, one.points) for one in series] == [
        ("rows", "seconds", [(2.5, 7.0), (1_000_000.0, 8.0)]),
        ("publish_log_per_s", "batch", [(1.0, 900.0), (10.0, 9_000), (1000.0, 200_000)]),
        ("publish_queue_per_s", "batch", [(1.0, 1_000), (1000.0, 90_000)]),
    ]


def test_series_with_parameter_and_unit_in_common_are_lines_of_one_chart() -> None:
    """Their axes say what they are, and in which unit; widely spread values are on logarithmic ones."""
    more = {"wal_log_bytes_per_message@batch=1": 600.0, "wal_log_bytes_per_message@batch=1000": 220.0}

    throughput, space = pictures(report("curves", {**_CURVE, **more}))

    drawn = ElementTree.fromstring(throughput.svg)
    texts = [text.text for text in drawn.iter(f"{_SVG}text")]
    assert throughput.title == "Throughput by batch"
    assert {"messages per call (log)", "messages per second (log)", "publish log", "publish queue"} <= set(texts)
    assert len(list(drawn.iter(f"{_SVG}polyline"))) == 2
    assert "bytes per message" in space.svg
    assert throughput.rows == [["1", "900", "1,000"], ["10", "9,000", ""], ["1,000", "200,000", "90,000"]]


def test_charts_have_colours_for_light_and_for_dark() -> None:
    """Their own paper included: text is never left to the page's background."""
    (picture,) = pictures(report("curves", _CURVE))

    light, dark = picture.svg.split("prefers-color-scheme: dark")
    assert re.search(r"\.paper \{ fill: #ffffff", light)
    assert re.search(r"\.paper \{ fill: #14181d", dark)


def test_systems_that_were_measured_beside_each_other_are_bars() -> None:
    """A chart for each row that the settings name; the fastest first, of latencies too."""
    figures = {
        "drain_pgqueuer_per_s": 9_000,
        "drain_postbus_queue_per_s": 40_000,
        "drain_postbus_to_pgqueuer_ratio": 4.4,
        "latency_postbus_p50_ms": 2.0,
        "latency_pgqueuer_p50_ms": 4.0,
    }
    settings = {"row_drain": "messages/s", "row_latency": "ms", "version_pgqueuer": "1.0"}

    drain, latency = pictures(report("peers", figures, settings=settings))

    assert (drain.title, drain.rows) == ("Drain", [["postbus queue", "40,000"], ["pgqueuer", "9,000"]])
    assert (latency.title, latency.rows) == ("Latency p50", [["postbus", "2"], ["pgqueuer", "4"]])
    assert len(list(ElementTree.fromstring(drain.svg).iter(f"{_SVG}rect"))) == 1 + 2


def test_the_queue_is_shown_beside_what_it_is_compared_with() -> None:
    """Where a scenario has a peer of its own, there is a chart for it without settings that say so."""
    figures = {"publish_bulk_per_s": 70_000, "publish_bulk_handwritten_per_s": 80_000, "publish_bulk_bytes_per_s": 9e4}

    (bulk,) = pictures(report("queue", figures))

    assert bulk.rows == [["bytes", "90,000"], ["handwritten", "80,000"], ["postbus", "70,000"]]


def test_the_page_has_every_check_figure_and_setting(tmp_path: Path) -> None:
    """And charts beside it; verdicts come first; a scenario that could not be run is not left out."""
    first = report("curves", {**_CURVE, "lag_s": 0.25}, checks=_CHECKS)
    (tmp_path / "curves.json").write_text(json.dumps(first))
    (tmp_path / "queue.json").write_text(json.dumps(report("queue", {"drain_per_s": 5.0})))
    (tmp_path / "log.log").write_text("1/7 publish in bulk\nthe server went away\n")

    written = write(tmp_path, order=["queue", "curves"])

    page = (tmp_path / "REPORT.md").read_text()
    assert {path.name for path in written} == {"REPORT.md", "curves-throughput-by-batch.svg"}
    assert "| [curves](#curves) | 2 | 1 | 12.5 | ✗ missed |" in page
    assert "| [queue](#queue) | 0 | 0 | 12.5 | ✓ |" in page
    assert page.index("## queue") < page.index("## curves")
    assert "| `kept` | 2 | >= 1 | ✓ |" in page
    assert "| `missed` | 0.5 | >= 1 | ✗ missed |" in page
    assert "| `lag_s` | 0.25 |" in page
    assert "| 1,000 | 200,000 | 90,000 |" in page
    assert "`log` could not be run: the server went away" in page
    assert "2026-01-02T03:04:05+00:00" in page
    assert "a cpu" in page
    for path in re.findall(r"!\[.*\]\((.*)\)", page):
        ElementTree.parse(tmp_path / path)


def test_load_tests_stand_beside_each_other(tmp_path: Path) -> None:
    """One row for each, with what they differ in."""
    for number, groups in ((5, 16), (7, 100)):
        settings = {"groups": groups, "messages_per_second": 10_000, "tracking": "OFFSET_WATERMARK"}
        made = report(f"lt{number}", {"deliveries_per_s": 1e6, "lag_max_s": 0.02}, settings=settings)
        (tmp_path / f"lt{number}.json").write_text(json.dumps(made))

    write(tmp_path)

    page = (tmp_path / "REPORT.md").read_text()
    assert "| [lt5](#lt5) | 16 | 10000 | OFFSET_WATERMARK | 1,000,000 | 0.02 |  |  |  |" in page
    assert "| [lt7](#lt7) | 100 |" in page


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    """So is a folder without one; the message says what to do, or which file it is."""
    with pytest.raises(NoReports, match="python -m bench queue --json"):
        write(tmp_path)
    (tmp_path / "other.json").write_text('{"scenario": "queue"}')
    with pytest.raises(NoReports, match=r"other\.json"):
        write(tmp_path)
    (tmp_path / "other.json").write_text("{")
    with pytest.raises(NoReports, match="is not JSON"):
        write(tmp_path)


@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [3.0], [1.0, 19.0], [0.004, 0.9], [50.0, 4000.0], [999.0, 1e6], [0.0, 7.3], [5.0, 5.0]]
)
def test_all_values_lie_on_their_axis(values: list[float]) -> None:
    """With two marks at least, each within it, in the order of their places."""
    scale = values_axis(values, 100.0, 0.0)

    assert all(-1e-6 <= scale.at(value) <= 100 + 1e-6 for value in values)
    assert len(scale.ticks) >= 2
    assert [scale.at(tick) for tick in scale.ticks] == sorted((scale.at(tick) for tick in scale.ticks), reverse=True)


@pytest.mark.parametrize("values", [[1.0], [0.0], [1.0, 2.0, 4.0, 8.0], [n / 2 for n in range(60)], [1.0, 10.0, 1e6]])
def test_a_parameter_has_its_measured_values_on_its_axis(values: list[float]) -> None:
    """As far as there is room for them; many of them get round numbers instead."""
    scale = parameter_axis(values, 0.0, 600.0)

    assert all(-1e-6 <= scale.at(value) <= 600 + 1e-6 for value in values)
    assert 1 <= len(scale.ticks) <= 10
    if len(values) <= 4:
        assert list(scale.ticks) == values
