"""One user: the server starts, answers, keeps its data and ends."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import psycopg
import pytest

from embedded.helpers import Processes, query
from postbus import Bus
from postbus.embedded import EmbeddedPostgres, default_data_dir
from postbus.errors import EmbeddedError, InvalidOption

IS_ROOT = os.geteuid() == 0  # the folder is then root's, with a group that nobody else is in


@pytest.mark.parametrize("version", [16, 18])
def test_fresh_folder_becomes_a_durable_server(fresh_folder: Path, version: int) -> None:
    """The server starts in a folder that did not exist, with fsync on, in the requested version."""
    with EmbeddedPostgres.start(fresh_folder, version=version) as postgres:
        assert postgres.version == version
        assert query(postgres, "show server_version").startswith(f"{version}.")
        assert query(postgres, "show fsync") == "on"
        assert query(postgres, "show server_encoding") == "UTF8"


def test_data_survives_a_restart(folder: Path, processes: Processes) -> None:
    """Data written before the last user closed is there after the next start."""
    with EmbeddedPostgres.start(folder) as postgres:
        query(postgres, "create table kept as select 42 as answer")
    assert processes() == []

    with EmbeddedPostgres.start(folder) as postgres:
        assert query(postgres, "select answer from kept") == 42


def test_existing_folder_starts_quickly(folder: Path) -> None:
    """It takes less than a second."""
    EmbeddedPostgres.start(folder).close()
    began = time.monotonic()

    EmbeddedPostgres.start(folder).close()

    assert time.monotonic() - began < 1


def test_psycopg_accepts_the_same_dsn(folder: Path) -> None:
    """The DSN can name any database, for psycopg as for asyncpg."""
    with EmbeddedPostgres.start(folder) as postgres:
        query(postgres, 'create database "a b/c"')

        with psycopg.connect(postgres.dsn("a b/c")) as connection:
            assert connection.execute("select current_database()").fetchone() == ("a b/c",)


def test_dsn_is_complete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment variables for another server do not affect it."""
    for name, value in {"PGPORT": "1", "PGHOST": "/nowhere", "PGDATA": "/nowhere", "PGUSER": "me"}.items():
        monkeypatch.setenv(name, value)

    with EmbeddedPostgres.start(folder) as postgres:
        assert query(postgres, "select current_user") == "postgres"


def test_only_the_servers_account_reaches_the_socket(folder: Path) -> None:
    """The server listens on no network address, and its socket is in a closed folder."""
    with EmbeddedPostgres.start(folder) as postgres:
        assert query(postgres, "show listen_addresses") == ""
        socket_dir = Path(query(postgres, "show unix_socket_directories").strip('"'))
        found = socket_dir.stat()

    assert stat.S_IMODE(found.st_mode) == (0o770 if IS_ROOT else 0o700)
    assert found.st_uid == os.geteuid()


def test_long_path_gets_its_socket_elsewhere(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data folder with a path too long for a socket works, and leaves nothing outside of it."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with EmbeddedPostgres.start(base / ("long" * 25)) as postgres:
        socket_dir = Path(query(postgres, "show unix_socket_directories").strip('"'))

        assert not socket_dir.is_relative_to(base)
        assert stat.S_IMODE(socket_dir.stat().st_mode) == (0o770 if IS_ROOT else 0o700)

    assert not socket_dir.exists()


def test_socket_folder_that_others_can_enter_is_refused(folder: Path) -> None:
    """The server trusts whoever reaches its socket, so it does not start."""
    EmbeddedPostgres.start(folder).close()
    (folder / "run").chmod(0o755)

    with pytest.raises(EmbeddedError, match="not private"):
        EmbeddedPostgres.start(folder)


def test_given_settings_override_those_of_postbus(folder: Path) -> None:
    """Ours in turn override PostgreSQL's."""
    with EmbeddedPostgres.start(folder, settings={"max_connections": "17"}) as postgres:
        assert query(postgres, "show max_connections") == "17"
        assert query(postgres, "show jit") == "off"
        assert query(postgres, "show max_wal_size") == "2GB"


def test_settings_of_the_connection_are_refused(fresh_folder: Path) -> None:
    """A setting that would open or move the socket is refused before anything is made."""
    with pytest.raises(EmbeddedError, match="listen_addresses cannot be set"):
        EmbeddedPostgres.start(fresh_folder, settings={"listen_addresses": "*"})

    assert not fresh_folder.exists()


def test_settings_other_than_the_running_servers_are_refused(folder: Path) -> None:
    """A user that attaches cannot change settings; without settings it shares the running server."""
    with EmbeddedPostgres.start(folder, settings={"max_connections": "17"}):
        EmbeddedPostgres.start(folder).close()
        EmbeddedPostgres.start(folder, settings={"max_connections": "17"}).close()

        with pytest.raises(EmbeddedError, match=r"max_connections.*17"):
            EmbeddedPostgres.start(folder, settings={"max_connections": "18"})


def test_close_may_be_called_twice(folder: Path) -> None:
    """The second close of one user does not count as another user's close."""
    with EmbeddedPostgres.start(folder) as stays:
        leaves = EmbeddedPostgres.start(folder)
        leaves.close()
        leaves.close()

        assert query(stays, "select 1") == 1


def test_default_folder_depends_on_user_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment comes first, then root's or the user's data directory; each version has its own."""
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    expected = "/var/lib/postbus/pg16" if os.geteuid() == 0 else "/data/postbus/pg16"
    assert default_data_dir(16) == Path(expected)

    monkeypatch.setenv("POSTBUS_DATA_DIR", "/elsewhere")
    assert default_data_dir(16) == Path("/elsewhere")


def test_environment_selects_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """POSTBUS_DATA_DIR is used when the call names no folder."""
    monkeypatch.setenv("POSTBUS_DATA_DIR", str(folder))

    with EmbeddedPostgres.start() as postgres:
        assert postgres.data_dir == folder


def test_named_folder_counts_more_than_the_environments_dsn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus with `data_dir` uses the server of that folder, also if POSTBUS_DSN names another one."""
    monkeypatch.setenv("POSTBUS_DSN", "postgresql://nobody@127.0.0.1:1/nowhere")
    bus = Bus.open(data_dir=folder)
    try:
        with EmbeddedPostgres.start(folder) as postgres:
            assert bus.dsn == postgres.dsn()
    finally:
        bus.close_sync()


def test_dsn_and_folder_exclude_each_other(folder: Path) -> None:
    """A bus is on one server: with both options it is refused, and nothing starts."""
    with pytest.raises(InvalidOption, match="dsn and data_dir are both given"):
        Bus.open("postgresql://nobody@127.0.0.1:1/nowhere", data_dir=folder)
