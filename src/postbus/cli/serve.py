"""postbus serve"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from postbus._runtime.event_loop import run
from postbus.bus import Bus
from postbus.cli._command import Cli
from postbus.cli._exits import INTERRUPTED, OK, CommandError, usage_error
from postbus.cli._logging import LogFormat, configure_logging
from postbus.cli._render import write_json
from postbus.cli._say import say
from postbus.cli._signals import StopSignals, stops_by_signal
from postbus.errors import InvalidOption, PostbusError

if TYPE_CHECKING:
    from postbus.server.serve import HttpServer
    from postbus.server.settings import ServerSettings, UnixSocket

WebhookAllow = Annotated[
    list[str] | None,
    typer.Option(help="Let webhooks reach this private address, network (10.1.0.0/16) or host; may be repeated."),
]
_LIMITS = "Limits, for each token"
_JWT = "JWT"
_STRANGERS = "Limits before authentication"
_HOST, _PORT = "127.0.0.1", 8472
_PATIENCE = 2.0  # seconds to end after the second signal


def serve(
    cli: Cli,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = _HOST,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any free one.")] = _PORT,
    auth: Annotated[bool, typer.Option("--auth", help="Require tokens: see postbus tokens.")] = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Allow web pages of this origin to call: https://app.example.org, or *; may be repeated."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Serve https: the certificate, as PEM …")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="… and its key.")] = None,
    webhook_allow: WebhookAllow = None,
    unix_socket: Annotated[
        Path | None,
        typer.Option(help="Listen on a Unix socket instead of a port.", show_default=False),
    ] = None,
    unix_socket_mode: Annotated[
        str, typer.Option(metavar="MODE", help="The permissions of the socket: 660 admits its group.")
    ] = "600",
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Trust X-Forwarded-For from this proxy or network; may be repeated.",
            show_default=False,
        ),
    ] = None,
    max_connections: Annotated[
        int, typer.Option(help="The most connections of authenticated callers.", rich_help_panel=_STRANGERS)
    ] = 4000,
    header_timeout: Annotated[
        float, typer.Option(help="Seconds for a request's headers to arrive.", rich_help_panel=_STRANGERS)
    ] = 10.0,
    body_timeout: Annotated[
        float,
        typer.Option(help="Seconds for its body; one more for each 16 KiB.", rich_help_panel=_STRANGERS),
    ] = 30.0,
    max_body: Annotated[int, typer.Option(help="The most bytes of a request.", rich_help_panel=_LIMITS)] = 16 << 20,
    max_batch: Annotated[int, typer.Option(help="The most messages of a request.", rich_help_panel=_LIMITS)] = 1000,
    max_polls: Annotated[
        int, typer.Option(help="The most pops and streams that wait at the same time.", rich_help_panel=_LIMITS)
    ] = 1000,
    rate: Annotated[
        float | None, typer.Option(help="The most requests per second; by default unlimited.", rich_help_panel=_LIMITS)
    ] = None,
    jwt_issuer: Annotated[str | None, typer.Option(help="Accept JWTs of this issuer …", rich_help_panel=_JWT)] = None,
    jwt_audience: Annotated[str | None, typer.Option(help="… for this audience …", rich_help_panel=_JWT)] = None,
    jwt_jwks: Annotated[
        str | None, typer.Option(help="… signed with these keys: an address, or a file.", rich_help_panel=_JWT)
    ] = None,
    jwt_roles_claim: Annotated[str, typer.Option(help="The claim with roles.", rich_help_panel=_JWT)] = "postbus_roles",
    jwt_topics_claim: Annotated[
        str, typer.Option(help="The claim with patterns of topics.", rich_help_panel=_JWT)
    ] = "postbus_topics",
    jwt_groups_claim: Annotated[
        str, typer.Option(help="The claim with patterns of groups; without it, all groups.", rich_help_panel=_JWT)
    ] = "postbus_groups",
    jwt_payloads_claim: Annotated[
        str, typer.Option(help="The claim that is false if the caller gets no payloads.", rich_help_panel=_JWT)
    ] = "postbus_payloads",
) -> int:
    """Serve HTTP until Ctrl-C: push, pop, topics, groups, and everything that /openapi.json describes.

    Without authentication it serves only this machine. A second Ctrl-C does not wait for requests under way.
    """
    require_server()
    from postbus.server.settings import CallerLimits, ConnectionLimits, JwtSettings, ServerSettings

    jwt = None
    if jwt_issuer and jwt_audience and jwt_jwks:
        jwt = JwtSettings(
            jwt_issuer, jwt_audience, jwt_jwks, jwt_roles_claim, jwt_topics_claim, jwt_groups_claim, jwt_payloads_claim
        )
    elif jwt_issuer or jwt_audience or jwt_jwks:
        raise usage_error(
            "JWTs need an issuer, an audience and keys",
            remedy="give all of --jwt-issuer, --jwt-audience and --jwt-jwks",
        )
    if unix_socket is not None and (host, port) != (_HOST, _PORT):
        raise usage_error("a socket has neither host nor port", remedy="omit --host and --port")
    settings = ServerSettings(
        host=host, port=port, auth=auth, jwt=jwt, limits=CallerLimits(max_body, max_batch, max_polls, rate),
        connections=ConnectionLimits(max_connections, header_timeout, body_timeout),
        cors_origins=tuple(cors_origin or ()), tls_cert=tls_cert, tls_key=tls_key,
        webhook_allow=tuple(webhook_allow or ()),
        unix_socket=_unix_socket(unix_socket, unix_socket_mode), trusted_proxies=tuple(trusted_proxy or ()),
    )  # fmt: skip
    configure_logging("WARNING", LogFormat.JSON if cli.as_json else LogFormat.TEXT)
    with stops_by_signal():
        try:
            return run(_run(cli.open_bus(), cli, settings))
        except KeyboardInterrupt:
            return OK


def _unix_socket(path: Path | None, mode: str) -> UnixSocket | None:
    from postbus.server.settings import UnixSocket

    if path is None:
        return None
    try:
        return UnixSocket(path, int(mode, 8))
    except ValueError as error:
        raise usage_error(
            f"{mode!r} is not the mode of a file", remedy="give permissions such as 600 or 660"
        ) from error


def require_server() -> None:
    """Say what to install if a package of the server is missing."""
    for name in ("litestar", "uvicorn", "httptools"):
        if find_spec(name) is None:
            raise CommandError(f"{name} is not installed", remedy="install it: pip install 'postbus[server]'")


async def _run(bus: Bus, cli: Cli, settings: ServerSettings) -> int:
    from postbus.server.serve import HttpServer

    ending = StopSignals()
    ending.listen()
    try:
        await bus.connect()
        server = HttpServer(bus, settings)
        if cli.as_json:
            write_json({"url": server.url, "warnings": settings.warnings})
        else:
            say(f"serving {server.url}")
        for warning in settings.warnings:
            cli.note(f"warning: {warning}")
        await _serve_until_told(server, ending)
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE if ending.abort.is_set() else None):
                await bus.close()
    return INTERRUPTED if ending.abort.is_set() else OK


async def _serve_until_told(server: HttpServer, ending: StopSignals) -> None:
    """Serve until the first signal; the second ends it at once."""
    serving = asyncio.create_task(server.run(ending.stop))
    aborted = asyncio.create_task(ending.abort.wait())
    await asyncio.wait([serving, aborted], return_when=asyncio.FIRST_COMPLETED)
    aborted.cancel()
    if not serving.done():
        server.abort()
        await asyncio.wait([serving], timeout=_PATIENCE)
    if serving.done():
        serving.result()


@dataclass(frozen=True)
class ServeOptions:
    """The HTTP server that another command runs beside its own work."""

    port: int | None
    """None for the default port, or any other if that one is taken."""
    webhook_allow: tuple[str, ...] = ()


@asynccontextmanager
async def served(bus: Bus, cli: Cli, http: ServeOptions | None) -> AsyncIterator[str | None]:
    """Serve HTTP to this machine within the block. Yields the address, or None if HTTP is unwanted or not installed."""
    try:
        if http is not None:
            require_server()
    except CommandError as error:
        cli.note(f"HTTP is not served: {error.message} ({error.remedy})")
        http = None
    if http is None:
        yield None
        return
    server = _open(bus, http)
    stop = asyncio.Event()
    serving = asyncio.create_task(server.run(stop))
    try:
        yield server.url
    finally:
        stop.set()
        with suppress(PostbusError):  # the command itself reports why it ends
            await serving


def _open(bus: Bus, http: ServeOptions) -> HttpServer:
    from postbus.server.serve import HttpServer
    from postbus.server.settings import DEFAULT_PORT, ServerSettings

    port = DEFAULT_PORT if http.port is None else http.port
    try:
        return HttpServer(bus, ServerSettings(port=port, webhook_allow=http.webhook_allow))
    except InvalidOption:
        if http.port is not None:
            raise
        return HttpServer(bus, ServerSettings(port=0, webhook_allow=http.webhook_allow))
