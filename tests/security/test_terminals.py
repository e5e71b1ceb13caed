"""Text that attacks its reader: on a terminal, and in the lines of a log."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import logging
import os
import re
import sys
import unicodedata
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from cli.conftest import cli, end_what_was_started
from cli.helpers import POSTBUS, STARTED, Cli, environment, open_terminal, read_all
from postbus import Bus
from postbus._runtime.log_events import event
from postbus._runtime.visible_text import visible
from postbus.cli._exits import report, tell
from postbus.cli._logging import LogFormat, configure_logging
from postbus.cli._render import (
    message_json,
    message_line,
    payload_line,
    payload_lines,
    write_facts,
    write_json,
    write_table,
)
from postbus.cli._say import say, say_block
from postbus.errors import EmbeddedError, PostbusError
from postbus.results import MessageInfo

__all__ = ["cli", "end_what_was_started"]  # fixtures
pytestmark = pytest.mark.attack("terminals and logs")

SOURCE = Path(__file__).parents[2] / "src" / "postbus"
EVIL = {
    "a title": "\x1b]0;owned\x07",
    "a clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "a link": "\x1b]8;;http://evil/\x1b\\x\x1b]8;;\x1b\\",
    "a question": "\x1b[6n",
    "a cleared screen": "\x1b[2J\x1b[H",
    "a colour": "\x1b[8m",
    "another screen": "\x1b[?1049h",
    "a device string": "\x1bP$q\x1b\\",
    "a reset": "\x1bc",
    "C1 codes": "\x9b2J",
    "a C1 string": "\x9d0;x\x9c",
    "a return": "all is well\rerror",
    "a line break": "\n2026-01-01 00:00:00,000 ERROR   forged=yes",
    "a CRLF": "\r\nremedy: rm -rf /",
    "a line separator": "\u2028forged",
    "a paragraph": "\u2029forged",
    "a next line": "\x85forged",
    "a form feed": "\x0c",
    "a tab": "\t",
    "backspaces": "rm\x08\x08ls",
    "a bell": "\x07",
    "a NUL": "\x00",
    "a delete": "\x7f",
    "shift out": "\x0e",
    "an override": "\u202egpj.exe",
    "embedding": "\u202a\u202b\u202d\u202c",
    "isolates": "\u2066\u2067\u2068\u2069",
    "marks": "\u200e\u200f\u061c",
    "no width": "a\u200bb\u200c\u200d\u2060\ufeff",
    "a soft hyphen": "pay\u00adpal",
    "tags": "\U000e0041\U000e007f",
    "annotations": "\ufff9x\ufffa",
    "private": "\ue000\U000f0000",
    "unassigned": "\u0378\U000e0fff",
    "a surrogate": "\ud800",
    "deprecated marks": "\u206a\u206f",
}
OF_SQL = {name: text for name, text in EVIL.items() if name not in ("a NUL", "a surrogate")}


def is_harmless(text: str, *, lines: bool = False) -> bool:
    """Return whether a terminal shows all of the text, and obeys none of it."""
    return all(one.isprintable() or (lines and one == "\n") for one in text)


@pytest.mark.parametrize("name", EVIL)
def test_shown_text_is_not_obeyed(name: str) -> None:
    """It is one line, contains nothing that a terminal obeys, and loses no printable character."""
    shown = visible(EVIL[name])
    assert is_harmless(shown)
    assert [one for one in EVIL[name] if one not in shown] == [one for one in EVIL[name] if not one.isprintable()]


def test_no_unprintable_character_is_forgotten() -> None:
    """Characters that control, format or break lines, or are unassigned, are never shown as they are."""
    # Of unassigned and private characters, every 256th.
    for number in (
        *range(0x3000),
        *range(0x3000, sys.maxunicode + 1, 256),
        *range(0xD7F0, 0xE010),
        *range(0xFE00, 0x10000),
    ):
        one = chr(number)
        if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            assert visible(one).isascii(), hex(number)


class Terminal(io.StringIO):
    """Standard output, or error, that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "dumb")
    return made


def doors(text: str) -> dict[str, Callable[[], object]]:
    """Return all ways by which the command line writes text for people."""
    now = datetime.now().astimezone()
    stored = MessageInfo(
        topic="t",
        id=1,
        event_id="e",
        key=text,
        published_at=now,
        correlation_id=None,
        content_type="application/json",
        headers={text: text},
        payload=json.dumps(text).encode(),
    )
    raw = text.encode("utf-8", "surrogatepass")
    return {
        "a line": lambda: say(text),
        "a table": lambda: write_table(["a"], [[text]]),
        "facts": lambda: write_facts({f"header {text}": text}),
        "a message": lambda: say(message_line(message_id=1, at=now, key=text, remark=text, payload=text)),
        "a payload": lambda: say(payload_line(raw, "text/plain")),
        "a payload of lines": lambda: say_block(payload_lines(raw, "text/plain")),
        "a payload of JSON": lambda: say_block(payload_lines(stored.payload, "application/json")),
        "JSON": lambda: write_json(message_json(stored)),
        "an error": lambda: report(PostbusError(text, remedy=text), as_json=False),
        "an error of JSON": lambda: report(PostbusError(text, remedy=text), as_json=True),
        "an error of the server": lambda: report(
            EmbeddedError(f"it did not start:\n    {text}\n", remedy=text), as_json=False
        ),
        "an error that nobody expected": lambda: report(RuntimeError(text), as_json=False),
        "a refusal": lambda: tell("usage", text, text, as_json=False),
    }


