"""Counts attacks: tests below tests/security say what they attack, and a run closes with a table of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

_FOLDER = "tests/security/"
_PROPERTY = "attack"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "attack(on): a test below tests/security, and what it attacks")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An attack that is counted nowhere would be missing in the table."""
    for item in items:
        if _FOLDER in item.path.as_posix():
            marker = item.get_closest_marker("attack")
            if marker is None or not marker.args:
                raise pytest.UsageError(f"{item.nodeid}: say what it attacks: @pytest.mark.attack('...')")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Reports of other processes bring nothing but their properties."""
    report = yield
    marker = item.get_closest_marker("attack")
    if marker is not None and report.when == "call":
        report.user_properties.append((_PROPERTY, marker.args[0]))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many attacks were tried on each thing, and how many of them came through."""
    tried: Counter[str] = Counter()
    came_through: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, on in getattr(report, "user_properties", ()):
                if name == _PROPERTY and report.when == "call":
                    tried[on] += 1
                    came_through[on] += outcome == "failed"
    if not tried:
        return
    terminalreporter.section("attacks")
    width = max(map(len, tried))
    terminalreporter.line(f"{'attacked':{width}}  tried  came through")
    for on in sorted(tried):
        terminalreporter.line(f"{on:{width}}  {tried[on]:5}  {came_through[on]:12}")
    terminalreporter.line(f"{'all':{width}}  {tried.total():5}  {came_through.total():12}")
