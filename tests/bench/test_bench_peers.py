"""The benchmark beside peers: who is there is measured, who is not is named, and nothing is left running."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.lab import Lab
from bench.peers import available, servers
from bench.peers.available import Available, open_systems
from bench.peers.system import Absent
from support.bench_reports import Quick, held
from support.eventually import eventually

pytestmark = pytest.mark.timeout(180)  # a busy machine takes its time

_ROWS = ("publish_single_1_connection", "publish_single_16_connections", "publish_batches_of_100", "drain", "latency")
_ALWAYS = ("postbus_queue", "postbus_log", "handwritten")

_HOLD_A_SERVER = """
import asyncio, sys
from bench.peers import servers

async def hold():
    async with servers.redis() as server:
        print(server.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(hold())
"""


@pytest.fixture(scope="module")
def report(quick: Quick) -> dict[str, Any]:
    return quick("peers")


def _present(report: dict[str, Any]) -> set[str]:
    return {name.removeprefix("version_") for name in report["settings"] if name.startswith("version_")}


def _absent(report: dict[str, Any]) -> dict[str, str]:
    prefix = "absent_"
    return {name.removeprefix(prefix): why for name, why in report["settings"].items() if name.startswith(prefix)}


def test_each_system_is_measured_or_absent_with_a_reason(report: dict[str, Any]) -> None:
    """Nobody is passed over in silence, and nobody is both."""
    absent = _absent(report)

    assert _present(report) | set(absent) == set(available.ORDER)
    assert not _present(report) & set(absent)
    assert all(absent.values())
    assert set(_ALWAYS) <= _present(report)


def test_every_row_has_a_figure_of_every_system_that_is_there(report: dict[str, Any]) -> None:
    """And of no other: what was not measured has no number."""
    for row in _ROWS:
        measured = {name for name in report["figures"] if name.startswith(f"{row}_")}
        for system in available.ORDER:
            has_figure = any(f"{row}_{system}_{unit}" in measured for unit in ("per_s", "p50_ms"))
            assert has_figure == (system in _present(report)), (row, system)
    assert all(value > 0 for value in report["figures"].values())
    assert report["figures"]["ten_groups_two_processes_postbus_log_deliveries_per_s"] > 0


def test_the_checks_are_on_the_peers_inside_postgresql(report: dict[str, Any]) -> None:
    """Of brokers there are ratios, and no goals."""
    names = set(held(report))
    inside = set(available.RIVALS) & _present(report)
    outside = set(available.BROKERS) & _present(report)

    for peer in inside:
        assert {f"drain_postbus_to_{peer}_ratio", f"latency_p99_postbus_to_{peer}_speed_ratio"} <= names
    for broker in outside:
        assert not any(broker in name for name in names)
        assert report["figures"][f"drain_postbus_to_{broker}_ratio"] > 0


async def test_what_is_not_installed_is_absent_with_a_remedy(
    server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without any of the packages Postbus and the hand-written queue remain."""

    def nothing(*modules: str) -> None:
        if modules:
            raise Absent(f"{modules[0]} is not installed", remedy="make peers")

    monkeypatch.setattr(available, "_need", nothing)
    monkeypatch.setattr(available, "DEBIAN", tmp_path)

    lab = Lab(server.dsn())
    async with open_systems(lab) as found:
        assert set(found.systems) == set(_ALWAYS)
        assert set(found.absent) == set(available.ORDER) - set(_ALWAYS)
        assert "make peers" in found.absent["pgqueuer"]
        assert "apt-get install postgresql-15-pgq3" in found.absent["pgq"]
    await lab.close()


async def test_a_server_that_does_not_start_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason has the last words of its log, and its folder goes."""
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho no room here\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(servers, "_program", lambda name, remedy: str(broken))
    monkeypatch.setattr(servers, "_folder", lambda name: _made(tmp_path / name))
    monkeypatch.setattr(servers, "_PATIENCE", 1.0)

    with pytest.raises(Absent, match="no room here"):
        async with servers.redis():
            pass

    assert not (tmp_path / "redis").exists()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def test_a_server_ends_when_its_starter_is_killed() -> None:
    """And its folder is removed, though nobody was left to say so."""
    try:
        servers._program("redis-server", "")
    except Absent as absent:
        pytest.skip(str(absent))
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _HOLD_A_SERVER), stdout=subprocess.PIPE, start_new_session=True
    )
    assert holder.stdout is not None
    assert await asyncio.wait_for(holder.stdout.readline(), 30)
    (guard,) = psutil.Process(holder.pid).children()
    (redis,) = guard.children()
    folder = Path(redis.cwd())
    assert folder.exists()

    holder.send_signal(signal.SIGKILL)
    await holder.wait()

    async def all_gone() -> None:
        assert not redis.is_running()
        assert not guard.is_running()
        assert not folder.exists()

    await eventually(all_gone)


def test_a_gathering_passes_on_errors_that_are_not_absence() -> None:
    """A bug is not a missing package."""
    with ThreadPoolExecutor() as helpers:
        found = Available(helpers)

        with pytest.raises(ValueError, match="a bug"), found.unless_absent("pgq"):
            raise ValueError("a bug")
        assert not found.absent
