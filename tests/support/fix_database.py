"""A real PostgreSQL for the tests: one server for all of them, one fresh database for each."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from faults.servers.installation import bin_dir
from postbus import Bus
from postbus._db.migrator import migrate
from postbus.embedded import EmbeddedPostgres
from support.eventually import eventually

_TEMPLATE = "postbus_template"
_FOLDER = "TESTS_OF_POSTBUS_FOLDER"
_MEMORY = "/dev/shm"
_ROOM = 8 << 30  # bytes

Connect = Callable[[], Awaitable[Any]]


def pytest_configure(config: pytest.Config) -> None:
    """Put everything that tests make below one folder, which the processes of a parallel run share, with a server.

    It is in memory if there is room: a database has hundreds of files, and making those on a disk takes ten times as
    long.
    """
    if _FOLDER not in os.environ:
        folder = tempfile.mkdtemp(prefix="postbus-test-", dir=_MEMORY if _has_room(_MEMORY) else None)
        Path(folder).chmod(0o755)
        os.environ[_FOLDER] = os.environ["TMPDIR"] = tempfile.tempdir = folder


def _has_room(folder: str) -> bool:
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    is_roomy = found.f_bavail * found.f_frsize >= _ROOM
    return is_roomy and not found.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder, in the process that made it, when all others have ended."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(_FOLDER), ignore_errors=True)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedPostgres]:
    """Start the server of the version that PG names."""
    version = int(os.environ.get("PG", "18"))
    settings = {"max_connections": "300"}
    folder = Path(os.environ[_FOLDER]) / "server"
    with EmbeddedPostgres.start(folder, version=version, bin_dir=bin_dir(version), settings=settings) as postgres:
        yield postgres


@pytest.fixture
async def client_program(server: EmbeddedPostgres) -> Callable[[str], str]:
    """Find psql, pg_dump and the like, of the server's version; not every installation has them."""
    root: Any = await asyncpg.connect(server.dsn())
    folder = Path(await root.fetchval("select setting from pg_config where name = 'BINDIR'"))
    await root.close()

    def find(name: str) -> str:
        if not (folder / name).exists():
            pytest.skip(f"there is no {name} beside this server")
        return str(folder / name)

    return find


@asynccontextmanager
async def fresh_database(server: EmbeddedPostgres) -> AsyncIterator[str]:
    """Create a database with the schema. Nothing of ours may be connected to it afterwards."""
    root: Any = await asyncpg.connect(server.dsn())
    name = f"test_{secrets.token_hex(8)}"
    try:
        await _make_template(root, server)
        await root.execute(f"create database {name} template {_TEMPLATE}")
        yield server.dsn(name)

        async def nobody_is_connected() -> None:
            left = await root.fetch(
                "select pid, application_name, query from pg_stat_activity "
                "where datname = $1 and backend_type = 'client backend'",
                name,
            )
            assert not left, f"connections remain: {left}"

        await eventually(nobody_is_connected)
    finally:
        await drop_database(root, name)
        await root.close()


@pytest.fixture
async def dsn(server: EmbeddedPostgres) -> AsyncIterator[str]:
    """Create a database of the test's own, with the schema."""
    async with fresh_database(server) as dsn:
        yield dsn


async def drop_database(root: Any, name: str) -> None:
    """Drop a database, and the roles that a migration made for it."""
    await root.execute(f"drop database if exists {name} with (force)")
    for row in await root.fetch("select rolname from pg_roles where starts_with(rolname, 'postbus_')"):
        if row["rolname"].endswith(f"_{name}"):
            await root.execute(f'drop role "{row["rolname"]}"')


@pytest.fixture
async def roles(conn: Any) -> Callable[[str], str]:
    """Return a function for the names of the database's roles. A copy of the template has none until it is migrated."""
    await migrate(conn)
    database = await conn.fetchval("select current_database()")
    return lambda role: f"postbus_{role}_{database}"


async def _make_template(root: Any, server: EmbeddedPostgres) -> None:
    await root.execute("select pg_advisory_lock(4711)")
    try:
        if not await root.fetchval("select exists (select from pg_database where datname = $1)", _TEMPLATE):
            await root.execute(f"create database {_TEMPLATE}_making")
            making: Any = await asyncpg.connect(server.dsn(f"{_TEMPLATE}_making"))
            await migrate(making)
            await making.close()
            await root.execute(f"alter database {_TEMPLATE}_making rename to {_TEMPLATE}")
    finally:
        await root.execute("select pg_advisory_unlock(4711)")


@pytest.fixture
async def empty_dsn(server: EmbeddedPostgres) -> AsyncIterator[str]:
    """Create a database without the schema."""
    root: Any = await asyncpg.connect(server.dsn())
    name = f"empty_{secrets.token_hex(8)}"
    await root.execute(f"create database {name} template template0")
    try:
        yield server.dsn(name)
    finally:
        await drop_database(root, name)
        await root.close()


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """Make a folder for a server of the test's own, which it may kill."""
    folder = Path(tempfile.mkdtemp(prefix="postbus-own-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def connect(dsn: str) -> AsyncIterator[Connect]:
    """Return a function that connects to the test's database, for tests with several sessions."""
    async with _connecting(dsn) as new:
        yield new


@asynccontextmanager
async def _connecting(dsn: str) -> AsyncIterator[Connect]:
    connections: list[Any] = []

    async def new() -> Any:
        conn: Any = await asyncpg.connect(dsn)
        connections.append(conn)
        return conn

    yield new
    for conn in connections:
        conn.terminate()


@pytest.fixture
async def connect_alone(own_folder: Path) -> AsyncIterator[Connect]:
    """Return such a function for a server of the test's own, without other transactions. They may be prepared."""
    settings = {"autovacuum": "off", "max_prepared_transactions": "20"}
    with EmbeddedPostgres.start(own_folder / "pg", settings=settings) as alone:
        async with _connecting(alone.dsn()) as new:
            await migrate(await new())
            yield new


@pytest.fixture
async def conn(connect: Connect) -> Any:
    """Connect to the test's database with asyncpg."""
    return await connect()


@pytest.fixture
async def bus(dsn: str) -> AsyncIterator[Bus]:
    """Open a bus on the test's database."""
    async with Bus.open(dsn) as opened:
        yield opened
