"""postbus bench: measure on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Measure Postbus beside its peers and the raw limit."
)


@app.callback()
def bench() -> None:
    """Measure Postbus beside its peers and the raw limit."""


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Dsn = Annotated[
    str | None,
    typer.Option(help="A server to measure on, in databases made for it. Default: an embedded one."),
]
Quick = Annotated[bool, typer.Option(help="Everything small: shows that it works.")]
Short = Annotated[bool, typer.Option("--short", help="Smaller and shorter, as in: postbus bench all.")]


def _comparison(name: str, about: str) -> None:
    @app.command(name, help=about)
    def comparison(
        as_json: AsJson = False,
        dsn: Dsn = None,
        quick: Quick = False,
        short: Short = False,
        messages: Annotated[int | None, typer.Option(min=1000, help="Messages in the large backlog.")] = None,
        seconds: Annotated[float | None, typer.Option(min=1, help="Age of the old transaction.")] = None,
    ) -> None:
        _run(name, dsn=dsn, as_json=as_json, quick=quick, short=short, messages=messages, seconds=seconds)


def _load_test(name: str, about: str) -> None:
    @app.command(name, help=about)
    def load_test(
        as_json: AsJson = False,
        dsn: Dsn = None,
        quick: Quick = False,
        short: Short = False,
        seconds: Annotated[float | None, typer.Option(min=4, help="How long the load lasts.")] = None,
        lanes: Annotated[int | None, typer.Option(min=1, help="Lanes of the topic.")] = None,
    ) -> None:
        _run(name, dsn=dsn, as_json=as_json, quick=quick, short=short, seconds=seconds, lanes=lanes)


_comparison("queue", "The queue: publishing, draining, latency, backlog, old transactions, memory.")
_comparison("log", "The log: publishing, consuming, ten groups, latency, backlog, old transactions, many topics.")


@app.command("peers", help="Postbus beside other queues and brokers; those that are not installed are named as absent.")
def peers(as_json: AsJson = False, dsn: Dsn = None, quick: Quick = False) -> None:
    _run("peers", dsn=dsn, as_json=as_json, quick=quick)


for number, groups in enumerate((4, 8, 16, 32), 1):
    _load_test(f"lt{number}", f"Load test: 10,000 messages a second to {groups} groups, with receipts.")
_load_test("lt5", "Load test: 10,000 messages a second to 16 groups.")
_load_test("lt6", "Load test: 10,000 messages a second to 64 groups.")
_load_test("lt7", "Load test: 30,000 messages a second to 100 groups.")


@app.command("catch-up", help="A group that is 5,000,000 messages behind, beside live groups and an application.")
def catch_up(
    as_json: AsJson = False,
    dsn: Dsn = None,
    quick: Quick = False,
    short: Short = False,
    messages: Annotated[int | None, typer.Option(min=1000, help="Messages that it is behind.")] = None,
    seconds: Annotated[float | None, typer.Option(min=4, help="How long it is waited for.")] = None,
) -> None:
    _run("catch-up", dsn=dsn, as_json=as_json, quick=quick, short=short, messages=messages, seconds=seconds)


@app.command("kill-and-resurrect", help="A group is killed, found dead, and comes back, in short minutes.")
def kill_and_resurrect(
    as_json: AsJson = False,
    dsn: Dsn = None,
    quick: Quick = False,
    short: Short = False,
    seconds: Annotated[float | None, typer.Option(min=15, help="How long all of it takes, about.")] = None,
) -> None:
    _run("kill-and-resurrect", dsn=dsn, as_json=as_json, quick=quick, short=short, seconds=seconds)


@app.command("relay", help="Relaying to NATS JetStream and to nowhere, beside reading the log alone.")
def relay(as_json: AsJson = False, dsn: Dsn = None, quick: Quick = False, short: Short = False) -> None:
    _run("relay", dsn=dsn, as_json=as_json, quick=quick, short=short)


@app.command("isolation", help="A topic with 10 messages a second beside one at full speed with ten groups.")
def isolation(
    as_json: AsJson = False,
    dsn: Dsn = None,
    quick: Quick = False,
    short: Short = False,
    seconds: Annotated[float | None, typer.Option(min=4, help="How long it is watched.")] = None,
) -> None:
    _run("isolation", dsn=dsn, as_json=as_json, quick=quick, short=short, seconds=seconds)


@app.command("partitions", help="Partitions are made and dropped under load, in short days.")
def partitions(
    as_json: AsJson = False,
    dsn: Dsn = None,
    quick: Quick = False,
    short: Short = False,
    seconds: Annotated[float | None, typer.Option(min=12, help="How long all of it takes, about.")] = None,
) -> None:
    _run("partitions", dsn=dsn, as_json=as_json, quick=quick, short=short, seconds=seconds)


@app.command("curves", help="Throughput, latency, space and memory by batch, groups, lanes, backlog, payload and load.")
def curves(
    as_json: AsJson = False,
    dsn: Dsn = None,
    quick: Quick = False,
    short: Short = False,
    messages: Annotated[int | None, typer.Option(min=1000, help="Messages in the largest backlog.")] = None,
) -> None:
    _run("curves", dsn=dsn, as_json=as_json, quick=quick, short=short, messages=messages)


@app.command("all", help="All scenarios, each in a short form, and a report with charts.")
def all_of_them(
    folder: Annotated[Path, typer.Option(help="Where JSON, Markdown and SVG files go.")] = Path("build/bench"),
    dsn: Dsn = None,
    quick: Quick = False,
    long: Annotated[
        bool, typer.Option("--long", help="Each scenario in its long form, without a limit of time.")
    ] = False,
    minutes: Annotated[
        float, typer.Option(min=1, help="What has not ended by then is ended, and counts as failed.")
    ] = 30,
    only: Annotated[list[str] | None, typer.Option(help="Only this scenario; may be given several times.")] = None,
) -> None:
    from postbus.bench.run import SCENARIOS
    from postbus.bench.suite import run_all

    unknown = sorted(set(only or ()) - set(SCENARIOS))
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(SCENARIOS)}", param_hint="--only")
    size = "--quick" if quick else None if long else "--short"
    names = [name for name in SCENARIOS if not only or name in only]
    raise typer.Exit(run_all(names, folder=folder, size=size, dsn=dsn, minutes=None if long else minutes))


@app.command("report", help="Make a page with charts of the JSON files in a folder.")
def report(folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Has NAME.json files.")]) -> None:
    from postbus.bench.paper.write import write
    from postbus.bench.run import SCENARIOS

    for path in write(folder, order=list(SCENARIOS)):
        print(path)


def _run(scenario: str, **options: Any) -> None:
    from postbus.bench.run import run

    raise typer.Exit(run(scenario, **options))
