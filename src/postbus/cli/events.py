"""postbus events …"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from postbus._runtime.visible_text import counted
from postbus.bus import Bus
from postbus.cli._command import Cli, command, group
from postbus.cli._exits import FAILED, OK, CommandError, usage_error
from postbus.cli._load import load
from postbus.cli._render import write_json, write_table
from postbus.cli._say import say
from postbus.errors import TopicNotFound, UnreadableEvent
from postbus.events import Registry, asyncapi, breaking_changes, json_schema
from postbus.message import DEFAULT_PRIORITY, Message
from postbus.results import MessageInfo

app = group("events", "List, check and export the events of a registry.")

_Target = Annotated[
    str, typer.Argument(metavar="MODULE[:REGISTRY]", help="The module and its Registry (registry).", show_default=False)
]


class DocumentFormat(enum.StrEnum):
    """The formats in which a registry is exported."""

    JSON_SCHEMA = "json-schema"
    ASYNCAPI = "asyncapi"


def load_registry(target: str) -> Registry:
    return load(target, Registry, default="registry", usage="postbus events list", example="registry = Registry()")


@command(app, "list")
def list_(cli: Cli, target: _Target) -> None:
    """List the event types of a registry."""
    registry = load_registry(target)
    rows = [
        {
            "event_type": name,
            "version": one.version,
            "reads": registry.readable_versions(name),
            "topic": one.topic,
            "aggregate": one.aggregate,
            "payload": f"{one.payload.__module__}.{one.payload.__qualname__}",
        }
        for name, one in registry.types.items()
    ]
    if cli.as_json:
        write_json(rows)
        return
    columns = ["event type", "version", "reads", "topic", "aggregate", "payload"]
    told = [{**row, "reads": ", ".join(map(str, registry.readable_versions(str(row["event_type"]))))} for row in rows]
    write_table(columns, [list(row.values()) for row in told], right=("version",))


@command(app, "export")
def export(
    cli: Cli,
    target: _Target,
    format: Annotated[DocumentFormat, typer.Option(help="The format to write.")] = DocumentFormat.JSON_SCHEMA,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; by default standard output.")
    ] = None,
) -> None:
    """Export a registry, as JSON Schema (for `check --against`, and for validators) or as AsyncAPI 3.0."""
    registry = load_registry(target)
    document = asyncapi(registry) if format is DocumentFormat.ASYNCAPI else json_schema(registry)
    text = _document(document)
    if output is None:
        sys.stdout.write(text if text.isascii() or not sys.stdout.isatty() else _document(document, is_ascii=True))
        return
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        raise CommandError(
            f"cannot write {output}: {error.strerror}", remedy="choose another file with --output"
        ) from error
    cli.note(f"wrote {counted(len(registry.types), 'event type')} to {output}")


def _document(document: Any, *, is_ascii: bool = False) -> str:
    return json.dumps(document, indent=2, ensure_ascii=is_ascii) + "\n"


@command(app, "check")
async def check(
    cli: Cli,
    target: _Target,
    against: Annotated[
        Path | None, typer.Option(help="Look for breaking changes since this file, which `export` wrote earlier.")
    ] = None,
    stored: Annotated[bool, typer.Option("--stored", help="Check the messages that the topics hold.")] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="At most this many messages of each topic, the newest ones.")
    ] = 1000,
) -> int:
    """Check a registry: in itself, against an earlier export, or against stored messages. Exit code 1: problems."""
    registry = load_registry(target)
    problems = registry.problems()
    looked_at = None
    if not problems:
        document = json_schema(registry)
        if against is not None:
            problems += breaking_changes(_read(against), document)
        if stored:
            async with cli.open_bus() as bus:
                looked_at, unreadable = await _unreadable(bus, registry, limit)
            problems += unreadable
    if cli.as_json:
        write_json(
            {"ok": not problems, "event_types": len(registry.types), "messages": looked_at, "problems": problems}
        )
    else:
        for problem in problems:
            say(problem)
        told = "" if looked_at is None else f", {counted(looked_at, 'message')}"
        cli.note(f"{counted(len(registry.types), 'event type')}{told}: {counted(len(problems), 'problem')}")
    return FAILED if problems else OK


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise usage_error(f"cannot read {path}: {error.strerror}", remedy="name a file that export wrote") from error
    except ValueError as error:
        raise usage_error(f"{path} is not JSON: {error}", remedy="name a file that export wrote") from error


async def _unreadable(bus: Bus, registry: Registry, limit: int) -> tuple[int, list[str]]:
    """The number of messages in the registry's topics, and a line for each that cannot be read."""
    count, found = 0, []
    for topic in dict.fromkeys(one.topic for one in registry.types.values()):
        for message in await _newest(bus, topic, limit):
            count += 1
            try:
                registry.check(message)
            except UnreadableEvent as error:
                found.append(f"message {message.id} of {topic}: {error}")
    return count, found


async def _newest(bus: Bus, topic: str, limit: int) -> list[Message]:
    try:
        is_log = await bus.admin.semantics(topic) == "PUB_SUB"
    except TopicNotFound:  # nothing was ever published to it
        return []
    found: Sequence[MessageInfo] = await (bus.admin.log if is_log else bus.admin.messages)(
        topic, limit=limit, newest=True
    )
    source = (await bus.connect()).source
    return [
        Message(
            id=one.id,
            topic=one.topic,
            payload=one.payload,
            content_type=one.content_type,
            key=one.key,
            headers=one.headers,
            correlation_id=one.correlation_id,
            priority=DEFAULT_PRIORITY,
            attempt=1,
            published_at=one.published_at,
            source=source,
        )
        for one in found
    ]
