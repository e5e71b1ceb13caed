"""Data folders, users in processes of their own, and the proof that no process remains."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embedded.helpers import Eventually, NewUser, Processes, User, processes_of
from postbus.embedded import EmbeddedPostgres


@pytest.fixture
def eventually() -> Eventually:
    def wait(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.005)

    return wait


@pytest.fixture(autouse=True, scope="session")
def plain_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in [name for name in os.environ if name.startswith("POSTBUS_")]:
            monkeypatch.delenv(name)
        yield


def open_folder() -> Path:
    """Create a folder that the server's account can enter, unlike pytest's `tmp_path`."""
    path = Path(tempfile.mkdtemp(prefix="postbus-")).resolve()
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def prepared(plain_environment: None) -> Iterator[Path]:
    """Provide a data folder that has been started once, to be copied."""
    path = open_folder()
    EmbeddedPostgres.start(path / "data", version=18).close()
    yield path / "data"
    shutil.rmtree(path)


@pytest.fixture
def base() -> Iterator[Path]:
    """Provide a folder of this test's own, and check that no process works in it in the end."""
    path = open_folder()
    yield path
    remaining = processes_of(path)
    shutil.rmtree(path)
    assert not remaining, "processes remain"


@pytest.fixture
def fresh_folder(base: Path) -> Path:
    """Return the path of a data folder that does not exist yet."""
    return base / "fresh"


@pytest.fixture
def folder(base: Path, prepared: Path) -> Path:
    """Return a data folder of PostgreSQL 18, as its last user left it."""
    path = base / "data"
    subprocess.run(["cp", "-a", prepared, path], check=True)
    return path


@pytest.fixture
def new_user(base: Path) -> Iterator[NewUser]:
    """Start processes that use the server of a given folder."""
    users: list[User] = []

    def start(folder: Path) -> User:
        users.append(User(folder))
        return users[-1]

    yield start
    for user in users:
        with user.process:  # closes its stdin, which makes it leave, and waits for it
            pass


@pytest.fixture
def processes(base: Path) -> Processes:
    """Return a function for the pids of all supervisors and servers of this test."""
    return lambda: processes_of(base)
