"""A TCP proxy before a server: it cuts connections around COMMIT, swallows, slows down and refuses."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from urllib.parse import parse_qs, urlsplit

from bench.ports import free_port
from faults.servers.waiting import until
from faults.servers.wire import Conversation, RequestKind

_CHUNK = 1 << 16


class OnCommit(Enum):
    """The treatment of a COMMIT."""

    PASS = "it passes"
    CUT_BEFORE = "the connection breaks before the server has got it"
    CUT_DURING = "the connection breaks while the server has it, and has not answered"
    CUT_AFTER = "the connection breaks after the server has done it"
    HOLD = "its answer waits for release()"


class CommitOdds:
    """How likely it is that a connection breaks at a COMMIT, by a seeded random generator."""

    def __init__(self, *, before: float = 0.0, during: float = 0.0, after: float = 0.0, seed: int = 0) -> None:
        cuts = {OnCommit.CUT_BEFORE: before, OnCommit.CUT_DURING: during, OnCommit.CUT_AFTER: after}
        self._random = random.Random(seed)
        self._choices = [OnCommit.PASS, *cuts]
        self._weights = [1.0 - sum(cuts.values()), *cuts.values()]
        if min(self._weights) < 0:
            raise ValueError("the odds of a cut are more than 1 together")

    def next(self) -> OnCommit:
        return self._random.choices(self._choices, self._weights)[0]


@dataclass(frozen=True)
class BrokenConnection:
    """A connection that was broken at a COMMIT."""

    at: float
    """By time.time()."""
    how: OnCommit


class Proxy:
    """Forwards between TCP clients and a server."""

    def __init__(self, dsn: str) -> None:
        """`dsn` is the server's, on TCP or on a Unix socket."""
        address = urlsplit(dsn)
        options = {name: values[0] for name, values in parse_qs(address.query).items()}
        self._host = address.hostname or options["host"]
        self._server_port = address.port or int(options.get("port", "5432"))
        self._user = address.username or "postgres"
        self._database = address.path[1:]
        self.port = free_port()
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._released = asyncio.Event()
        self._passing = asyncio.Event()
        self._passing.set()
        self._swallowing_until: asyncio.TimerHandle | None = None
        self.is_cut = False
        self.on_commit: OnCommit | CommitOdds = OnCommit.PASS
        self.with_autocommit = False
        """Whether on_commit is for statements outside of transactions too, which commit by themselves if they write."""
        self.delay = 0.0
        """Seconds that each piece takes longer, in both directions."""
        self.commit_seen = asyncio.Event()
        """Set by the first COMMIT that does not simply pass."""
        self.cuts: list[BrokenConnection] = []
        self.counts: Counter[str] = Counter()
        """Connections, commits and autocommits that came by."""

    @property
    def dsn(self) -> str:
        return self.dsn_of(self._database)

    def dsn_of(self, database: str, *, user: str | None = None) -> str:
        return f"postgresql://{user or self._user}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    async def start(self) -> None:
        """Take connections, always on the same port."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Refuse connections, and break those that are there."""
        self.refuse()
        self.heal()
        self.break_connections()
        await until(lambda: not self._links, "the end of the proxy's connections", within=10)

    def refuse(self) -> None:
        """Take no new connections until start(); those that are there stay."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def break_connections(self) -> None:
        """Reset all connections, on both sides."""
        for link in list(self._links):
            link.abort()

    def cut(self) -> None:
        """Part the clients from the server: connections are reset, and new ones as well, until heal()."""
        self.is_cut = True
        self.break_connections()

    def half_open(self, seconds: float | None = None) -> None:
        """Swallow all that comes, and close nothing, for as long or until heal(): nobody is told of anything.

        New connections are taken, and never answered. Afterwards those are reset that have lost something.
        """
        self._passing.clear()
        if seconds is not None:
            self._swallowing_until = asyncio.get_running_loop().call_later(seconds, self.heal)

    def heal(self) -> None:
        """End cut() and half_open()."""
        self.is_cut = False
        if self._swallowing_until is not None:
            self._swallowing_until.cancel()
            self._swallowing_until = None
        if not self._passing.is_set():
            self._passing.set()
            for link in list(self._links):
                if link.has_lost:
                    link.abort()

    def release(self) -> None:
        """Let the answer to a COMMIT that is held pass."""
        self._released.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        if self.is_cut:
            writer.transport.abort()
            return
        link = _Link(self, writer)
        self._links.add(link)
        try:
            if not self.is_passing:
                link.has_lost = True
                await self._passing.wait()
            if not link.has_lost:
                await link.forward(reader)
        finally:
            link.abort()
            self._links.discard(link)

    @property
    def is_passing(self) -> bool:
        return self._passing.is_set()

    @property
    def lost(self) -> int:
        """How many connections have lost something, which nobody was told."""
        return sum(link.has_lost for link in self._links)

    async def until_passing(self) -> None:
        await self._passing.wait()

    async def until_released(self) -> None:
        await self._released.wait()

    async def connect_to_server(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._server_port}")
        return await asyncio.open_connection(self._host, self._server_port)

    def fate_of(self, unit: RequestKind | None) -> OnCommit:
        """Decide what becomes of a client's request."""
        if unit is RequestKind.COMMIT or (unit is RequestKind.AUTOCOMMIT and self.with_autocommit):
            self.counts["commits" if unit is RequestKind.COMMIT else "autocommits"] += 1
            fate = self.on_commit.next() if isinstance(self.on_commit, CommitOdds) else self.on_commit
            if fate is not OnCommit.PASS:
                self.commit_seen.set()
            if fate in (OnCommit.CUT_BEFORE, OnCommit.CUT_DURING, OnCommit.CUT_AFTER):
                self.cuts.append(BrokenConnection(time.time(), fate))
            return fate
        return OnCommit.PASS


