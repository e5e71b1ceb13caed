"""The folder of an embedded server: what is where in it, who uses it, and whether its server answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .folders import read_text
from .locks import EXCLUSIVE, SHARED, FileLock


@dataclass(frozen=True)
class Home:
    """The folder that belongs to one embedded server, and what is where in it."""

    path: Path

    @property
    def marker(self) -> Path:
        """Says that the folder is ours."""
        return self.path / "postbus.json"

    @property
    def pgdata(self) -> Path:
        return self.path / "pgdata"

    @property
    def log(self) -> Path:
        return self.path / "postbus-server.log"

    @property
    def state(self) -> Path:
        """Written by the supervisor when its server is ready; without a living supervisor it means nothing."""
        return self.path / "server.json"

    def lock(self, name: str) -> Path:
        return self.path / f"{name}.lock"


@dataclass(frozen=True)
class ServerState:
    """A server that has become ready."""

    pid: int
    supervisor: int
    version: int
    socket_dir: str
    settings: Mapping[str, str]


def postmaster_status(home: Home) -> tuple[int, str]:
    """The pid and the status ("starting", "ready", "stopping") that PostgreSQL writes down."""
    try:
        lines = read_text(home.pgdata / "postmaster.pid").splitlines()
        return int(lines[0]), lines[7].strip()
    except (FileNotFoundError, IndexError, ValueError):
        return 0, ""


def has_users(home: Home) -> bool:
    """Whether anybody shares the users' lock; not so while the supervisor has it for itself."""
    turn, users = FileLock(home.lock("closing")), FileLock(home.lock("users"))
    # One at a time: two users that leave together would each take the other's look for a user.
    turn.wait(EXCLUSIVE)
    try:
        return not users.try_acquire(EXCLUSIVE) and users.try_acquire(SHARED)
    finally:
        users.release()
        turn.release()


def read_state(home: Home) -> ServerState | None:
    try:
        return ServerState(**json.loads(read_text(home.state)))
    except FileNotFoundError:
        return None


def answers(home: Home, state: ServerState) -> bool:
    """Whether it takes connections: a server that was killed leaves its files behind as they were."""
    if postmaster_status(home) != (state.pid, "ready"):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(f"{state.socket_dir}/.s.PGSQL.5432")
        except OSError:
            return False
    return True
