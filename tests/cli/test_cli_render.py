"""How values are written."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from postbus.cli._render import duration, payload_line, payload_lines, printable, write_json


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"), (0, "0s"), (0.25, "0.2s"), (59, "59s"), (60, "1m"), (61, "1m 1s"), (3600, "1h"),
        (3661, "1h 1m"), (86400, "1d"), (90000, "1d 1h"), (864000, "10d"),
    ],
)  # fmt: skip
def test_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    """Smaller units are left out."""
    assert duration(timedelta(seconds=seconds)) == text


def test_value_is_printed_on_one_line() -> None:
    """No character breaks the line or controls a terminal."""
    assert printable("grün\t\x1b[0m\r\n\u2028") == "grün\\t\\x1b[0m\\r\\n\\u2028"
    assert (printable(None), printable(True), printable(3)) == ("", "yes", "3")


def test_payload_is_printed_by_its_content_type() -> None:
    """JSON and text are printed as they are, and other bytes as base64."""
    assert payload_line(b'{"a":\n1}', "application/json") == '{"a":\\n1}'
    assert payload_line(b"{bad", "application/json") == "base64:e2JhZA=="
    assert payload_line(b"\xff", "text/plain") == "base64:/w=="
    assert payload_lines(b"[1]", "application/json") == ["[", "  1", "]"]
    assert payload_lines(b"a\nb\x07", "text/plain") == ["a", "b\\x07"]


def test_json_escapes_lone_surrogates(capsys: pytest.CaptureFixture[str]) -> None:
    """The line is valid UTF-8 and valid JSON."""
    write_json({"a": "\ud800", "b": "grün"})

    line = capsys.readouterr().out
    assert line.encode()
    assert json.loads(line) == {"a": "\ud800", "b": "grün"}
