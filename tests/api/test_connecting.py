"""Databases that cannot be reached, or refuse: each with a clear error."""

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
    """Opening the bus fails with an error that names a remedy."""
    with pytest.raises(kind) as caught:
        async with Bus.open(dsn):
            pass
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    "dsn", ["mysql://x", "postgresql://x:port/db", "not a dsn at all", "postgresql://h/db?sslmode=maybe"]
)
async def test_a_dsn_that_is_none_is_told(dsn: str) -> None:
    """What cannot be read as a DSN is called so."""
    assert "DSN" in str(await error_of(dsn, InvalidInput))


@pytest.mark.parametrize(
    "dsn", ["postgresql://u@127.0.0.1:1/db", "postgresql://u@no-such-host.invalid/db", "postgresql:///db?host=/nowhere"]
)
async def test_a_server_that_is_away_is_told(dsn: str) -> None:
    """A server that does not answer is unavailable, and the remedy speaks of the DSN."""
    error = await error_of(dsn, DatabaseUnavailable)
    assert "--dsn" in error.remedy


async def test_an_unknown_database_is_told(server: EmbeddedPostgres) -> None:
    """The error names the database."""
    assert "no_such_database" in str(await error_of(server.dsn("no_such_database"), InvalidInput))


async def test_an_unknown_user_is_refused(server: EmbeddedPostgres) -> None:
    """A user that the server does not know has no access."""
    assert "stranger" in str(await error_of(server.dsn().replace("postgres@", "stranger@"), AccessDenied))


async def test_a_user_without_a_role_is_refused(conn: Any, dsn: str) -> None:
    """A user that has none of the roles is told that rights are missing."""
    await conn.execute("create role nobody_special login")
    try:
        error = await error_of(dsn.replace("postgres@", "nobody_special@"), AccessDenied)
        assert "grant the user the role" in error.remedy
    finally:
        await conn.execute("drop role nobody_special")


@pytest.fixture
def server_with_passwords() -> Iterator[EmbeddedPostgres]:
    """A server of the test's own that asks for passwords."""
    folder = Path(tempfile.mkdtemp(prefix="postbus-password-"))
    folder.chmod(0o755)
    with EmbeddedPostgres.start(folder / "pg") as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


async def test_a_wrong_password_is_refused(server_with_passwords: EmbeddedPostgres) -> None:
    """The error is about access, not about the network; the right password works."""
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
