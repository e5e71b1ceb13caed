"""The server of a run, and fresh databases on it that are dropped afterwards."""

from __future__ import annotations

import asyncio
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
_ROLES = "select rolname from pg_roles where starts_with(rolname, 'postbus_') and right(rolname, length($1)) = $1"


class Lab:
    """A server to measure on. It touches nothing but databases of its own."""

    def __init__(self, dsn: str, *, is_ours: bool = False) -> None:
        self.is_ours = is_ours
        self._dsn = dsn
        self._template = f"postbus_bench_{secrets.token_hex(6)}"
        self._migrating: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.contextmanager
    def open(cls, dsn: str | None = None, *, bin_dir: str | None = None) -> Iterator[Lab]:
        """The server of the DSN, or an embedded one in a temporary folder, by default with our own binaries."""
        if dsn is not None:
            lab = cls(dsn)
            try:
                yield lab
            finally:
                asyncio.run(lab.close())
            return
        # The server creates it, with permissions that let the server's account in.
        folder = Path(tempfile.gettempdir()) / f"postbus-bench-{secrets.token_hex(6)}"
        try:
            with EmbeddedPostgres.start(folder, bin_dir=bin_dir) as server:
                yield cls(server.dsn(), is_ours=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def twin(self) -> AbstractContextManager[Lab]:
        """A second server like this one. If this one is the user's, there is no other: then it is this one."""
        return Lab.open() if self.is_ours else contextlib.nullcontext(self)

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """The DSN of an empty database with the schema."""
        if self._migrating is None:
            self._migrating = asyncio.create_task(self._migrate())
        await asyncio.shield(self._migrating)
        name = f"postbus_bench_{secrets.token_hex(6)}"
        await self._run(f"create database {name} template {self._template}")
        try:
            yield self._dsn_of(name)
        finally:
            await self._run(f"drop database {name} with (force)")

    async def _migrate(self) -> None:
        """Create the database that all others are copies of. A copy takes a tenth of the time of a migration."""
        await self._run(f"create database {self._template} template template0")
        async with connection(self._dsn_of(self._template)) as conn:
            await migrate(conn)

    async def close(self) -> None:
        """Drop the database that all others were copies of, with the roles that its migration created."""
        if self._migrating is None:
            return
        async with connection(self._dsn) as conn:
            with translated_errors():
                await conn.execute(f"drop database if exists {self._template} with (force)")
                for row in await conn.fetch(_ROLES, f"_{self._template}"):
                    await conn.execute(f"drop role {row['rolname']}")

    def _dsn_of(self, database: str) -> str:
        return urlsplit(self._dsn)._replace(path=f"/{database}").geturl()

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
    """A connection that is closed after the block."""
    with translated_errors():
        conn = await asyncpg.connect(dsn, timeout=10)
    try:
        yield conn
    finally:
        await conn.close()
