"""The application: its routes, and the state that they share."""

from __future__ import annotations

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp

from postbus.bus import Bus
from postbus.errors import PostbusError
from postbus.server import (
    audit,
    consume,
    dead_letters,
    groups,
    health,
    messages,
    pages,
    problems,
    token_routes,
    topics,
    webhooks,
)
from postbus.server.callers import Authenticator, Verifier
from postbus.server.context import ServerContext
from postbus.server.quotas import Quotas
from postbus.server.readiness import Readiness
from postbus.server.request_filter import RequestFilter
from postbus.server.routing import COMMON
from postbus.server.settings import ServerSettings
from postbus.server.token_watch import TokenWatch

PARTS = (messages, consume, topics, groups, dead_letters, webhooks, token_routes, audit, health)


def new_context(bus: Bus, settings: ServerSettings) -> ServerContext:
    """The state that the requests of one server share."""
    verifier: Verifier | None = None
    if settings.jwt is not None:
        from postbus.server.jwt import JwtVerifier

        verifier = JwtVerifier(settings.jwt)
    authenticator = Authenticator(bus.connect, is_open=settings.is_open, verifier=verifier)
    readiness = Readiness(bus.connect, tells_why=settings.is_open)
    return ServerContext(bus, settings, authenticator, Quotas(settings.limits), TokenWatch(authenticator), readiness)


def make_app(server: ServerContext) -> tuple[ASGIApp, Litestar]:
    """The application with its first checks, and the application behind them."""
    origins = list(server.settings.cors_origins)
    routes = [route for part in PARTS for route in part.ROUTES]
    inner = Litestar(
        [*routes, *pages.ROUTES],
        exception_handlers={
            PostbusError: problems.of_postbus,
            HTTPException: problems.of_framework,
            Exception: problems.unexpected,
        },
        openapi_config=None,  # Litestar's pages load scripts from elsewhere: see pages
        cors_config=CORSConfig(allow_origins=origins, expose_headers=["retry-after"]) if origins else None,
        request_max_body_size=server.settings.limits.max_body,
        pdb_on_exception=False,
        debug=False,
        **COMMON,
    )
    inner.state.server = server
    inner.state.reference = pages.ApiReference(routes)
    return RequestFilter(inner, server.settings), inner
