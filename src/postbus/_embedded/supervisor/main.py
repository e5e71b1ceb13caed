"""The supervisor: makes the cluster if there is none, runs the server, and ends it with its last user."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .folders import close_to_others, make_folder, remove, unlink
from .home import Home, ServerState, postmaster_status
from .locks import EXCLUSIVE, POLL, FileLock, open_ours, sync_folder
from .programs import Account, clean_environment, spawn

STOP_TIMEOUT = 20.0  # a fast shutdown that takes longer becomes an immediate one
PREDECESSOR_TIMEOUT = 30.0  # the time that processes of a killed server have to end

LOCAL_BUS_SETTINGS = {
    "fsync": "on",
    "listen_addresses": "",
    "port": "5432",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class SupervisorError(Exception):
    """Why the supervisor gives up. The starter reads it in the log."""


@dataclass(frozen=True)
class LaunchPlan:
    """The request of a starter to the supervisor."""

    home: str
    bin_dir: str
    version: int
    socket_dir: str
    account: Account | None
    guarded: bool
    """Whether root, and the group of the account, are all who may enter the home folder."""
    settings: Mapping[str, str]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LaunchPlan:
        fields = json.loads(text)
        account = fields.pop("account")
        return cls(account=Account(**account) if account else None, **fields)


class Supervisor:
    """Makes the cluster if there is none, runs the server, and stops it when nobody uses it."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._home = Home(Path(plan.home))
        self._server_lock = FileLock(self._home.lock("server"))
        self._ended = threading.Event()

    def run(self) -> None:
        self._wait_for_predecessor()
        if self._plan.account and self._plan.guarded:
            close_to_others(self._home.path, self._plan.account.gid)
        if not self._home.pgdata.exists():
            self._make_cluster()
        server = self._start_server()
        threading.Thread(target=self._stop_when_unused, args=(server,), daemon=True).start()
        if self._becomes_ready(server):
            self._publish_state(server.pid)
        code = server.wait()
        self._ended.set()
        self._tidy()
        if code != 0:
            raise SupervisorError(f"PostgreSQL ended with status {code}")

    def _wait_for_predecessor(self) -> None:
        if not self._server_lock.acquire(EXCLUSIVE, time.monotonic() + PREDECESSOR_TIMEOUT):
            pid, _ = postmaster_status(self._home)
            raise SupervisorError(f"processes of an earlier server (pid {pid}) are still alive: end them")
        # Nothing of the earlier server is alive, so a pid file is left from a crash. PostgreSQL would
        # take it for valid if the pid belongs to another process by now.
        if self._home.pgdata.exists():
            unlink(self._home.pgdata / "postmaster.pid")

    def _make_cluster(self) -> None:
        """Build the cluster under another name and rename it, so that it is always complete."""
        draft = self._home.path / "pgdata.draft"
        remove(draft)
        account = self._plan.account
        make_folder(draft, 0o700, owner=(account.uid, account.gid) if account else None)
        initdb = self._spawn("initdb", *self._initdb_options(draft), death_signal=signal.SIGKILL)
        if code := initdb.wait():
            remove(draft)
            raise SupervisorError(f"initdb ended with status {code}")
        draft.rename(self._home.pgdata)
        sync_folder(self._home.path)

    def _initdb_options(self, folder: Path) -> list[str]:
        options = ["-D", str(folder), "-U", "postgres", "--encoding=UTF8", "--locale=C"]
        if self._plan.version >= 17:
            options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        # Only the server's account and root can reach the socket, see _make_private in server.py. Where others use
        # that account, the group of the folders keeps them out, and the server asks who connects.
        return [*options, "--auth-local=trust", "--auth-host=reject"]

    def _start_server(self) -> subprocess.Popen[bytes]:
        settings = {**LOCAL_BUS_SETTINGS, **self._who_may_connect(), **self._plan.settings}
        quoted = self._plan.socket_dir.replace('"', '""')
        settings["unix_socket_directories"] = f'"{quoted}"'
        if "default_toast_compression" not in settings and self._has_lz4():
            settings["default_toast_compression"] = "lz4"
        # An immediate shutdown, since nobody would be left to end one that hangs.
        return self._spawn("postgres", *self._server_options(settings), death_signal=signal.SIGQUIT)

    def _who_may_connect(self) -> dict[str, str]:
        """Settings that let only root connect, as any role: the kernel tells the server who connects.

        PostgreSQL 15 cannot express 'any role'.
        """
        account = self._plan.account
        if account is None or not self._plan.guarded or self._plan.version < 16:
            return {}
        rules = {
            "hba_file": "local all all peer map=only_root\nlocal replication all peer map=only_root\n",
            "ident_file": f"only_root {pwd.getpwuid(0).pw_name} all\n",
        }
        for name, text in rules.items():
            self._write(self._home.path / f"{name}.conf", text, group=account.gid)
        return {name: str(self._home.path / f"{name}.conf") for name in rules}

    def _server_options(self, settings: Mapping[str, str]) -> list[str]:
        chosen = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return ["-D", str(self._home.pgdata), *chosen]

    def _has_lz4(self) -> bool:
        """PostgreSQL refuses a value that its build does not support."""
        options = self._server_options({"default_toast_compression": "lz4"})
        asked = self._spawn(
            "postgres", *options, "-C", "default_toast_compression", death_signal=signal.SIGKILL, quiet=True
        )
        return asked.wait() == 0

    def _spawn(self, program: str, *options: str, death_signal: int, quiet: bool = False) -> subprocess.Popen[bytes]:
        return spawn(
            [str(Path(self._plan.bin_dir) / program), *options],
            account=self._plan.account,
            death_signal=death_signal,
            env=clean_environment(),
            output=subprocess.DEVNULL if quiet else None,
            pass_fds=[self._server_lock.fd],
        )

    def _stop_when_unused(self, server: subprocess.Popen[bytes]) -> None:
        users = FileLock(self._home.lock("users"))
        users.wait(EXCLUSIVE)
        # Never released: a user that comes now waits until this process has ended, then starts another.
        server.send_signal(signal.SIGINT)
        if not self._ended.wait(STOP_TIMEOUT):
            server.send_signal(signal.SIGQUIT)

    def _becomes_ready(self, server: subprocess.Popen[bytes]) -> bool:
        """Without a time limit: how long crash recovery may take is for the users to decide."""
        while server.poll() is None:
            if postmaster_status(self._home) == (server.pid, "ready"):
                return True
            time.sleep(POLL)
        return False

    def _publish_state(self, pid: int) -> None:
        plan = self._plan
        state = ServerState(pid, os.getpid(), plan.version, plan.socket_dir, plan.settings)
        self._write(self._home.state, json.dumps(asdict(state)))

    def _write(self, path: Path, text: str, *, group: int | None = None) -> None:
        """Write a file of ours, which this group may read. It is there as a whole, or not at all."""
        draft = path.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        with os.fdopen(open_ours(draft, os.O_WRONLY), "w") as file:
            if group is not None:
                os.fchown(file.fileno(), 0, group)
                os.fchmod(file.fileno(), 0o640)
            file.write(text)
        draft.rename(path)

    def _tidy(self) -> None:
        self._home.state.unlink(missing_ok=True)
        if Path(self._plan.socket_dir).parent != self._home.path:
            with contextlib.suppress(OSError):
                Path(self._plan.socket_dir).rmdir()


def main() -> None:
    plan = LaunchPlan.from_json(sys.stdin.read())
    # Before the fork: when the starter sees its child end, a free lock means that the supervisor has ended.
    # Not at the first try only, since others look at this lock by holding it for a moment.
    lock = FileLock(Home(Path(plan.home)).lock("supervisor"))
    if not lock.acquire(EXCLUSIVE, time.monotonic() + 5):
        sys.exit("another supervisor is alive")
    if os.fork():
        os._exit(0)
    os.chdir("/")
    # Users that a supervisor ends together with us finish their work first. A handler, since "ignore"
    # would be inherited by PostgreSQL.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        Supervisor(plan).run()
    except (SupervisorError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"supervisor: {error}")