class _Link:
    """One client's connection, and the one to the server for it."""

    def __init__(self, proxy: Proxy, to_client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._to_client = to_client
        self._to_server: asyncio.StreamWriter | None = None
        self._conversation = Conversation()
        self._awaited: OnCommit | None = None
        """The fate of the answer to the COMMIT that the server has received."""
        self.has_lost = False

    def abort(self) -> None:
        """Reset both sides."""
        for writer in (self._to_client, self._to_server):
            if writer is not None:
                writer.transport.abort()

    async def forward(self, from_client: asyncio.StreamReader) -> None:
        try:
            from_server, self._to_server = await self._proxy.connect_to_server()
        except OSError:  # the client is told by a reset
            return
        both = [
            asyncio.create_task(self._towards_server(from_client, self._to_server)),
            asyncio.create_task(self._towards_client(from_server)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _towards_server(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            async for data in self._pieces(reader):
                for piece, unit in self._conversation.client_says(data):
                    fate = self._proxy.fate_of(unit)
                    if fate is OnCommit.CUT_BEFORE:
                        return
                    if fate is not OnCommit.PASS:
                        self._awaited = fate
                    to_server.write(piece)
                    await to_server.drain()
                    if fate is OnCommit.CUT_DURING:
                        return

    async def _towards_client(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            async for data in self._pieces(reader):
                answered = self._conversation.server_says(data)
                if self._awaited is not None and any(unit is not RequestKind.OTHER for unit in answered):
                    if self._awaited is OnCommit.CUT_AFTER:
                        return
                    self._awaited = None
                    await self._proxy.until_released()
                self._to_client.write(data)
                await self._to_client.drain()

    async def _pieces(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """The bytes that are read, without those that are swallowed, until the end or a reset."""
        while True:
            try:
                data = await reader.read(_CHUNK)
            except ConnectionError:
                data = b""
            if self._proxy.delay:
                await asyncio.sleep(self._proxy.delay)
            if not self._proxy.is_passing:
                self.has_lost = True
                if not data:  # the other side does not learn of it either
                    await self._proxy.until_passing()
            elif data and not self.has_lost:
                yield data
            if not data:
                return