@pytest.mark.parametrize("door", doors(""))
@pytest.mark.parametrize("name", EVIL)
def test_no_output_passes_control_characters_to_the_terminal(name: str, door: str, terminal: Terminal) -> None:
    """Each output shows the text, in lines that are all ours."""
    doors("x")[door]()
    count = terminal.getvalue().count("\n")
    terminal.truncate(terminal.seek(0))
    doors(f"x{EVIL[name]}y")[door]()
    assert is_harmless(terminal.getvalue(), lines=True)
    assert door in ("an error of the server", "a payload of lines") or terminal.getvalue().count("\n") == count
    assert not re.search(r"^(remedy: rm|\d{4}-)", terminal.getvalue(), re.MULTILINE)
    assert "JSON" not in door or terminal.getvalue().isascii()


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize("form", LogFormat)
def test_log_line_is_one_line(name: str, form: LogFormat) -> None:
    """Neither events, messages of other loggers nor the text of an exception begin a line of a log."""
    stream = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        configure_logging("INFO", form)
        [handler] = root.handlers
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(stream)
        text = f"x{EVIL[name]}y"
        event(logging.ERROR, "message.dead", topic=text, error=text, exc_info=ValueError(text))
        logging.getLogger("uvicorn").warning("odd %s", text)
    finally:
        root.handlers[:], root.level = before[0], before[1]
    told = stream.getvalue()
    assert is_harmless(told, lines=True)
    begun = [line for line in told.splitlines() if not line.startswith("    ")]
    assert len(begun) == 2
    assert all(("odd" in line) or ("message.dead" in line) for line in begun)
    if form is LogFormat.JSON:
        assert [json.loads(line)["logger"] for line in begun] == ["postbus", "uvicorn"]


def test_events_are_one_line_in_other_formatters(caplog: pytest.LogCaptureFixture) -> None:
    """Where Postbus is a library, its events are safe for the application's own formatter too."""
    event(logging.ERROR, "message.dead", error="x\nforged\x1b[2J")
    assert caplog.records[-1].getMessage() == "message.dead error=x\\nforged\\x1b[2J"


@pytest.mark.control
@pytest.mark.parametrize("path", sorted((SOURCE / "cli").glob("*.py")), ids=lambda path: str(path.stem))
def test_command_line_prints_only_through_one_function(path: Path) -> None:
    """The author of a new command cannot forget to escape its output."""
    calls = [one for one in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(one, ast.Call)]
    printing = {one.lineno for one in calls if isinstance(one.func, ast.Name) and one.func.id == "print"}
    assert not printing or path.name in ("_say.py", "_render.py", "_exits.py", "__init__.py")


async def on_terminal(cli: Cli, *args: str, given: bytes = b"") -> str:
    """Return what a command writes to a terminal that is its stdout and stderr."""
    ours, theirs = open_terminal(width=200, height=50)
    process = await asyncio.create_subprocess_exec(
        *POSTBUS, *args, stdin=asyncio.subprocess.PIPE, stdout=theirs, stderr=theirs,
        env=environment(TERM="dumb", NO_COLOR="1", COLUMNS="200", **cli.env), cwd=cli.cwd,
    )  # fmt: skip
    STARTED.append(process)
    os.close(theirs)
    reading = asyncio.create_task(asyncio.to_thread(read_all, ours))
    await process.communicate(given)
    return (await reading).replace("\r\n", "\n")


ALL = "".join(OF_SQL.values())


@pytest.fixture
async def filled(bus: Bus) -> Bus:
    """Fill a queue with a message and a dead letter with attacking text in every writable field."""
    await bus.admin.create_topic("jobs", max_attempts=1, retry_initial="10ms")
    for payload in (ALL, ALL.encode()):
        await bus.send("jobs", payload, key=ALL[:200], headers={f"h{ALL}": ALL}, correlation_id=ALL[:200])
    return bus


@pytest.mark.parametrize(
    "args",
    [
        ("tail", "jobs", "--once"),
        ("tail", "jobs", "--once", "--json"),
        ("messages", "show", "jobs", "1"),
        ("messages", "show", "jobs", "1", "--json"),
        ("pop", "jobs", "--max", "2"),
        ("consume", "jobs", "--idle", "0.5s"),
        ("consume", "jobs", "--idle", "0.5s", "--json"),
        ("consume", "jobs", "--idle", "0.5s", "--exec", "cat; cat >&2 <<< \"$POSTBUS_KEY$POSTBUS_HEADERS\""),
        ("consume", "jobs", "--max", "2", "--exec", "cat >&2; exit 65"),
        ("topics", "show", f"nowhere{ALL}"),
        (ALL,),
    ],
    ids=lambda args: " ".join(args)[:40].encode("ascii", "ignore").decode().replace("\n", ""),
)  # fmt: skip
async def test_commands_write_only_visible_lines_to_a_terminal(cli: Cli, filled: Bus, args: tuple[str, ...]) -> None:
    """This holds whatever the messages contain."""
    told = await on_terminal(cli, *args)
    assert told.strip()
    assert is_harmless(told, lines=True), [one for one in told if not one.isprintable() and one != "\n"]
    assert "--json" not in args or told.isascii()
