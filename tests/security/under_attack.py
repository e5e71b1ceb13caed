"""A `postbus serve` process on a database of its own, and ways to attack it byte by byte."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import asyncpg
import psycopg

from cli.helpers import POSTBUS, environment
from postbus import Bus
from postbus.embedded import EmbeddedPostgres
from support.fix_database import _TEMPLATE, _make_template

T = TypeVar("T")

_PATIENCE = 10.0  # seconds for an answer
_SILENCE = 0.3  # seconds without a byte, after which a server that keeps the connection open has said everything
_addresses = count(2)


def in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine for a fixture that several tests share, with an event loop of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@contextmanager
def database(server: EmbeddedPostgres) -> Iterator[str]:
    """Create a database with the schema, for as long as the block lasts."""
    name = f"attacked_{secrets.token_hex(6)}"

    async def run(statement: str) -> None:
        root: Any = await asyncpg.connect(server.dsn())
        await _make_template(root, server)
        await root.execute(statement)
        await root.close()

    in_thread(run(f"create database {name} template {_TEMPLATE}"))
    try:
        yield server.dsn(name)
    finally:
        in_thread(run(f"drop database if exists {name} with (force)"))


def with_bus(dsn: str, work: Callable[[Bus], Awaitable[T]]) -> T:
    """Prepare something in a database."""

    async def prepare() -> T:
        async with Bus.open(dsn) as bus:
            return await work(bus)

    return in_thread(prepare())


@dataclass(frozen=True)
class Answer:
    """One answer of HTTP/1.1."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def is_refused(self, *statuses: int) -> Answer:
        """Return this answer if it has one of these statuses and problem details without a traceback."""
        assert self.status in statuses, f"{self.status}: {self.body!r:.500}"
        assert b"Traceback" not in self.body
        return self


@dataclass
class Target:
    """A server that is attacked."""

    dsn: str
    port: int
    tokens: dict[str, str] = field(default_factory=dict)
    _conn: Any = None

    def send(self, request: bytes, *, hang_up: bool = False) -> bytes:
        """Send these bytes, and return all that is answered.

        Each call comes from another address, as strangers would. hang_up: say at once that nothing more will come.
        """
        source = f"127.1.{(number := next(_addresses)) // 250 % 250}.{number % 250 + 1}"
        with socket.create_connection(("127.0.0.1", self.port), _PATIENCE, source_address=(source, 0)) as conn:
            with suppress(ConnectionError):  # refused before all of it was read
                conn.sendall(request)
                if hang_up:
                    conn.shutdown(socket.SHUT_WR)
            return _read(conn)

    def ask(
        self,
        method: str,
        target: str | bytes,
        body: bytes | None = None,
        *,
        token: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Answer:
        """Send one request; its target goes out as it is."""
        path = target if isinstance(target, bytes) else target.encode("latin-1")
        lines = [b"%b %b HTTP/1.1" % (method.encode(), path), b"connection: close"]
        given = {name.lower() for name, _ in headers}
        if "host" not in given:
            lines.append(b"host: 127.0.0.1:%d" % self.port)
        if token is not None:
            lines.append(b"authorization: Bearer " + token.encode())
        if body is not None and not given & {"content-length", "transfer-encoding"}:
            lines.append(b"content-length: %d" % len(body))
            if "content-type" not in given:
                lines.append(b"content-type: application/json")
        lines += [f"{name}: {value}".encode("latin-1") for name, value in headers]
        [answer] = answers(self.send(b"\r\n".join([*lines, b"", body or b""])))
        return answer

    def fetch(self, sql: str, *args: Any) -> Any:
        """Return one value from the database."""
        if self._conn is None:
            self._conn = psycopg.connect(self.dsn, autocommit=True)
        row = self._conn.execute(sql, args).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()

    def stored(self) -> int:
        """Return how many messages there are in all."""
        return int(self.fetch("select (select count(*) from postbus.messages) + (select count(*) from postbus.log)"))


def _read(conn: socket.socket) -> bytes:
    """Read until the other side closes the connection or sends nothing more."""
    parts = []
    conn.settimeout(_PATIENCE)
    with suppress(ConnectionError, TimeoutError):
        while part := conn.recv(65536):
            parts.append(part)
            conn.settimeout(_SILENCE)
    return b"".join(parts)


def answers(raw: bytes) -> list[Answer]:
    """Return the answers in what a server has sent."""
    found = []
    while raw:
        head, separator, rest = raw.partition(b"\r\n\r\n")
        assert separator, f"no answer: {raw!r:.300}"
        first, *lines = head.decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1.1 "), first
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split()[1])
        if headers.get("transfer-encoding") == "chunked":
            body, raw = _unchunked(rest)
        else:
            length = int(headers.get("content-length", len(rest)))
            body, raw = rest[:length], rest[length:]
        found.append(Answer(status, headers, body))
    return found


def _unchunked(rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        body, rest = body + rest[:length], rest[length + 2 :]
        if not length:
            return body, rest


@contextmanager
def attacked(dsn: str, *options: str) -> Iterator[Target]:
    """Run `postbus serve` on a database, in a process of its own. In the end it must not have logged a bug."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*POSTBUS, "serve", "--port", "0", "--json", *options],
            env=environment(POSTBUS_DSN=dsn),
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "the server has not started"
            target = Target(dsn, int(json.loads(line)["url"].rpartition(":")[2].rstrip("/")))
            yield target
            target.close()
            assert process.poll() is None, "the server has ended"
        finally:
            process.kill()
            process.communicate()
        log.seek(0)
        told = log.read().decode("utf-8", "replace")
        sys.stderr.write(told)
        assert told.count("Traceback") == told.count("500: client disconnected prematurely")
