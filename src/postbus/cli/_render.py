"""Writing results: tables and lines for people, JSON for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from postbus._content.codec import decoder_for
from postbus._runtime.visible_text import moment_text, replaced, visible, visible_lines
from postbus.cli._say import say
from postbus.errors import PayloadNotDecodable
from postbus.message import Message
from postbus.results import MessageInfo

_UNLIMITED = 1_000_000  # columns, where no terminal sets a limit
_decode = decoder_for(Any)


def console() -> Console:
    """Stdout. Unless it is a terminal, its lines have no limit, so that nothing is cut or folded."""
    width = None if sys.stdout.isatty() else _UNLIMITED
    return Console(
        file=sys.stdout, width=width, highlight=False, markup=False, emoji=False, soft_wrap=width is not None
    )


# JSON


def write_json(value: Any) -> None:
    """Write a JSON value on one line: in ASCII on a terminal, and with escapes for what a terminal would obey."""
    text = json.dumps(value, default=_plain, ensure_ascii=sys.stdout.isatty())
    if not text.isprintable():  # such characters, lone surrogates too, are in strings only
        text = replaced(text, lambda one: json.dumps(one)[1:-1])
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, default=_plain)
    print(text, flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, msgspec.Struct):
        return as_dict(value)
    raise TypeError(f"{type(value)} cannot be written as JSON")


_STORED = ("sequence", "index")  # only paging uses them


def as_dict(result: msgspec.Struct) -> dict[str, Any]:
    """The fields of a result, for JSON."""
    return msgspec.structs.asdict(result)


def message_json(message: MessageInfo) -> dict[str, Any]:
    """A message for JSON: the payload decoded, or as `payload_base64` if it is not text."""
    fields = {name: value for name, value in as_dict(message).items() if name not in ("payload", *_STORED)}
    payload = decoded(message.payload, message.content_type)
    return fields | ({"payload_base64": payload} if isinstance(payload, bytes) else {"payload": payload})


def decoded(payload: bytes, content_type: str) -> Any:
    """The value of a payload; its bytes if it is neither JSON nor text."""
    try:
        return _decode(payload, content_type)
    except (PayloadNotDecodable, UnicodeDecodeError):
        return payload


# for people


def write_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """Write a table. On a terminal, long cells are folded, never cut; those of columns in `whole` are not folded."""
    is_terminal = console().is_terminal
    table = Table(box=SIMPLE_HEAD if is_terminal else None, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=not is_terminal or column in whole)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    write_lines(table)


def write_lines(table: Table) -> None:
    """Write a table. In a file or a pipe, its lines have no spaces at their ends."""
    out = console()
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as capture:
        out.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def write_facts(facts: Mapping[str, Any]) -> None:
    """Write names and values, one pair per line."""
    named = {visible(name): value for name, value in facts.items()}
    width = max(map(len, named))
    for name, value in named.items():
        say(f"{name:<{width}}  {printable(value)}".rstrip(), flush=False)


def printable(value: Any) -> str:
    """A value on one line, safe for a terminal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return moment_text(value.astimezone())
    if isinstance(value, timedelta):
        return duration(value)
    return visible(str(value))


_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


def duration(length: timedelta) -> str:
    """Such as 2d 3h, 5m 20s or 0.5s: the two largest units."""
    seconds = max(length.total_seconds(), 0)
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    parts: list[str] = []
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{int(count)}{unit}")
    parts.append(f"{int(seconds)}s")
    return " ".join(part for part in parts[:2] if not part.startswith("0"))


def age(moment: datetime | None) -> str:
    return "" if moment is None else duration(datetime.now(UTC) - moment)


def payload_line(payload: bytes, content_type: str) -> str:
    """A payload on one line: text as it is, anything else as base64."""
    value = decoded(payload, content_type)
    if isinstance(value, bytes):
        return "base64:" + base64.b64encode(value).decode()
    return printable(payload.decode("utf-8", "backslashreplace").strip())


def payload_lines(payload: bytes, content_type: str) -> list[str]:
    """The lines of a payload for people: JSON is indented."""
    value = decoded(payload, content_type)
    if isinstance(value, bytes):
        return ["base64:" + base64.b64encode(value).decode()]
    if isinstance(value, str):
        return list(visible_lines(value))
    return json.dumps(value, indent=2, ensure_ascii=True).splitlines()


def line_of(message: Message, *, tells_topic: bool = False) -> str:
    """A message that is consumed, on one line."""
    payload = payload_line(message.payload, message.content_type)
    return message_line(
        message_id=message.id,
        at=message.published_at,
        key=message.key,
        remark="" if message.attempt == 1 else f"attempt {message.attempt}",
        payload=f"{message.topic:<20}  {payload}" if tells_topic else payload,
    )


def message_line(*, message_id: int, at: datetime, key: str | None, remark: str, payload: str) -> str:
    """A message on one line; cut only on a terminal, to its width."""
    line = visible(f"{message_id:>8}  {at.astimezone():%H:%M:%S}  {remark:<9}  {printable(key) or '-':<12}  {payload}")
    out = console()
    if out.is_terminal and cell_len(line) > out.width:
        return set_cell_size(line, out.width - 1) + "…"
    return line
