"""Counts attacks: tests below tests/security say what they attack, and a run closes with a table of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_FOLDER = "tests/security/"
_PROPERTY = "attack"
_BEGIN = "<!-- attacks: `make attacks` writes what follows -->\n"
_END = "<!-- end of attacks -->\n"


class Tried(NamedTuple):
    """Attacks on one thing."""

    on: str
    tried: int
    came_through: int
    files: tuple[str, ...]


def attack_of(item: pytest.Item) -> str | None:
    """Return what a test attacks; None for controls, which show that an attack would be seen."""
    marker = item.get_closest_marker("attack")
    return None if marker is None or item.get_closest_marker("control") else str(marker.args[0])


def attacks(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the tests of a run that are attacks."""
    return [item for item in items if _FOLDER in item.path.as_posix() and attack_of(item) is not None]


def table_in(page: str) -> dict[str, int]:
    """Return what a page lists as attacked, and how often."""
    rows = page.partition(_BEGIN)[2].partition(_END)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("|")]
    return {on: int(count) for on, _, count, _ in cells if on != "all"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table-of-attacks", metavar="FILE", help="write the table of attacks into this page")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "attack(on): a test below tests/security, and what it attacks")
    config.addinivalue_line("markers", "control: shows that an attack would be seen if it came through, and is none")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse an attack that is counted nowhere: it would be missing in the table."""
    for item in items:
        if _FOLDER in item.path.as_posix():
            marker = item.get_closest_marker("attack")
            if marker is None or not marker.args:
                raise pytest.UsageError(f"{item.nodeid}: say what it attacks: @pytest.mark.attack('...')")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the attack to the report: reports of other processes carry nothing but their properties."""
    report = yield
    on = attack_of(item)
    if on is not None and report.when == "call":
        report.user_properties.append((_PROPERTY, on))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print how many attacks were tried on each thing, and how many of them came through."""
    table = _table(terminalreporter.stats)
    if not table:
        return
    terminalreporter.section("attacks")
    width = max(len(one.on) for one in table)
    terminalreporter.line(f"{'attacked':{width}}  tried  came through")
    for one in table:
        terminalreporter.line(f"{one.on:{width}}  {one.tried:5}  {one.came_through:12}")
    page = config.getoption("--table-of-attacks")
    if page is not None:
        _write(Path(page), table)
        terminalreporter.line(f"written to {page}")


def _table(stats: dict[str, list[Any]]) -> list[Tried]:
    """Return the rows by name, and their sum last."""
    found: dict[str, tuple[int, int, set[str]]] = {}
    for outcome in ("passed", "failed"):
        for report in stats.get(outcome, ()):
            for name, on in getattr(report, "user_properties", ()):
                if name == _PROPERTY and report.when == "call":
                    count, came_through, files = found.get(on, (0, 0, set()))
                    found[on] = count + 1, came_through + (outcome == "failed"), files | {_file_of(report.nodeid)}
    rows = [
        Tried(on, count, came_through, tuple(sorted(files)))
        for on, (count, came_through, files) in sorted(found.items())
    ]
    if not rows:
        return []
    return [*rows, Tried("all", sum(one.tried for one in rows), sum(one.came_through for one in rows), ())]


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0].rpartition("/")[2]


def _write(page: Path, table: list[Tried]) -> None:
    """Put the table between the two marks of a page."""
    rows = []
    for one in table:
        links = ", ".join(f"[{name}](../{_FOLDER}{name})" for name in one.files)
        rows.append(f"| {one.on} | {links} | {one.tried} | {one.came_through} |")
    head = ["| attacked | by | tried | came through |", "|---|---|---|---|"]
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise pytest.UsageError(f"{page} has no place for the table: {_BEGIN}{_END}")
    tried_on = f"Tried last on {datetime.now(UTC):%Y-%m-%d}."
    page.write_text(before + begin + "\n".join([*head, *rows, "", tried_on, ""]) + end + after, "utf-8")
