"""Folders and binaries in any state: refused with a remedy, or recovered, but never damaged."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from embedded.helpers import Eventually, NewUser, Processes, query
from postbus._embedded import binaries
from postbus.embedded import EmbeddedPostgres
from postbus.errors import EmbeddedError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")


def wheel_binaries(version: int) -> Path:
    return binaries.find_binaries(version, None).bin_dir


def contents(folder: Path) -> dict[str, tuple[int, int, int]]:
    found = {path: path.lstat() for path in (folder, *folder.rglob("*"))}
    return {str(path): (each.st_mode, each.st_uid, each.st_mtime_ns) for path, each in found.items()}


def test_folder_of_another_version_is_refused(fresh_folder: Path) -> None:
    """Data of another major version is not opened, and the error names both versions."""
    EmbeddedPostgres.start(fresh_folder, version=16).close()

    with pytest.raises(EmbeddedError, match="PostgreSQL 16, not 18") as caught:
        EmbeddedPostgres.start(fresh_folder, version=18)

    assert "version=16" in caught.value.remedy


def test_version_that_the_wheel_lacks_is_refused(fresh_folder: Path) -> None:
    """Only versions in the wheel can be requested by number."""
    with pytest.raises(EmbeddedError, match="no embedded PostgreSQL 17"):
        EmbeddedPostgres.start(fresh_folder, version=17)


def test_foreign_folder_is_left_alone(fresh_folder: Path) -> None:
    """A folder with other files is refused, and nothing in it changes."""
    fresh_folder.mkdir()
    (fresh_folder / "thesis.tex").write_text("precious")
    before = contents(fresh_folder)

    with pytest.raises(EmbeddedError, match=r"thesis\.tex"):
        EmbeddedPostgres.start(fresh_folder)

    assert contents(fresh_folder) == before


def test_empty_folder_is_used_as_it_is(fresh_folder: Path) -> None:
    """It keeps its owner, and may have a lost+found. Root's is closed to all others."""
    (fresh_folder / "lost+found").mkdir(parents=True)
    fresh_folder.chmod(0o751)

    EmbeddedPostgres.start(fresh_folder).close()

    assert fresh_folder.stat().st_mode & 0o777 == (0o710 if os.geteuid() == 0 else 0o751)
    assert fresh_folder.stat().st_uid == os.geteuid()


@needs_root
def test_owner_of_a_prepared_folder_runs_the_server(fresh_folder: Path) -> None:
    """In a folder that belongs to a user, the server and all files are that user's."""
    fresh_folder.mkdir(mode=0o700)
    shutil.chown(fresh_folder, "nobody")

    with EmbeddedPostgres.start(fresh_folder):
        owners = {path.stat().st_uid for path in (fresh_folder, *fresh_folder.iterdir())}

    assert owners == {fresh_folder.stat().st_uid}


