"""postbus import"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from postbus._admin.outbox_import.runner import ImportResult, NotImported, Progress
from postbus._admin.outbox_import.table import Layout
from postbus._runtime.visible_text import counted
from postbus.cli._arguments import DryRun
from postbus.cli._command import Cli
from postbus.cli._exits import OK, REFUSED
from postbus.cli._inputs import named_value
from postbus.cli._render import printable, write_json, write_table
from postbus.cli._say import say
from postbus.options import Semantics

_MOST_TOLD = 20


async def import_(
    cli: Cli,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="The outbox table; by default outbox, or else outbox_events.")
    ] = None,
    layout: Annotated[
        Layout | None, typer.Option("--layout", help="How the table is laid out; by default the columns tell.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            help="simple: the topic of events; {event_type} and {aggregate_type} are filled in. ({aggregate_type})",
        ),
    ] = None,
    semantics: Annotated[
        Semantics | None, typer.Option("--semantics", help="simple: the semantics of that topic. (QUEUE)")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="An option of topics that the import creates; may be repeated."
        ),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Import another outbox of this database.

    This carries over pending messages and the progress of groups, and leaves the old tables as they are. Stop the old
    consumers first. Publishers may go on: run it again for what they wrote meanwhile. No message is imported twice.
    """
    options: Any = {}  # the database checks them
    for one in option or ():
        name, value = named_value(one, "--option", example="max_payload_bytes=5000000")
        options[name.replace("-", "_")] = value
    async with cli.open_bus() as bus:
        with _progress(shown=sys.stderr.isatty() and not cli.as_json and not dry_run) as progress:
            result = await bus.admin.import_outbox(
                table, layout=layout, topic=topic, semantics=semantics, only=only or (), options=options,
                dry_run=dry_run, progress=progress,
            )  # fmt: skip
    if cli.as_json:
        write_json({**asdict(result), "messages": result.messages})
    else:
        _show(cli, result)
    return REFUSED if result.not_imported else OK


@contextmanager
def _progress(*, shown: bool) -> Iterator[Progress | None]:
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    with Bar(
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("import", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(cli: Cli, result: ImportResult) -> None:
    rows: list[list[Any]] = []
    for topic in result.topics:
        rows.append([topic.name, topic.semantics, "", "", topic.messages, ""])
        rows += [[topic.name, "", one.name, one.state, one.messages, one.deferred] for one in topic.groups]
    if rows:
        write_table(
            ["topic", "semantics", "group", "state", "messages", "deferred"], rows, right=("messages", "deferred")
        )
    verb = "would carry over" if result.dry_run else "carried over"
    say(f"{verb} {counted(result.messages, 'message')} of {result.table}")
    for note in result.notes:
        cli.note(f"note: {printable(note)}")
    for one in result.not_imported[:_MOST_TOLD]:
        cli.note(f"stays behind: {_what(one)}: {printable(one.problem)}")
    if len(result.not_imported) > _MOST_TOLD:
        cli.note(f"and {len(result.not_imported) - _MOST_TOLD} more: --json lists all")


def _what(one: NotImported) -> str:
    return (
        f"topic {printable(one.topic)}" if one.id is None else f"message {printable(one.id)} of {printable(one.topic)}"
    )
