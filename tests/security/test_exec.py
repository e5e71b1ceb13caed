"""No part of a message becomes part of the command of `postbus consume --exec`."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cli.helpers import POSTBUS, environment
from postbus import Bus, InvalidTopicName
from postbus.embedded import EmbeddedPostgres
from security.under_attack import database, with_bus

pytestmark = pytest.mark.attack("commands of consume --exec")

# Each would make the file `came-through` if a shell read it.
COMMANDS = [
    "; touch came-through", "& touch came-through &", "| touch came-through", "|| touch came-through",
    "$(touch came-through)", "`touch came-through`", "\ntouch came-through\n", "\r\ntouch came-through\r\n",
    "'; touch came-through; '", '"; touch came-through; "', "\\\"; touch came-through #",
    "${IFS}$(touch${IFS}came-through)",
    "() { :; }; touch came-through", "> came-through", "< /dev/null > came-through", "$((a[$(touch came-through)]))",
    "%(touch came-through)", "{{touch came-through}}", "!touch came-through", "--version; touch came-through",
    "-c 'touch came-through'", "\x1b]0;touch came-through\x07", "came-through", "*", "~", "$POSTBUS_DSN", "#", "\\",
]  # fmt: skip

# Headers that would affect a process if they became variables of its environment.
VARIABLES = {
    "LD_PRELOAD": "/tmp/evil.so", "PATH": "/tmp/evil", "BASH_ENV": "came-through.sh", "ENV": "came-through.sh",
    "IFS": "x",
    "PYTHONPATH": "/tmp/evil", "POSTBUS_DSN": "postgresql://evil", "POSTBUS_ID": "0",
    "PROMPT_COMMAND": "touch came-through",
    "BASH_FUNC_cat%%": "() { touch came-through; }", "SHELLOPTS": "xtrace", "PS4": "$(touch came-through)",
    "": "x", "a=b": "c",
}  # fmt: skip

# Keeps its input, byte for byte, in a file per message.
_COMMAND = (
    "exec > $POSTBUS_ID.told; "
    'printf "%s" "$POSTBUS_KEY" | base64 -w0; echo; printf "%s" "$POSTBUS_HEADERS" | base64 -w0; echo; '
    "base64 -w0; echo; env -0 | base64 -w0; echo"
)


@dataclass
class Shell:
    """A folder in which one command was run for many messages."""

    folder: Path
    ids: dict[str, int] = field(default_factory=dict)

    def told(self, name: str) -> list[bytes]:
        """Return what the command got: key, headers, payload and environment."""
        lines = (self.folder / f"{self.ids[name]}.told").read_bytes().splitlines()
        return [base64.b64decode(line) for line in lines]

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir() if path.suffix != ".told"}


async def _prepare(bus: Bus) -> dict[str, int]:
    ids = {}
    for number, text in enumerate(COMMANDS):
        ids[f"payload {number}"] = await bus.send("t", text)
        ids[f"key {number}"] = await bus.send("t", "x", key=text)
        ids[f"value {number}"] = await bus.send("t", "x", headers={"h": text})
        ids[f"name {number}"] = await bus.send("t", "x", headers={text: "h"})
    ids["variables"] = await bus.send("t", "x", headers=VARIABLES)
    ids["identity"] = await bus.send("t", "x", headers={"event-id": "$(touch came-through)"})
    ids["bytes"] = await bus.send("t", bytes(range(256)))
    return ids


@pytest.fixture(scope="module")
def shell(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return the results after the command was run for all messages."""
    folder = tmp_path_factory.mktemp("shell")
    with database(server) as dsn:
        ids = with_bus(dsn, _prepare)
        done = subprocess.run(
            [*POSTBUS, "consume", "t", "--exec", _COMMAND, "--max", str(len(ids)), "--concurrency", "8"],
            env=environment(POSTBUS_DSN=dsn),
            cwd=folder,
            capture_output=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        yield Shell(folder, ids)


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=lambda number: ascii(COMMANDS[number]))
@pytest.mark.parametrize("where", ["payload", "key", "value", "name"])
def test_text_that_looks_like_a_command_is_not_run(shell: Shell, where: str, number: int) -> None:
    """It arrives exactly as it was published."""
    key, headers, payload, _ = shell.told(f"{where} {number}")
    text = COMMANDS[number]
    expected: dict[str, Any] = {"payload": payload, "key": key, "value": None, "name": None}
    if where in ("payload", "key"):
        assert expected[where] == text.encode()
    else:
        assert json.loads(headers) == ({"h": text} if where == "value" else {text: "h"})
    assert shell.files == set()


@pytest.mark.parametrize("name", VARIABLES)
def test_headers_do_not_become_variables(shell: Shell, name: str) -> None:
    """They are in one variable, as JSON."""
    _, headers, _, environ = shell.told("variables")
    assert json.loads(headers)[name] == VARIABLES[name]
    variables = dict(one.partition("=")[::2] for one in environ.decode().split("\0"))
    assert variables.get(name) != VARIABLES[name]


def test_event_id_is_not_run_as_a_command(shell: Shell) -> None:
    """A message's own identity is a variable as well."""
    environ = shell.told("identity")[3]
    assert b"POSTBUS_EVENT_ID=$(touch came-through)\0" in environ + b"\0"
    assert shell.files == set()


def test_any_bytes_arrive_on_stdin(shell: Shell) -> None:
    """A payload need not be a line or a text."""
    assert shell.told("bytes")[2] == bytes(range(256))


@pytest.mark.parametrize(
    "name",
    ["t;touch x", "$(touch x)", "`x`", "t x", "-t", "--exec", "../t", "t\nx", "t|x", "t&x", "t>x", "t*", "~t", "t'"],
)
async def test_topic_cannot_be_named_like_a_command(bus: Bus, name: str) -> None:
    """Topic names contain no shell characters, so that scripts need not quote them."""
    with pytest.raises(InvalidTopicName):
        await bus.send(name, "x")
