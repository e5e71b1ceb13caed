"""A PostgreSQL that can be stopped, killed and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import asyncpg
import psutil

from bench.ports import free_port
from faults.servers.installation import Installation
from faults.servers.waiting import TookTooLong, until
from postbus._db.error_map import DRIVER_ERRORS
from postbus._embedded import server as embedded
from postbus._embedded.supervisor.home import Home, postmaster_status
from postbus._embedded.supervisor.locks import EXCLUSIVE, FileLock, is_held

DATABASE = "postbus"
SETTINGS_FILE = "settings.conf"
"""Beside the data; postgresql.conf includes it."""
Mode = Literal["fast", "immediate"]

_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "wal_level": "replica",
    "max_connections": "200",  # a mix has up to eight workers at a time
    "max_wal_senders": "5",
    "hot_standby": "on",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "checkpoint_timeout": "1min",
    "jit": "off",
    "dynamic_shared_memory_type": "mmap",  # in the folder, so that a killed server leaves nothing elsewhere
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
}
_STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 30.0
_ORPHANS_TIMEOUT = 3.0  # the time that processes of a killed server have to end by themselves
_CRASHED = b"reinitializing"  # in the log, when all processes have ended and recovery begins


class Server:
    """One server with its folder. Nothing runs before `start`, and nothing after the run, even if that is killed."""

    def __init__(
        self,
        installation: Installation,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`folder` has the data in `pgdata`. `settings` are PostgreSQL's, `env` is what else its processes get."""
        self.home = Home(folder)
        self.port = free_port()
        self.settings = {**_SETTINGS, **(settings or {})}
        """Those of the next start; some can change before, by reload()."""
        self.installation = installation
        self._env = dict(env or {})
        self._socket_dir = embedded._socket_dir(self.home, installation.account)
        embedded._make_private(self._socket_dir, self.home, installation.account, guarded=False)
        self._process: subprocess.Popen[bytes] | None = None
        self.at_removal: list[Callable[[], None]] = []

    @property
    def log(self) -> Path:
        return self.home.log

    def dsn(self, database: str = DATABASE, *, user: str = "postgres") -> str:
        """The address on TCP, where the network can be hurt."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    def socket_dsn(self, database: str = DATABASE, *, user: str = "postgres") -> str:
        return f"postgresql://{user}@/{database}?host={self._socket_dir}&port={self.port}"

    async def start(self) -> None:
        """Start, and return when it takes connections; after a crash, when it has recovered."""
        if self._process is not None and self._process.poll() is None:
            return
        await until(lambda: not self._is_alive(), "the end of the former server's processes", within=_STOP_TIMEOUT)
        # None of them is alive, so the pid in it may belong to any process by now.
        (self.home.pgdata / "postmaster.pid").unlink(missing_ok=True)
        self._write_settings()
        lock = FileLock(self._lock)
        lock.acquire(EXCLUSIVE, 0)
        self._process = self.installation.spawn(
            "postgres",
            *self._options(),
            log=self.log,
            env=self._env,
            death_signal=signal.SIGQUIT,
            pass_fds=[lock.fd],  # every process of the server has it
        )
        lock.leave()
        await until(self._is_started, f"the start of {self.home.path}", within=_START_TIMEOUT)

    async def stop(self, mode: Mode = "fast") -> None:
        """Shut down: `fast` with a checkpoint, `immediate` as in a crash."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(_STOP_SIGNALS[mode])
            await self._has_ended()

    async def restart(self, mode: Mode = "fast") -> None:
        await self.stop(mode)
        await self.start()

    def reload(self) -> None:
        """Let the server read `settings` again, which takes it a moment."""
        assert self._process is not None
        self._write_settings()
        self._process.send_signal(signal.SIGHUP)

    async def kill(self) -> None:
        """End the postmaster by SIGKILL. Its children end by themselves, or are killed too; returns when all have."""
        if self._process is None or self._process.poll() is not None:
            return
        postmaster = psutil.Process(self._process.pid)
        postmaster.suspend()  # so that no child is born while we look
        children = postmaster.children(recursive=True)
        postmaster.kill()
        self._process.wait()
        try:
            await until(lambda: not self._is_alive(), "the end of orphans", within=_ORPHANS_TIMEOUT)
        except TookTooLong:
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        await self._has_ended()
        # They let go of files a moment before they have ended.
        await until(lambda: all(has_ended(child.pid) for child in children), "the end of orphans", within=_STOP_TIMEOUT)

    async def kill_backend(self, pid: int) -> None:
        """End a backend by SIGKILL. The server then ends all others, and recovers. Returns when it does so."""
        seen = self.log.stat().st_size
        os.kill(pid, signal.SIGKILL)
        await until(lambda: self._logged(_CRASHED, seen), "the crash of the server", within=_STOP_TIMEOUT)

    async def terminate_backend(self, pid: int) -> bool:
        """End a backend politely, by pg_terminate_backend. False if there is none."""
        return bool(await self.ask("select pg_terminate_backend($1)", pid))

    async def backends(self, application: str = "%", *, database: str = DATABASE) -> list[int]:
        """The pids of clients' backends, by a LIKE pattern of their application_name."""
        asked = (
            "select array_agg(pid) from pg_stat_activity where backend_type = 'client backend' "
            "and pid <> pg_backend_pid() and datname = $1 and application_name like $2"
        )
        return list(await self.ask(asked, database, application) or [])

    async def promote(self) -> None:
        """Make a primary of a standby."""
        if not await self.ask("select pg_promote(true, 60)"):
            raise ServerFailed(f"it was not promoted:\n{end_of(self.log)}")

    async def ask(self, sql: str, *args: Any, database: str = "postgres") -> Any:
        """One value, on a connection of its own, by the socket."""
        conn: Any = await asyncpg.connect(self.socket_dsn(database), timeout=10)
        try:
            return await conn.fetchval(sql, *args, timeout=30)
        finally:
            conn.terminate()

    async def is_up(self) -> bool:
        """Whether it answers."""
        try:
            conn: Any = await asyncpg.connect(self.socket_dsn("postgres"), timeout=2)
        except asyncpg.TooManyConnectionsError:
            return True
        except DRIVER_ERRORS:
            return False
        try:
            return bool(await conn.fetchval("select true", timeout=2))
        except DRIVER_ERRORS:
            return False
        finally:
            conn.terminate()

    async def until_up(self, *, within: float = _START_TIMEOUT) -> None:
        await until(self.is_up, f"an answer of the server in {self.home.path}", within=within)

    async def until_down(self, *, within: float = _START_TIMEOUT) -> None:
        """Wait until the server has ended by itself, as when it cannot recover."""
        process = self._process
        assert process is not None
        await until(lambda: process.poll() is not None, f"the end of the server in {self.home.path}", within=within)
        await self._has_ended()

    async def remove(self) -> None:
        """End it at once, and remove its folder."""
        await self.stop("immediate")
        while self.at_removal:
            self.at_removal.pop()()
        self._remove_shared_memory()
        shutil.rmtree(self.home.path, ignore_errors=True)
        shutil.rmtree(self._socket_dir, ignore_errors=True)

    def _remove_shared_memory(self) -> None:
        """A server that was killed leaves a segment behind, and its name in the pid file."""
        with contextlib.suppress(FileNotFoundError, IndexError):
            _, segment = (self.home.pgdata / "postmaster.pid").read_text().splitlines()[6].split()
            subprocess.run(["ipcrm", "-m", segment], check=False, capture_output=True)

    @property
    def _lock(self) -> Path:
        return self.home.lock("server")

    def _is_alive(self) -> bool:
        """Whether any process of the server is."""
        return is_held(self._lock)

    def _write_settings(self) -> None:
        quoted = {name: value.replace("'", "''") for name, value in self.settings.items()}
        (self.home.path / SETTINGS_FILE).write_text("".join(f"{name} = '{value}'\n" for name, value in quoted.items()))

    def _options(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._socket_dir),
            "unix_socket_permissions": "0700",
        }
        chosen = [part for option in settings.items() for part in ("-c", "=".join(option))]
        return ["-D", str(self.home.pgdata), *chosen]

    async def _is_started(self) -> bool:
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise ServerFailed(f"PostgreSQL ended with status {code}:\n{end_of(self.log)}")
        return postmaster_status(self.home) == (self._process.pid, "ready") and await self.is_up()

    async def _has_ended(self) -> None:
        process = self._process
        assert process is not None
        await until(lambda: process.poll() is not None, "the end of the server", within=_STOP_TIMEOUT)
        await until(lambda: not self._is_alive(), "the end of the server's processes", within=_STOP_TIMEOUT)
        self._process = None

    def _logged(self, text: bytes, seen: int) -> bool:
        with self.log.open("rb") as log:
            log.seek(seen)
            return text in log.read()


def dsn_of_all(ports: Iterable[int], database: str = DATABASE, *, user: str = "postgres") -> str:
    """The address of whichever is the primary of servers, or of proxies before them, on these ports."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"postgresql://{user}@{hosts}/{database}?sslmode=disable&target_session_attrs=read-write"


class ServerFailed(Exception):
    """A server did not start. The text has the end of its log."""


def end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def has_ended(pid: int) -> bool:
    """Whether a process has, also if nobody has asked yet how it ended."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
