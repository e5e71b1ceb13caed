"""pgbouncer before a server: clients share the server's connections, transaction by transaction."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Literal

from bench.ports import free_port
from faults.servers import NotInstalled
from faults.servers.installation import Installation
from faults.servers.postgres import DATABASE, ServerFailed, end_of
from faults.servers.waiting import until

_PROGRAMS = "/usr/sbin:/usr/bin:/usr/local/bin:/usr/local/sbin"
_TIMEOUT = 10.0

PoolMode = Literal["transaction", "session"]


class PgBouncer:
    """One pgbouncer. It may have few connections to the server, so that clients really share them."""

    def __init__(
        self,
        installation: Installation,
        folder: Path,
        *,
        host: str,
        server_port: int,
        mode: PoolMode = "transaction",
        pool_size: int = 4,
        users: tuple[str, ...] = ("postgres", "app"),
    ) -> None:
        """`host` is an address, or the folder of a socket; `folder` belongs to the account that it runs as."""
        program = shutil.which("pgbouncer", path=_PROGRAMS)
        if program is None:
            raise NotInstalled("pgbouncer is not installed: apt-get install pgbouncer")
        self._program = program
        self._installation = installation
        self.log = folder / "pgbouncer.log"
        self.port = free_port()
        self._config = folder / "pgbouncer.ini"
        known = folder / "users.txt"
        known.write_text("".join(f'"{user}" ""\n' for user in users))
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(known),
            "pool_mode": mode,
            "default_pool_size": str(pool_size),
            "max_client_conn": "1000",
            "server_login_retry": "1",
        }
        lines = ["[databases]", f"* = host={host} port={server_port}", "[pgbouncer]"]
        self._config.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in settings.items()), ""]))
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str = DATABASE, *, user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    async def start(self) -> None:
        """Start, and return when it takes connections."""
        self._process = self._installation.spawn(self._program, str(self._config), log=self.log)
        await until(self._answers, "the start of pgbouncer", within=_TIMEOUT)

    async def stop(self) -> None:
        """End it at once, with all connections."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            await until(lambda: process.poll() is not None, "the end of pgbouncer", within=_TIMEOUT)

    def _answers(self) -> bool:
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise ServerFailed(f"pgbouncer ended with status {code}:\n{end_of(self.log)}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
