"""Running the server: it listens, serves, does the upkeep, and ends when it is told to."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from postbus._upkeep import Sweeping
from postbus.bus import Bus
from postbus.errors import InvalidOption
from postbus.server.app import make_app, new_desk
from postbus.server.settings import Settings
from postbus.server.webhooks import WebhookRunner

_BACKLOG = 2048
_KEEP_ALIVE = 75  # seconds that an idle connection stays open: longer than proxies keep theirs
_GRACE = 5  # seconds that requests may take to finish when the server ends


class _Uvicorn(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves a bus by HTTP. Listens from the moment it is made, and serves while it runs."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self._bus = bus
        self._settings = settings
        self._desk = new_desk(bus, settings)
        self._app, _ = make_app(self._desk)
        self._webhooks = WebhookRunner(bus.dsn, bus.connect, settings.reach)
        self._desk.webhooks_changed = self._webhooks.changed
        self._server: _Uvicorn | None = None
        self._socket = _listen(settings)

    @property
    def url(self) -> str:
        """Where it can be reached."""
        host, port = self._socket.getsockname()[:2]
        scheme = "https" if self._settings.tls_cert else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. What is asked then is answered first; who waits gets nothing."""
        self._server = server = _Uvicorn(
            uvicorn.Config(
                self._app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_graceful_shutdown=_GRACE,
                timeout_keep_alive=_KEEP_ALIVE,
                ssl_certfile=self._settings.tls_cert,
                ssl_keyfile=self._settings.tls_key,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[self._socket]), name="postbus-http")
        ending = asyncio.create_task(stop.wait(), name="postbus-http-stop")
        webhooks = self._webhooks.run(self._desk.stopping)
        # There may be no other process that looks after leases that end, and after what is no longer needed.
        sweeping = Sweeping(await self._bus.connect(), "serve")
        uses = self._desk.authenticator.uses
        loops = (webhooks, uses.run(stop), *sweeping.loops(stop))
        beside = [asyncio.create_task(one, name="postbus-http-upkeep") for one in loops]
        try:
            done, _ = await asyncio.wait([serving, ending, *beside], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._desk.stopping.set()
            self._desk.polls.end()
            server.should_exit = True
            for task in (ending, *beside):
                task.cancel()
            await asyncio.gather(serving, ending, *beside, return_exceptions=True)
            await sweeping.end()
            await uses.end()
            self._socket.close()
        for task in done - {ending}:
            task.result()

    def abort(self) -> None:
        """Do not wait for requests that go on when it ends."""
        if self._server is not None:
            self._server.force_exit = True


def _listen(settings: Settings) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        raise InvalidOption(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror or error}",
            remedy="another process has it: name another one with --port" if in_use else "see --host and --port",
        ) from error
    except OverflowError as error:
        raise InvalidOption(f"port {settings.port} is out of range", remedy="ports go up to 65535") from error
