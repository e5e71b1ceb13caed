"""docs/http.md: each route has a line with curl, and the server accepts each of these lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import httpx

from http_api.test_auth import TABLE
from postbus import Bus
from postbus.server.app import PARTS

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
_ELLIPSIS = "5f6a…"
_TOKEN = "00000000-0000-0000-0000-000000000000"


class Line(NamedTuple):
    """The request of a line with curl."""

    method: str
    path: str
    body: str | None


def curl_lines() -> list[Line]:
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)).replace("\\\n", " ")
    commands = re.findall(r"^curl .*?(?=\n(?:curl|postbus|pip)|\n\n|\Z)", blocks, re.DOTALL | re.MULTILINE)
    return [_line(shlex.split(command, comments=True)) for command in commands]


def _line(words: list[str]) -> Line:
    words = words[: words.index(">")] if ">" in words else words
    body = words[words.index("-d") + 1] if "-d" in words else None
    method = words[words.index("-X") + 1] if "-X" in words else "GET" if body is None else "POST"
    address = next(word for word in words if "localhost:8472" in word or "example.org:8472" in word)
    return Line(method, address.partition(":8472")[2], body)


def operation_of(line: Line) -> str:
    """Return the route of a line."""
    for handler in (route for part in PARTS for route in part.ROUTES):
        [template] = handler.paths
        pattern = re.sub(r"\\\{\w+:str\\\}", "[^/]+", re.escape(template))
        if line.method in handler.http_methods and re.fullmatch(pattern, line.path.partition("?")[0]):
            return str(handler.operation_id)
    return f"no route: {line.method} {line.path}"


def test_every_route_has_a_curl_line() -> None:
    """A new route is documented with a line to try."""
    shown = {operation_of(line) for line in curl_lines()} - {"no route: GET /openapi.json"}
    assert shown == set(TABLE)


async def test_every_curl_line_is_accepted(http: httpx.AsyncClient, bus: Bus) -> None:
    """The named object may not exist, but the request is valid."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await bus.send("events", 1)  # otherwise the pop would wait for it
    for line in curl_lines():
        if line.body == "@popped.json" or line.path.endswith("/follow"):
            continue
        body = line.body and line.body.replace(_ELLIPSIS, _TOKEN)
        answer = await http.request(line.method, line.path, content=body)
        assert answer.status_code not in (400, 405, 422), (line, answer.text)
        assert answer.status_code < 500, (line, answer.text)
        assert "PB447" not in answer.text, line
