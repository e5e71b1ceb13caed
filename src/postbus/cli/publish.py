"""postbus publish"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from postbus._runtime.visible_text import counted, visible
from postbus.bus import Bus
from postbus.cli._arguments import Topic
from postbus.cli._command import Cli
from postbus.cli._exits import CommandError, exit_code_of, leave_pipe, usage_error
from postbus.cli._inputs import PayloadForm, as_duration, as_headers, as_moment, as_payload, only_one
from postbus.cli._render import write_json
from postbus.cli._say import say
from postbus.errors import InvalidInput, PostbusError
from postbus.message import Outgoing

_BATCH = 1000


async def publish(
    cli: Cli,
    *,
    topic: Topic,
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="PAYLOAD", help="The payload. If it is - or missing, it is read from stdin.", show_default=False
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the payload from this file.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Publish one message per line that is not empty.")] = False,
    text: Annotated[bool, typer.Option("--text", help="The payload is text, even if it looks like JSON.")] = False,
    json_payload: Annotated[
        bool, typer.Option("--json-payload", help="The payload is JSON: refuse anything else.")
    ] = False,
    bytes_payload: Annotated[bool, typer.Option("--bytes", help="The payload is bytes, taken as they are.")] = False,
    key: Annotated[
        str | None, typer.Option(help="The key: messages with the same key stay in order, in an ordered topic.")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")] = None,
    priority: Annotated[int | None, typer.Option(help="0 (last) to 9 (first); by default 4.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Deliver after this long: 30s, 5m, 24h.")
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Deliver at this time: 2030-01-31T18:00; without an offset it is local."),
    ] = None,
    dedup_key: Annotated[str | None, typer.Option(help="Publish only one message with this deduplication key.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="The correlation id.")] = None,
) -> None:
    """Publish a message, or one per line. Prints the ids.

    A payload that is valid JSON is published as JSON, other text as text, anything else as bytes.
    """
    chosen = only_one(json_payload=json_payload, text=text, bytes=bytes_payload)
    form = PayloadForm.JSON if chosen == "json_payload" else PayloadForm(chosen or "detect")
    options = Outgoing(
        payload=b"",
        key=key,
        headers=as_headers(header or ()),
        priority=priority,
        delay=as_duration(delay, name="--delay"),
        deliver_at=as_moment(deliver_at, name="--deliver-at"),
        dedup_key=dedup_key,
        correlation_id=correlation_id,
    )
    _check_source(payload, file, lines, dedup_key)
    with _source(cli, payload, file) as source:
        if lines:
            await _publish_lines(cli, topic, source, form, options)
        else:
            message = _message(source.read() if source else (payload or "").encode(), form, options)
            async with cli.open_bus() as bus:
                _print_ids(cli, topic, await _publish(bus, topic, [message]))


def _check_source(payload: str | None, file: Path | None, lines: bool, dedup_key: str | None) -> None:
    if payload is not None and file is not None:
        raise usage_error("a payload and --file are both given", remedy="give one of them")
    if lines and payload not in (None, "-"):
        raise usage_error("--lines reads stdin or --file, not the argument", remedy="omit PAYLOAD")
    if lines and dedup_key is not None:
        raise usage_error("--dedup-key would let only the first line through", remedy="omit --dedup-key")


@contextmanager
def _source(cli: Cli, payload: str | None, file: Path | None) -> Iterator[BinaryIO | None]:
    """The stream to read the payload from; None if the payload is the argument."""
    if file is not None:
        try:
            opened = file.open("rb")
        except OSError as error:
            raise usage_error(
                f"cannot read {file}: {error.strerror}", remedy="name a file that you may read"
            ) from error
        with opened:
            yield opened
    elif payload in (None, "-"):
        if sys.stdin.isatty():
            cli.note("reading from the terminal; end with Ctrl-D")
        yield sys.stdin.buffer
    else:
        yield None


def _message(payload: bytes, form: PayloadForm, options: Outgoing) -> Outgoing:
    read = as_payload(payload, form)
    return msgspec.structs.replace(options, payload=read.payload, content_type=read.content_type)


async def _publish(bus: Bus, topic: str, messages: list[Outgoing]) -> list[int]:
    async with bus.transaction() as conn:
        ids: Any = await bus.publish_many(conn, topic, messages)
    return list(ids)


def _print_ids(cli: Cli, topic: str, ids: list[int]) -> None:
    try:
        for one in ids:
            write_json({"id": one, "topic": topic}) if cli.as_json else say(one, flush=False)
        sys.stdout.flush()
    except BrokenPipeError:
        leave_pipe()  # all messages are published, even if nobody reads the ids


async def _publish_lines(cli: Cli, topic: str, source: BinaryIO | None, form: PayloadForm, options: Outgoing) -> None:
    """Publish each batch in a transaction of its own. Batches before an error stay published."""
    assert source is not None
    published = 0
    try:
        async with cli.open_bus() as bus:
            with _progress(topic) as advance:
                for numbered in _batches(source):
                    messages = [_line(number, line, form, options) for number, line in numbered]
                    ids = await _publish(bus, topic, messages)
                    published += len(ids)
                    advance(published)
                    if cli.as_json or not sys.stdout.isatty():
                        _print_ids(cli, topic, ids)
    except InvalidInput as error:
        if not published:
            raise
        raise _told_with(published, error) from error
    cli.note(f"published {counted(published, 'message')} to {topic}")


def _told_with(published: int, error: PostbusError) -> CommandError:
    return CommandError(
        f"{error.message}; the {published} messages before its batch are published",
        remedy=error.remedy,
        code=error.code,
        exit_code=exit_code_of(error),
    )


def _line(number: int, line: bytes, form: PayloadForm, options: Outgoing) -> Outgoing:
    try:
        return _message(line, form, options)
    except InvalidInput as error:
        raise type(error)(f"line {number}: {error.message}", remedy=error.remedy) from error


def _batches(source: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    batch: list[tuple[int, bytes]] = []
    for number, line in enumerate(source, 1):
        if stripped := line.rstrip(b"\r\n"):
            batch.append((number, stripped))
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


@contextmanager
def _progress(topic: str) -> Iterator[Callable[[int], None]]:
    """Show on stderr how many messages are published, if stderr is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Leave stdout alone: it may not be the terminal.
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as progress:
        task = progress.add_task(visible(f"publishing to {topic}"), total=None)
        yield lambda published: progress.update(task, completed=published)
