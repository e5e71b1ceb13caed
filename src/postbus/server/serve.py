"""Running the server: listening, serving, maintenance, and ending."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from postbus._maintenance.maintenance_loop import MaintenanceLoop
from postbus.bus import Bus
from postbus.server.app import make_app, new_context
from postbus.server.connections import Connection, ConnectionSlots
from postbus.server.listen import BACKLOG, listen, make_room_for, remove_socket
from postbus.server.settings import ServerSettings
from postbus.server.webhook_runner import WebhookRunner

_HANDSHAKE = 10.0  # seconds that TLS may take to begin, …
_GOODBYE = 5.0  # … and to end
_KEEP_ALIVE = 75  # seconds that an idle connection stays open: longer than proxies keep theirs
_GRACE = 5  # seconds that requests may take to finish when the server ends


_HEADERS = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    # Pages have one stylesheet of their own, and nothing else: no scripts, no images, no forms.
    (
        "content-security-policy",
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]
_HSTS = ("strict-transport-security", "max-age=31536000")


class _Uvicorn(uvicorn.Server):
    """Leaves signals to its caller, gives each connection a slot, and limits the time that TLS may take."""

    def __init__(self, config: uvicorn.Config, slots: ConnectionSlots) -> None:
        super().__init__(config)
        self._slots = slots

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop, config = asyncio.get_running_loop(), self.config
        patience = {"ssl_handshake_timeout": _HANDSHAKE, "ssl_shutdown_timeout": _GOODBYE} if config.ssl else {}

        def new_protocol() -> asyncio.Protocol:
            return Connection(config, self.server_state, self._slots)

        self.servers = []
        for one in sockets or ():
            opening: Any = loop.create_unix_server if one.family == socket.AF_UNIX else loop.create_server
            self.servers.append(await opening(new_protocol, sock=one, ssl=config.ssl, backlog=BACKLOG, **patience))
        self.started = True


class HttpServer:
    """Serves a bus over HTTP. It listens once it is made, and serves while `run` runs."""

    def __init__(self, bus: Bus, settings: ServerSettings) -> None:
        self._bus = bus
        self._settings = settings
        self._context = new_context(bus, settings)
        self._app, _ = make_app(self._context)
        self._webhooks = WebhookRunner(bus.dsn, bus.connect, settings.reach)
        self._context.webhooks_changed = self._webhooks.changed
        self._server: _Uvicorn | None = None
        self._slots = ConnectionSlots(settings.connections)
        self._socket = listen(settings)
        make_room_for(settings.connections)

    @property
    def url(self) -> str:
        """The address of the server: a URL, or unix: and the path of a socket."""
        if self._settings.unix_socket is not None:
            return f"unix:{self._settings.unix_socket.path}"
        host, port = self._socket.getsockname()[:2]
        scheme = "https" if self._settings.tls_cert else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Running requests are answered first; polls end without messages."""
        self._server = server = _Uvicorn(
            uvicorn.Config(
                self._app,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # uvicorn would trust any proxy on this machine: see RequestFilter
                headers=[*_HEADERS, *([_HSTS] if self._settings.tls_cert else [])],
                timeout_graceful_shutdown=_GRACE,
                timeout_keep_alive=_KEEP_ALIVE,
                ssl_certfile=self._settings.tls_cert,
                ssl_keyfile=self._settings.tls_key,
            ),
            self._slots,
        )
        serving = asyncio.create_task(server.serve(sockets=[self._socket]), name="postbus-http")
        ending = asyncio.create_task(stop.wait(), name="postbus-http-stop")
        webhooks = self._webhooks.run(self._context.stopping)
        # There may be no other process that returns expired leases and sweeps.
        sweeping = MaintenanceLoop(await self._bus.connect(), "serve")
        context, uses = self._context, self._context.authenticator.uses
        watching = (self._slots.watch(stop), context.token_watch.run(stop))
        loops = (webhooks, uses.run(stop), *watching, *sweeping.loops(stop))
        beside = [asyncio.create_task(one, name="postbus-http-upkeep") for one in loops]
        try:
            done, _ = await asyncio.wait([serving, ending, *beside], return_when=asyncio.FIRST_COMPLETED)
        finally:
            context.stopping.set()
            context.polls.end()
            server.should_exit = True
            for task in (ending, *beside):
                task.cancel()
            await asyncio.gather(serving, ending, *beside, return_exceptions=True)
            await sweeping.end()
            await uses.end()
            await context.authenticator.close()
            self._socket.close()
            remove_socket(self._settings)
        for task in done - {ending}:
            task.result()

    def abort(self) -> None:
        """End without waiting for running requests."""
        if self._server is not None:
            self._server.force_exit = True
