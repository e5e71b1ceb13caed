"""`postbus serve` as a process that several tests share, on a database of its own, and raw ways to call it."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import asyncpg
import httpx

from cli.helpers import POSTBUS, environment
from postbus import Bus
from postbus.embedded import EmbeddedPostgres
from postbus.results.access import TokenRole
from support.fix_database import _TEMPLATE, _make_template

T = TypeVar("T")
_PATIENCE = 20.0  # seconds


@dataclass
class Served:
    """A running server."""

    dsn: str
    told: dict[str, Any]
    pid: int
    log: Path
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return str(self.told["url"])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def connect(self) -> socket.socket:
        """Open a connection over which nothing was sent."""
        return socket.create_connection(("127.0.0.1", self.port), _PATIENCE)

    def client(self, token: str | None = None, **options: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=_PATIENCE, trust_env=False, **options)

    def memory(self) -> int:
        """Return the bytes that the process has in memory."""
        return _status(self.pid, "VmRSS")

    def most_memory(self) -> int:
        """Return the most bytes that it has had."""
        return _status(self.pid, "VmHWM")

    def logged(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def connections(self) -> int:
        """Return how many client connections the process has open."""
        return sum(
            one.split()[3] == "01" and one.split()[1].endswith(f":{self.port:04X}")
            for one in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]
        )

    def use_database(self, work: Callable[[Bus], Awaitable[T]]) -> T:
        """Do something in the database that the server works on."""

        async def with_bus() -> T:
            async with Bus.open(self.dsn) as bus:
                return await work(bus)

        return _in_thread(with_bus())

    def new_token(self, *roles: str, topics: tuple[str, ...] = ("*",)) -> str:
        return self.use_database(lambda bus: _token(bus, roles, topics))

    def revoke(self, token: str) -> None:
        self.use_database(lambda bus: bus.admin.revoke_token(token.split("_")[1]))


async def _token(bus: Bus, roles: tuple[str, ...], topics: tuple[str, ...]) -> str:
    return (await bus.admin.create_token("test", cast("list[TokenRole]", list(roles)), topics=list(topics))).token


def _status(pid: int, name: str) -> int:
    [line] = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith(f"{name}:")]
    return int(line.split()[1]) << 10


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, whether or not a loop runs here."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@contextmanager
def database(server: EmbeddedPostgres) -> Iterator[str]:
    """Create a database with the schema, for several tests."""
    name = f"served_{secrets.token_hex(6)}"

    async def run(statement: str) -> None:
        root: Any = await asyncpg.connect(server.dsn())
        await _make_template(root, server)
        await root.execute(statement)
        await root.close()

    _in_thread(run(f"create database {name} template {_TEMPLATE}"))
    try:
        yield server.dsn(name)
    finally:
        _in_thread(run(f"drop database if exists {name} with (force)"))


@contextmanager
def served(dsn: str, *options: str, port: bool = True) -> Iterator[Served]:
    """Run a server with these options. It must not have logged a traceback when the block ends."""
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [*POSTBUS, "serve", *(("--port", "0") if port else ()), "--json", *options],
            env=environment(POSTBUS_DSN=dsn), stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, Path(log.name).read_text()
            running = Served(dsn, json.loads(line), process.pid, Path(log.name))
            yield running
            assert process.poll() is None, running.logged()
        finally:
            process.terminate()
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        assert "Traceback" not in running.logged(), running.logged()


def read_all(conn: socket.socket, within: float = _PATIENCE) -> bytes:
    """Read until the server closes the connection. Fails if it does not."""
    conn.settimeout(within)
    parts = []
    with suppress(ConnectionError):
        while part := conn.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def status_of(answer: bytes) -> int:
    """Return the status of a raw answer, or 0 if there is none because the connection was closed."""
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def send_until_closed(conn: socket.socket, piece: bytes, times: int) -> int:
    """Send a piece repeatedly. Returns how many times until the server took no more."""
    for sent in range(times):
        try:
            conn.sendall(piece)
        except OSError:
            return sent
    return times


def soon(fact: Callable[[], T], within: float = 15.0) -> T:
    """Call `fact` until its assertions hold."""
    deadline = time.monotonic() + within
    while True:
        try:
            return fact()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)
