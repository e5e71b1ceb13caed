"""A TCP proxy before the server, which can break or hold up a connection just when COMMIT passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from enum import Enum
from urllib.parse import parse_qs, urlsplit

import pytest


class OnCommit(Enum):
    """What happens to a COMMIT."""

    PASS = "it passes"
    CUT_BEFORE = "the connection breaks before the server has got it"
    CUT_AFTER = "the connection breaks after the server has done it"
    HOLD = "its answer waits for release()"


class Proxy:
    """Forwards between TCP clients and the server's unix socket."""

    def __init__(self, dsn: str) -> None:
        address = urlsplit(dsn)
        self._socket = parse_qs(address.query)["host"][0] + "/.s.PGSQL.5432"
        self._database = address.path[1:]
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._released = asyncio.Event()
        self._is_cut = False
        self.on_commit = OnCommit.PASS
        self.commit_seen = asyncio.Event()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        """Refuse connections, and break those that are there."""
        assert self._server is not None
        self._server.close()
        self.break_connections()
        await self._server.wait_closed()

    def break_connections(self) -> None:
        for writer in self._connections:
            writer.transport.abort()

    def cut(self) -> None:
        """Part the clients from the server, until heal()."""
        self._is_cut = True
        self.break_connections()

    def heal(self) -> None:
        self._is_cut = False

    @property
    def dsn(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://postgres@127.0.0.1:{port}/{self._database}?sslmode=disable"

    def release(self) -> None:
        """Let the answer to a COMMIT that is held pass."""
        self._released.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        writers = {writer, to_server}
        self._connections |= writers
        is_committing = asyncio.Event()

        async def towards_server(data: bytes) -> None:
            if b"COMMIT;" in data and self.on_commit is not OnCommit.PASS:
                self.commit_seen.set()
                if self.on_commit is OnCommit.CUT_BEFORE:
                    raise ConnectionResetError
                is_committing.set()
            to_server.write(data)
            await to_server.drain()

        async def towards_client(data: bytes) -> None:
            if is_committing.is_set():
                if self.on_commit is OnCommit.CUT_AFTER:
                    raise ConnectionResetError
                await self._released.wait()
            writer.write(data)
            await writer.drain()

        both = [
            asyncio.create_task(_forward(reader, towards_server)),
            asyncio.create_task(_forward(from_server, towards_client)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for one in writers:
                one.transport.abort()
            self._connections -= writers


async def _forward(reader: asyncio.StreamReader, pass_on: Callable[[bytes], Awaitable[None]]) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            await pass_on(data)


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[Proxy]:
    """A proxy before the test's database."""
    started = Proxy(dsn)
    await started.start()
    yield started
    await started.stop()
