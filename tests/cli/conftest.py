"""The command line on the test's database, and folders for embedded servers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cli.helpers import STARTED, Cli, processes_of
from postbus import Bus, Start


@pytest.fixture(autouse=True)
async def end_what_was_started() -> AsyncIterator[None]:
    """End every command with its test, also if the test failed."""
    yield
    for process in STARTED:
        if process.returncode is None:
            process.kill()
            await process.wait()
    STARTED.clear()


@pytest.fixture
def cli(dsn: str, tmp_path: Path) -> Cli:
    """Run `postbus` in a process of its own, in a folder of its own."""
    return Cli(dsn, tmp_path)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provide a data folder that the server's account can enter, and check that no process works on it in the end."""
    base = Path(tempfile.mkdtemp(prefix="postbus-cli-")).resolve()
    base.chmod(0o755)
    yield base / "data"
    remaining = processes_of(base)
    shutil.rmtree(base)
    assert not remaining, f"processes remain: {remaining}"


@pytest.fixture
async def events(bus: Bus) -> str:
    """Create a PUB_SUB topic with the groups mail and stock, which nobody works for."""
    await bus.admin.create_topic("events", semantics="PUB_SUB", lanes=2)
    store = await bus.connect()
    for group in ("mail", "stock"):
        await store.subscribe("events", group, Start.NOW, "block")
    return "events"
