"""Running a scenario and showing its report."""

from __future__ import annotations

import json

from bench import (
    catch_up,
    curves,
    http,
    isolation,
    kill,
    lanes,
    log,
    lt,
    partitions,
    peers,
    queue,
    relay,
    thinning,
)
from bench.lab import Lab
from bench.plan import Plan
from bench.progress import Progress
from bench.report import Report
from postbus._runtime.event_loop import run as run_loop

SCENARIOS = {
    one.name: one
    for one in (
        queue.SCENARIO,
        log.SCENARIO,
        peers.SCENARIO,
        *lt.SCENARIOS,
        catch_up.SCENARIO,
        kill.SCENARIO,
        isolation.SCENARIO,
        thinning.SCENARIO,
        partitions.SCENARIO,
        lanes.SCENARIO,
        curves.SCENARIO,
        relay.SCENARIO,
        http.SCENARIO,
    )
}


def run(
    scenario: str,
    *,
    dsn: str | None = None,
    as_json: bool = False,
    quick: bool = False,
    short: bool = False,
    tell_parts: bool = False,
    messages: int | None = None,
    seconds: float | None = None,
    lanes: int | None = None,
) -> int:
    """Run a scenario and print its report. Returns the exit code: 0 if all checks hold."""
    chosen = SCENARIOS[scenario]
    plan = Plan.quick() if quick else Plan.short() if short else Plan()
    plan = plan.changed(messages=messages, seconds=seconds, lanes=lanes)
    with Lab.open(dsn) as lab, Progress(len(chosen.parts), shown=not as_json, told=tell_parts) as progress:
        report = run_loop(chosen.run(lab, plan, progress))
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        show(report)
    return 0 if report.ok else 1


def show(report: Report) -> None:
    """Print a report as tables."""
    from rich.console import Console
    from rich.table import Table

    about = Table(title=f"bench {report.scenario}", show_header=False)
    for name, value in (*report.machine.items(), *report.settings.items()):
        about.add_row(name, str(value))
    figures = Table("figure", "value")
    figures.columns[1].justify = "right"
    for name, value in report.figures.items():
        figures.add_row(name, f"{value:,}")
    checks = Table("check", "value", "goal", "")
    for check in report.checks:
        checks.add_row(check.name, f"{check.value:,}", check.goal, "[green]ok[/]" if check.ok else "[red]missed[/]")
    for table in (about, figures, checks):
        Console().print(table)
    if lines := SCENARIOS[report.scenario].summary(report):
        columns = list(dict.fromkeys(column for line in lines.values() for column in line))
        summary = Table("", *columns)
        for name, line in lines.items():
            summary.add_row(name, *(f"{line[column]:,}" if column in line else "" for column in columns))
        Console().print(summary)
