"""postbus bench: measure on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Measure Postbus beside its peers and the raw limit."
)


@app.callback()
def bench() -> None:
    """Measure Postbus beside its peers and the raw limit."""


@app.command()
def queue(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    dsn: Annotated[
        str | None,
        typer.Option(help="A server to measure on, in databases made for it. Default: an embedded one."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Everything small: shows that it works.")] = False,
    messages: Annotated[int | None, typer.Option(min=1000, help="Messages in the large backlog.")] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="Age of the old transaction.")] = None,
) -> None:
    """The queue: publishing, draining, latency, backlog, old transactions, memory."""
    from postbus.bench.run import run

    raise typer.Exit(run("queue", dsn=dsn, as_json=as_json, quick=quick, messages=messages, seconds=seconds))
