"""postbus bench"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from postbus._runtime.event_loop import run
from postbus.cli._command import Cli
from postbus.cli._exits import usage_error
from postbus.cli._measure import BATCH, PAYLOAD_BYTES, STEPS, Samples, measure
from postbus.cli._render import write_json, write_table
from postbus.cli._say import say

_TITLES = {
    "publish_single_per_s": "publish, a message per transaction: messages/s",
    "publish_batch_per_s": f"publish, {BATCH} per transaction: messages/s",
    "consume_per_s": "consume: messages/s",
    "latency_p50_ms": "publish to handler, median: ms",
    "latency_p99_ms": "publish to handler, p99: ms",
}
_COLUMNS = {"bare": "bare SQL", "queue": "QUEUE", "queue_to_bare": "of bare"}
_COLUMNS |= {"pub_sub": "PUB_SUB", "pub_sub_to_bare": "of bare"}


def bench(
    cli: Cli,
    scenario: Annotated[str | None, typer.Argument(hidden=True)] = None,
    seconds: Annotated[float, typer.Option(min=1, max=60, help="Measure for about this many seconds.")] = 20,
) -> None:
    """Measure this server: publishing, consuming and latency, beside a bare INSERT and SELECT.

    One connection publishes and one worker consumes, as fast as the server lets them. The messages go to topics of
    their own, which are deleted at the end, even after Ctrl-C; no other topic is touched.
    "Of bare" compares with rows of a plain table, and is left out if the user may not create a schema.
    """
    if scenario is not None:
        raise usage_error(
            f"bench has no scenario {scenario}: it measures your server",
            remedy=f"to compare with other systems, run in a checkout of the repository: python -m bench {scenario}",
        )
    result = run(_measure(cli, seconds))
    if cli.as_json:
        write_json(result)
        return
    server, figures = result["server"], result["figures"]
    say(
        f"PostgreSQL {server['server_version']}, fsync {server['fsync']}, synchronous_commit "
        f"{server['synchronous_commit']}, payloads of {PAYLOAD_BYTES} bytes"
    )
    columns = ["", *_COLUMNS.values()]
    rows = [[title, *(_text(figures[name][column]) for column in _COLUMNS)] for name, title in _TITLES.items()]
    write_table(columns, rows, right=columns[1:])


async def _measure(cli: Cli, seconds: float) -> dict[str, Any]:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):  # as with Ctrl-C
        loop.add_signal_handler(number, task.cancel)
    async with cli.open_bus() as bus:
        began = time.monotonic()
        async with bus.transaction() as conn:
            names = ("server_version", "fsync", "synchronous_commit")
            server = {name: await conn.fetchval("select current_setting($1)", name) for name in names}
        with _progress(shown=not cli.as_json) as told:
            figures = _figures(await measure(bus, seconds, told))
    took = round(time.monotonic() - began, 1)
    return {"server": server, "payload_bytes": PAYLOAD_BYTES, "batch": BATCH, "seconds": took, "figures": figures}


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[], None]]:
    """A bar that is drawn only between steps: a thread that draws would disturb the measurement."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    is_shown = shown and console.is_terminal
    with Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not is_shown) as progress:
        task = progress.add_task("measuring", total=STEPS)
        yield lambda: progress.update(task, advance=1, refresh=True)


def _figures(samples: Samples) -> dict[str, dict[str, float | None]]:
    """The figures by row and column; None where nothing was measured."""
    figures: dict[str, dict[str, float | None]] = {name: dict.fromkeys(_COLUMNS) for name in _TITLES}
    for (part, way), found in samples.items():
        if part == "latency":
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                figures[f"latency_{name}_ms"][way] = sorted(found)[int(len(found) * share)] * 1000
        else:
            figures[f"{part}_per_s"][way] = sum(found[::2]) / sum(found[1::2])
    for row in figures.values():
        for way in ("queue", "pub_sub"):
            value, bare = row[way], row["bare"]
            row[f"{way}_to_bare"] = value / bare if value and bare else None
        row.update({column: value and float(f"{value:.4g}") for column, value in row.items()})
    return figures


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
