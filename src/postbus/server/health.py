"""Routes: whether the server lives, and whether it can work."""

from __future__ import annotations

from typing import Any

from litestar import Request

from postbus import _migrate
from postbus.server.desk import Desk
from postbus.server.routing import route
from postbus.server.views import Health, Welcome

_TAG = "health"


@route("GET", "/", tag=_TAG)
async def welcome() -> Welcome:
    """Where to go from here."""
    return Welcome(name="Postbus", openapi="/openapi.json", ready="/readyz")


@route("GET", "/livez", tag=_TAG)
async def livez() -> Health:
    """The process answers."""
    return Health(status="ok")


@route("GET", "/readyz", errors=(503,), tag=_TAG)
async def readyz(request: Request[Any, Any, Any]) -> Health:
    """The database can be reached, and its schema is right."""
    desk: Desk = request.app.state.desk
    store = await desk.bus.connect()
    async with store.connection() as conn:
        await _migrate.check(conn)
    return Health(status="ok")


ROUTES = [welcome, livez, readyz]
