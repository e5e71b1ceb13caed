"""A cheap client, so that the figures are those of the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from postbus.errors import PostbusError


class Served(NamedTuple):
    """A server in a process of its own."""

    host: str
    port: int
    pid: int


class RequestFailed(PostbusError):
    """The server refused a request of the benchmark."""


@contextlib.asynccontextmanager
async def served(dsn: str, *options: str) -> AsyncIterator[Served]:
    """`postbus serve`, as users run it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "postbus.cli", "serve", "--dsn", dsn, "--port", "0", "--json", *options,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            url = urlsplit(json.loads(await process.stdout.readline())["url"])
        yield Served(str(url.hostname), int(url.port or 0), process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


class Connection:
    """A connection that is kept open. One request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, to: Served) -> Connection:
        return cls(*await asyncio.open_connection(to.host, to.port, limit=1 << 24))

    async def post(self, path: str, body: bytes) -> bytes:
        """Send JSON; returns the answer's body."""
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: "
        self._writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
        await self._writer.drain()
        try:
            status, *fields = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            length = next(int(one.partition(b":")[2]) for one in fields if one.startswith(b"content-length"))
            answer = await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise RequestFailed(f"{path}: the server has closed the connection") from error
        if status.split()[1] not in (b"200", b"201"):
            raise RequestFailed(f"{path}: {answer.decode(errors='replace')[:500]}")
        return answer

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def connections(to: Served, count: int) -> AsyncIterator[list[Connection]]:
    """Open this many connections to a server."""
    opened = [await Connection.open(to) for _ in range(count)]
    try:
        yield opened
    finally:
        await asyncio.gather(*(one.close() for one in opened), return_exceptions=True)


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
