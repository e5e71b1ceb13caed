"""postbus bench: measure on this machine."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from postbus.cli._command import Cli, WithOptions, group, keyword
from postbus.cli._exits import usage_error

app = group("bench", "Measure Postbus beside its peers and the raw limit.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Dsn = Annotated[
    str | None,
    typer.Option(help="A server to measure on, in databases made for it. Default: an embedded one."),
]
Quick = Annotated[bool, typer.Option(help="Everything small: shows that it works.")]
Short = Annotated[bool, typer.Option("--short", help="Smaller and shorter, as in: postbus bench all.")]


class _Scenario(WithOptions):
    """Runs a scenario with the options that all of them have, and its own."""

    def __init__(self, name: str, own: Sequence[inspect.Parameter]) -> None:
        super().__init__(
            [
                keyword("ctx", typer.Context, inspect.Parameter.empty),
                keyword("as_json", AsJson, False),
                keyword("dsn", Dsn),
                keyword("quick", Quick, False),
                keyword("short", Short, False),
                *own,
            ]
        )
        self._name = name

    def __call__(self, ctx: typer.Context, as_json: bool, dsn: str | None, **given: Any) -> None:
        from postbus.bench.run import run

        cli = _over(ctx, dsn=dsn, as_json=as_json)
        raise typer.Exit(run(self._name, dsn=cli.dsn, as_json=cli.as_json, **given))


def _over(ctx: typer.Context, *, dsn: str | None, as_json: bool = False) -> Cli:
    """These options, or those that stood before the command's name. The environment's database is not measured on."""
    cli = Cli(dsn, None, as_json).over(ctx.obj)
    if cli.data_dir is not None:
        raise usage_error("bench does not use --data-dir", remedy="leave it out: it makes a server of its own")
    return cli


def _scenario(name: str, about: str, *own: inspect.Parameter) -> None:
    app.command(name, help=about)(_Scenario(name, own))


def _messages(means: str) -> inspect.Parameter:
    return keyword("messages", Annotated[int | None, typer.Option(min=1000, help=means)])


def _seconds(least: float, means: str) -> inspect.Parameter:
    return keyword("seconds", Annotated[float | None, typer.Option(min=least, help=means)])


_COMPARED = (_messages("Messages in the large backlog."), _seconds(1, "Age of the old transaction."))
_LOADED = (
    _seconds(4, "How long the load lasts."),
    keyword("lanes", Annotated[int | None, typer.Option(min=1, help="Lanes of the topic.")]),
)

_scenario("queue", "The queue: publishing, draining, latency, backlog, old transactions, memory.", *_COMPARED)
_scenario(
    "log",
    "The log: publishing, consuming, ten groups, latency, backlog, old transactions, many topics.",
    *_COMPARED,
)
_scenario("peers", "Postbus beside other queues and brokers; those that are not installed are named as absent.")
for number, groups in enumerate((4, 8, 16, 32), 1):
    _scenario(f"lt{number}", f"Load test: 10,000 messages a second to {groups} groups, with receipts.", *_LOADED)
_scenario("lt5", "Load test: 10,000 messages a second to 16 groups.", *_LOADED)
_scenario("lt6", "Load test: 10,000 messages a second to 64 groups.", *_LOADED)
_scenario("lt7", "Load test: 30,000 messages a second to 100 groups.", *_LOADED)
_scenario(
    "catch-up",
    "A group that is 5,000,000 messages behind, beside live groups and an application.",
    _messages("Messages that it is behind."),
    _seconds(4, "How long it is waited for."),
)
_scenario(
    "kill-and-resurrect",
    "A group is killed, found dead, and comes back, in short minutes.",
    _seconds(15, "How long all of it takes, about."),
)
_scenario(
    "isolation",
    "A topic with 10 messages a second beside one at full speed with ten groups.",
    _seconds(4, "How long it is watched."),
)
_scenario(
    "thinning",
    "Publishing while old messages are deleted from partitions that a neighbour holds.",
    _seconds(4, "How long it is measured."),
)
_scenario(
    "partitions",
    "Partitions are made and dropped under load, in short days.",
    _seconds(12, "How long all of it takes, about."),
)
_scenario("relay", "Relaying to NATS JetStream and to nowhere, beside reading the log alone.")
_scenario("lanes", "Pops from a topic with 100,000 named lanes, of which 1,000 have messages.")
_scenario(
    "curves",
    "Throughput, latency, space and memory by batch, groups, lanes, backlog, payload and load.",
    _messages("Messages in the largest backlog."),
)
_scenario("http", "The HTTP server: batches and single messages by 50 connections, and 1,000 polls that wait.")


@app.command("all", help="All scenarios, each in a short form, and a report with charts.")
def all_of_them(
    ctx: typer.Context,
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

    cli = _over(ctx, dsn=dsn)
    unknown = sorted(set(only or ()) - set(SCENARIOS))
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(SCENARIOS)}", param_hint="--only")
    size = "--quick" if quick else None if long else "--short"
    names = [name for name in SCENARIOS if not only or name in only]
    raise typer.Exit(run_all(names, folder=folder, size=size, dsn=cli.dsn, minutes=None if long else minutes))


@app.command("report", help="Make a page with charts of the JSON files in a folder.")
def report(folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Has NAME.json files.")]) -> None:
    from postbus.bench.paper.write import write
    from postbus.bench.run import SCENARIOS

    for path in write(folder, order=list(SCENARIOS)):
        print(path)
