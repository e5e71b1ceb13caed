"""Unreachable or refusing databases: each has a clear error."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postbus import AccessDenied, Bus, DatabaseUnavailable, InvalidInput, PostbusError
from postbus.embedded import EmbeddedPostgres


async def error_of(dsn: str, kind: type[PostbusError]) -> PostbusError:
    """Check that opening the bus fails with an error that names a remedy."""
    with pytest.raises(kind) as caught:
        async with Bus.open(dsn):
            pass
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    "dsn", ["mysql://x", "postgresql://x:port/db", "not a dsn at all", "postgresql://h/db?sslmode=maybe"]
)
async def test_unreadable_dsn_is_reported(dsn: str) -> None:
    """The error says that the text is no DSN."""
    assert "DSN" in str(await error_of(dsn, InvalidInput))


@pytest.mark.parametrize(
    "dsn", ["postgresql://u@127.0.0.1:1/db", "postgresql://u@no-such-host.invalid/db", "postgresql:///db?host=/nowhere"]
)
async def test_unreachable_server_is_reported(dsn: str) -> None:
    """A server that does not answer is unavailable, and the remedy speaks of the DSN."""
    error = await error_of(dsn, DatabaseUnavailable)
    assert "--dsn" in error.remedy


async def test_unknown_database_is_reported(server: EmbeddedPostgres) -> None:
    """The error names the database."""
    assert "no_such_database" in str(await error_of(server.dsn("no_such_database"), InvalidInput))


async def test_unknown_user_is_refused(server: EmbeddedPostgres) -> None:
    """The error is AccessDenied and names the user."""
    assert "stranger" in str(await error_of(server.dsn().replace("postgres@", "stranger@"), AccessDenied))


async def test_user_without_a_role_is_refused(conn: Any, dsn: str) -> None:
    """The remedy says which role is missing."""
    await conn.execute("create role nobody_special login")
    try:
        error = await error_of(dsn.replace("postgres@", "nobody_special@"), AccessDenied)
        assert "grant the user a role" in error.remedy
    finally:
        await conn.execute("drop role nobody_special")


@pytest.fixture
def server_with_passwords() -> Iterator[EmbeddedPostgres]:
    """Start a server of the test's own that asks for passwords."""
    folder = Path(tempfile.mkdtemp(prefix="postbus-password-"))
    folder.chmod(0o755)
    with EmbeddedPostgres.start(folder / "pg") as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


async def test_wrong_password_is_refused(server_with_passwords: EmbeddedPostgres) -> None:
    """The error is about access, not about the network, and the right password works."""
    dsn = server_with_passwords.dsn()
    root: Any = await asyncpg.connect(dsn)
    try:
        await root.execute("create role somebody login superuser password 'right'")
        hba = Path(await root.fetchval("show hba_file"))
        hba.write_text("local all somebody scram-sha-256\nlocal all all trust\n")
        await root.fetchval("select pg_reload_conf()")
        wrong = dsn.replace("postgres@", "somebody:wrong@")
        assert "password" in str(await error_of(wrong, AccessDenied))
        async with Bus.open(dsn.replace("postgres@", "somebody:right@"), migrate=True) as bus:
            assert await bus.send("t", {}) == 1
    finally:
        await root.close()