@needs_root
def test_environment_selects_the_servers_account(fresh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """POSTBUS_PG_USER names the account, which also owns the data."""
    monkeypatch.setenv("POSTBUS_PG_USER", "nobody")
    EmbeddedPostgres.start(fresh_folder).close()
    assert (fresh_folder / "pgdata").owner() == "nobody"

    monkeypatch.setenv("POSTBUS_PG_USER", "daemon")
    with pytest.raises(EmbeddedError, match="not to daemon"):
        EmbeddedPostgres.start(fresh_folder)

    monkeypatch.setenv("POSTBUS_PG_USER", "root")
    with pytest.raises(EmbeddedError, match="does not run as root"):
        EmbeddedPostgres.start(fresh_folder)


@needs_root
def test_folder_out_of_reach_is_refused(base: Path) -> None:
    """The server's account cannot enter the folder above, whose permissions stay as before."""
    closed = base / "closed"
    closed.mkdir()
    closed.chmod(0o700)
    before = contents(base)

    with pytest.raises(EmbeddedError, match=f"may not enter {closed}") as caught:
        EmbeddedPostgres.start(closed / "data")

    assert contents(base) == before
    assert str(closed) in caught.value.remedy


@needs_root
def test_binaries_out_of_reach_are_copied_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binaries that the server's account cannot reach run from a copy in the cache."""
    prefix = wheel_binaries(18).parent
    hidden = base / "hidden"
    shutil.copytree(prefix, hidden / prefix.parent.name / prefix.name)
    shutil.copytree(binaries.bundled_libraries(prefix), hidden / f"{prefix.parent.name}.libs")
    hidden.chmod(0o700)
    monkeypatch.setenv("POSTBUS_CACHE_DIR", str(base / "cache"))

    def start_and_see_the_cache() -> set[Path]:
        with EmbeddedPostgres.start(base / "data", bin_dir=hidden / prefix.parent.name / prefix.name / "bin"):
            return set((base / "cache").rglob("bin/postgres"))

    copies = start_and_see_the_cache()
    assert len(copies) == 1
    assert start_and_see_the_cache() == copies
    assert hidden.stat().st_mode & 0o777 == 0o700


def test_environment_selects_the_binaries(fresh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binaries from elsewhere are used in their own version."""
    monkeypatch.setenv("POSTBUS_PG_BIN", str(wheel_binaries(16)))

    with EmbeddedPostgres.start(fresh_folder) as postgres:
        assert postgres.version == 16


@pytest.mark.skipif(not Path("/usr/lib/postgresql/15/bin/postgres").exists(), reason="needs Debian's 15")
def test_binaries_of_a_distribution_work(fresh_folder: Path) -> None:
    """A distribution's PostgreSQL can be embedded too, and its lz4 is used."""
    with EmbeddedPostgres.start(fresh_folder, bin_dir="/usr/lib/postgresql/15/bin") as postgres:
        assert postgres.version == 15
        assert query(postgres, "show default_toast_compression") == "lz4"


def test_folder_without_binaries_is_refused(fresh_folder: Path) -> None:
    """The error names a bin_dir without PostgreSQL."""
    with pytest.raises(EmbeddedError, match="cannot run /nowhere/postgres"):
        EmbeddedPostgres.start(fresh_folder, bin_dir="/nowhere")


def test_missing_wheel_is_reported(fresh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is the command that installs the binaries."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(EmbeddedError) as caught:
        EmbeddedPostgres.start(fresh_folder)

    assert 'pip install "postbus[embedded]"' in caught.value.remedy


def fake_installation(folder: Path, initdb: str) -> Path:
    real = wheel_binaries(18)
    folder.mkdir()
    for name, script in {"postgres": f'exec {real}/postgres "$@"', "initdb": initdb}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def test_failure_shows_the_end_of_the_log(base: Path, fresh_folder: Path) -> None:
    """The error contains what the programs printed, and the next try can succeed."""
    binaries = fake_installation(base / "bin", "echo no space left on device; exit 1")

    with pytest.raises(EmbeddedError, match="no space left on device"):
        EmbeddedPostgres.start(fresh_folder, bin_dir=binaries)

    EmbeddedPostgres.start(fresh_folder).close()


def test_setting_that_postgresql_refuses_is_shown(folder: Path, processes: Processes) -> None:
    """A server that does not come up says why, and leaves no process."""
    with pytest.raises(EmbeddedError, match="no_such_setting"):
        EmbeddedPostgres.start(folder, settings={"no_such_setting": "1"})

    assert processes() == []


def test_interrupted_first_start_is_repaired(
    fresh_folder: Path, new_user: NewUser, processes: Processes, eventually: Eventually
) -> None:
    """When everything is killed while the cluster is being made, the next start makes it anew."""
    user = new_user(fresh_folder)
    eventually((fresh_folder / "pgdata.draft" / "global").exists)
    for pid in processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    user.kill()
    eventually(lambda: processes() == [])
    assert not (fresh_folder / "pgdata").exists()

    EmbeddedPostgres.start(fresh_folder).close()


def test_stale_pid_file_is_no_obstacle(folder: Path) -> None:
    """Its pid may belong to another process by now."""
    EmbeddedPostgres.start(folder).close()
    owner = (folder / "pgdata").stat().st_uid
    bystander = subprocess.Popen(["sleep", "60"], user=owner if os.geteuid() == 0 else None)
    try:
        (folder / "pgdata" / "postmaster.pid").write_text(f"{bystander.pid}\n{folder}/pgdata\n")

        EmbeddedPostgres.start(folder).close()
    finally:
        bystander.kill()
        bystander.wait()


def test_start_that_takes_too_long_gives_up(folder: Path) -> None:
    """A starter that waits longer than its timeout says what held it up."""
    EmbeddedPostgres.start(folder).close()
    with (folder / "start.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        with pytest.raises(EmbeddedError, match="another process is still starting it"):
            EmbeddedPostgres.start(folder, timeout=0)


def test_server_that_does_not_answer_in_time_is_given_up(
    base: Path, fresh_folder: Path, processes: Processes, eventually: Eventually
) -> None:
    """The start fails, and no process remains."""
    binaries = fake_installation(base / "bin", f'sleep 1; exec {wheel_binaries(18)}/initdb "$@"')

    with pytest.raises(EmbeddedError, match="did not answer in time"):
        EmbeddedPostgres.start(fresh_folder, bin_dir=binaries, timeout=0.2)

    eventually(lambda: processes() == [])
