"""The application: all routes, and what they share."""

from __future__ import annotations

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.di import Provide
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
    webhook_routes,
)
from postbus.server.callers import Authenticator, Verifier
from postbus.server.desk import Desk, call_of
from postbus.server.front_door import FrontDoor
from postbus.server.limits import Gate
from postbus.server.readiness import Readiness
from postbus.server.routing import Body, RawSchema
from postbus.server.settings import ServerSettings
from postbus.server.vigil import Vigil

PARTS = (messages, consume, topics, groups, dead_letters, webhook_routes, token_routes, audit, health)


def new_desk(bus: Bus, settings: ServerSettings) -> Desk:
    """What the requests of one server share."""
    verifier: Verifier | None = None
    if settings.jwt is not None:
        from postbus.server.jwt import JwtVerifier

        verifier = JwtVerifier(settings.jwt)
    authenticator = Authenticator(bus.connect, is_open=settings.is_open, verifier=verifier)
    readiness = Readiness(bus.connect, tells_why=settings.is_open)
    return Desk(bus, settings, authenticator, Gate(settings.limits), Vigil(authenticator), readiness)


def make_app(desk: Desk) -> tuple[ASGIApp, Litestar]:
    """The application, and what is behind its front door."""
    origins = list(desk.settings.cors_origins)
    routes = [route for part in PARTS for route in part.ROUTES]
    inner = Litestar(
        [*routes, *pages.ROUTES],
        dependencies={"call": Provide(call_of, sync_to_thread=False)},
        dto=Body,
        return_dto=None,
        plugins=[RawSchema()],
        exception_handlers={
            PostbusError: problems.of_postbus,
            HTTPException: problems.of_framework,
            Exception: problems.unexpected,
        },
        openapi_config=None,  # it would bring pages that load scripts from elsewhere: see pages
        cors_config=CORSConfig(allow_origins=origins, expose_headers=["retry-after"]) if origins else None,
        request_max_body_size=desk.settings.limits.max_body,
        logging_config=None,
        pdb_on_exception=False,
        debug=False,
    )
    inner.state.desk = desk
    inner.state.described = pages.Described(routes)
    return FrontDoor(inner, desk.settings), inner
