"""The application: all routes, and what they share."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Request, Response, get
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ASGIApp

import postbus
from postbus.bus import Bus
from postbus.errors import PostbusError
from postbus.server import (
    audit,
    consume,
    dead_letters,
    groups,
    health,
    messages,
    problems,
    token_routes,
    topics,
    webhook_routes,
)
from postbus.server.callers import Authenticator, Verifier
from postbus.server.desk import Desk, call_of
from postbus.server.limits import Gate
from postbus.server.routing import Body, FrontDoor, RawSchema
from postbus.server.settings import Settings

PARTS = (messages, consume, topics, groups, dead_letters, webhook_routes, token_routes, audit, health)
_ABOUT = (
    "Transactional messaging inside PostgreSQL. Ids are texts, since they have up to 64 bits, which JavaScript's "
    "numbers do not; durations are seconds, or texts such as 30s when they are given."
)


def new_desk(bus: Bus, settings: Settings) -> Desk:
    """What the requests of one server share."""
    verifier: Verifier | None = None
    if settings.jwt is not None:
        from postbus.server.jwt import JwtVerifier

        verifier = JwtVerifier(settings.jwt)
    authenticator = Authenticator(bus.connect, is_open=settings.is_open, verifier=verifier)
    return Desk(bus, settings, authenticator, Gate(settings.limits))


def make_app(desk: Desk) -> tuple[ASGIApp, Litestar]:
    """The application, and what is behind its front door."""
    origins = list(desk.settings.cors_origins)
    inner = Litestar(
        [*(route for part in PARTS for route in part.ROUTES), _openapi],
        dependencies={"call": Provide(call_of, sync_to_thread=False)},
        dto=Body,
        return_dto=None,
        plugins=[RawSchema()],
        exception_handlers={
            PostbusError: problems.of_postbus,
            HTTPException: problems.of_framework,
            Exception: problems.unexpected,
        },
        openapi_config=OpenAPIConfig(
            title="Postbus",
            version=postbus.__version__,
            description=_ABOUT,
            path="/openapi",
            use_handler_docstrings=True,
            components=Components(
                security_schemes={"token": SecurityScheme(type="http", scheme="bearer", description="pbt_…, or a JWT.")}
            ),
        ),
        cors_config=CORSConfig(allow_origins=origins, expose_headers=["retry-after"]) if origins else None,
        request_max_body_size=desk.settings.limits.max_body,
        logging_config=None,
        pdb_on_exception=False,
        debug=False,
    )
    inner.state.desk = desk
    door = FrontDoor(inner, is_open=desk.settings.is_open, origins=desk.settings.cors_origins)
    return door, inner


@get("/openapi.json", include_in_schema=False, opt={})
async def _openapi(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
    """What there is, as OpenAPI 3.1."""
    return Response(request.app.openapi_schema.to_schema(), media_type="application/json")
