"""Where a run happens: a server, and fresh databases on it that are dropped afterwards."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from postbus._db.error_map import translated_errors
from postbus._db.migrator import migrate
from postbus.embedded import EmbeddedPostgres

_SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
)


class Lab:
    """A server to measure on. Nothing outside databases of our own is touched."""

    def __init__(self, dsn: str, *, is_ours: bool = False) -> None:
        self.is_ours = is_ours
        self._dsn = dsn

    @classmethod
    @contextlib.contextmanager
    def open(cls, dsn: str | None = None, *, bin_dir: str | None = None) -> Iterator[Lab]:
        """The server of the DSN, or an embedded one on a temporary folder, of our binaries or others."""
        if dsn is not None:
            yield cls(dsn)
            return
        # Not made by us: its permissions have to let the server's account in.
        folder = Path(tempfile.gettempdir()) / f"postbus-bench-{secrets.token_hex(6)}"
        try:
            with EmbeddedPostgres.start(folder, bin_dir=bin_dir) as server:
                yield cls(server.dsn(), is_ours=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def twin(self) -> AbstractContextManager[Lab]:
        """A second server like this one, or this one if it is not ours: there is no other then."""
        return Lab.open() if self.is_ours else contextlib.nullcontext(self)

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """The DSN of an empty database with the schema."""
        name = f"postbus_bench_{secrets.token_hex(6)}"
        dsn = urlsplit(self._dsn)._replace(path=f"/{name}").geturl()
        await self._run(f"create database {name} template template0")
        try:
            async with connection(dsn) as conn:
                await migrate(conn)
            yield dsn
        finally:
            await self._run(f"drop database {name} with (force)")

    async def settings(self) -> dict[str, Any]:
        """The server's settings that figures depend on."""
        async with connection(self._dsn) as conn:
            found = {name: await conn.fetchval("select current_setting($1)", name) for name in _SETTINGS}
        return {"postgresql_version": found.pop("server_version"), **found}

    async def _run(self, sql: str) -> None:
        async with connection(self._dsn) as conn:
            with translated_errors():
                await conn.execute(sql)


@contextlib.asynccontextmanager
async def connection(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of our own."""
    with translated_errors():
        conn = await asyncpg.connect(dsn, timeout=10)
    try:
        yield conn
    finally:
        await conn.close()
