"""All servers of a run: a folder, a template in it, and servers that are copies of it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import asyncpg

from faults.servers.clock import Clock
from faults.servers.disk import Disk
from faults.servers.installation import Installation
from faults.servers.pgbouncer import PgBouncer, PoolMode
from faults.servers.postgres import DATABASE, SETTINGS_FILE, Server, ServerFailed, end_of
from faults.servers.waiting import until
from postbus._db import migrator
from postbus._embedded.supervisor.locks import EXCLUSIVE, FileLock, is_held

_PREFIX = "postbus-faults-"
_LOCK = "run.lock"
_WAITED_FOR = "synchronous_standby_names"
_LITTLE_WAL = {"min_wal_size": "32MB", "max_wal_size": "48MB"}
_ROLES = ("producer", "consumer", "observer", "operator", "admin")

USER = "app"
"""A user that may do what Postbus offers. It is no superuser, so connections that are reserved are not for it."""


class Servers:
    """Makes servers, and removes them at the end.

    async with Servers() as servers:
        server = await servers.new()
        await server.start()
    """

    def __init__(self, *, version: int | None = None) -> None:
        """`version` is PostgreSQL's; default: the environment's PG, or 18."""
        _remove_left_behind()
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.folder.chmod(0o755)
        self._life = _lock_folder(self.folder)
        self.installation = Installation.find(self.folder, version)
        self._servers: list[Server] = []
        self._bouncers: list[PgBouncer] = []
        self._template: Path | None = None
        self._making = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def new(self, *, settings: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None) -> Server:
        """A server that is not started yet, with the schema in database `postbus`."""
        template = await self.template()
        server = Server(self.installation, self.new_folder(), settings=settings, env=env)
        self._servers.append(server)
        await copy(template, server.home.pgdata)
        return server

    def bouncer_of(self, server: Server, *, mode: PoolMode = "transaction", pool_size: int = 4) -> PgBouncer:
        """A pgbouncer before a server, not started. Raises Absent where there is none."""
        made = PgBouncer(
            self.installation,
            self.new_folder(),
            host="127.0.0.1",
            server_port=server.port,
            mode=mode,
            pool_size=pool_size,
            users=("postgres", USER),
        )
        self._bouncers.append(made)
        return made

    async def with_clock(self, *, settings: Mapping[str, str] | None = None) -> tuple[Server, Clock]:
        """A server, and its clock, which can be set. Raises Absent where that cannot be."""
        clock = Clock(self.new_folder())
        return await self.new(settings=settings, env=clock.env), clock

    async def with_disk(
        self, part: str, *, megabytes: int, settings: Mapping[str, str] | None = None
    ) -> tuple[Server, Disk]:
        """A server, and a disk for a part of its data, TABLES or WAL. Raises Absent where that cannot be."""
        server = await self.new(settings={**_LITTLE_WAL, **(settings or {})})
        disk = Disk(server.home.pgdata / part, megabytes=megabytes, installation=self.installation)
        server.at_removal.append(disk.remove)
        return server, disk

    async def standby_of(self, primary: Server, *, dsn: str | None = None) -> Server:
        """A started standby. The primary's commits wait for it from now on, also while it is down.

        dsn: how it reaches the primary, if not directly.
        """
        standby = Server(self.installation, self.new_folder(), settings=primary.settings)
        self._servers.append(standby)
        name = f"standby_{standby.port}"
        options = ["-D", str(standby.home.pgdata), "-d", primary.socket_dsn("postgres"), "-C", "-S", name]
        await self._run("pg_basebackup", *options, "-c", "fast", "--no-sync", log=standby.log)
        (standby.home.pgdata / "standby.signal").touch()
        standby.settings.pop(_WAITED_FOR, None)
        standby.settings["primary_conninfo"] = f"{dsn or primary.dsn('postgres')}&application_name={name}"
        standby.settings["primary_slot_name"] = name
        await standby.start()
        primary.settings[_WAITED_FOR] = name
        primary.reload()
        in_sync = "select exists (select from pg_stat_replication where application_name = $1 and sync_state = 'sync')"

        async def is_in_sync() -> bool:
            return bool(await primary.ask(in_sync, name))

        await until(is_in_sync, "synchronous replication", within=30)
        return standby

    async def close(self) -> None:
        await asyncio.gather(*(bouncer.stop() for bouncer in self._bouncers))
        await asyncio.gather(*(server.remove() for server in self._servers))
        shutil.rmtree(self.folder, ignore_errors=True)
        self._life.release()

    def new_folder(self) -> Path:
        """An empty folder that belongs to the servers' account."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        folder.chmod(0o711)
        self.installation.own(folder)
        return folder

    async def template(self) -> Path:
        """The data folder that servers are copied from; made when it is asked for first."""
        async with self._making:
            if self._template is None:
                self._template = await self._make_template()
        return self._template

    async def _make_template(self) -> Path:
        server = Server(self.installation, self.new_folder(), settings={"fsync": "off"})
        self._servers.append(server)
        await self._run("initdb", *self._initdb_options(server.home.pgdata), log=server.log)
        with (server.home.pgdata / "postgresql.conf").open("a") as conf:
            conf.write(f"include '../{SETTINGS_FILE}'\n")
        await server.start()
        await server.ask(f"create database {DATABASE}")
        conn: Any = await asyncpg.connect(server.socket_dsn())
        await migrator.migrate(conn)
        await conn.execute(f"create role {USER} login")
        await grant_roles(conn, DATABASE)
        await conn.close()
        await server.stop()
        return server.home.pgdata

    async def _run(self, program: str, *options: str, log: Path) -> None:
        running = self.installation.spawn(program, *options, log=log)
        await until(lambda: running.poll() is not None, program, within=60)
        if running.returncode:
            raise ServerFailed(f"{program} failed:\n{end_of(log)}")

    def _initdb_options(self, folder: Path) -> list[str]:
        options = ["-D", str(folder), "-U", "postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
        return [*options, "--auth=trust"]


async def copy(data: Path, target: Path) -> None:
    """Copy a data folder, with owners and permissions."""
    done = await asyncio.create_subprocess_exec("cp", "-a", str(data), str(target))
    if await done.wait():
        raise ServerFailed(f"{data} cannot be copied to {target}")


def _lock_folder(folder: Path) -> FileLock:
    """A lock that the kernel releases when this process ends, in whatever way."""
    draft = folder / f"{_LOCK}.draft"
    lock = FileLock(draft)
    lock.acquire(EXCLUSIVE, 0)
    draft.rename(folder / _LOCK)  # from here on it is held
    return lock


def _remove_left_behind() -> None:
    """Remove the folders of runs that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            locks = [folder / _LOCK, *folder.glob("*/server.lock")]
            if (folder / _LOCK).exists() and not any(is_held(lock) for lock in locks):
                _unmount_below(folder)
                shutil.rmtree(folder, ignore_errors=True)


def _unmount_below(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in mounts:
        if mount.startswith(f"{folder}/"):
            subprocess.run(["umount", mount], check=False)


async def grant_roles(conn: Any, database: str) -> None:
    """Let the user of clients do everything in a database."""
    roles = ", ".join(f"postbus_{role}_{database}" for role in _ROLES)
    await conn.execute(f"grant {roles} to {USER}")
