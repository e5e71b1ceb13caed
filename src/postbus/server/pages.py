"""Routes: the API, described for programs and for people. The page loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from postbus.server.description import describe
from postbus.server.reference import render

_STYLE = Path(__file__).with_name("docs.css")
_OPEN: dict[str, Any] = {"include_in_schema": False, "opt": {"roles": ()}}


class ApiReference:
    """The description and the page of one server, made when they are first asked for."""

    def __init__(self, routes: Sequence[HTTPRouteHandler]) -> None:
        self._routes = routes

    @cached_property
    def document(self) -> dict[str, Any]:
        return describe(self._routes)

    @cached_property
    def json(self) -> bytes:
        return msgspec.json.encode(self.document)

    @cached_property
    def page(self) -> bytes:
        return render(self.document).encode()

    @cached_property
    def style(self) -> bytes:
        return _STYLE.read_bytes()


@get("/openapi.json", **_OPEN)
async def openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The API as OpenAPI 3.1."""
    return Response(_described(request).json, media_type="application/json")


@get("/docs", **_OPEN)
async def docs(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The API as a page to read."""
    return Response(_described(request).page, media_type="text/html")


@get("/docs/style.css", **_OPEN)
async def style(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The style of that page."""
    headers = {"cache-control": "max-age=300"}
    return Response(_described(request).style, media_type="text/css", headers=headers)


def _described(request: Request[Any, Any, Any]) -> ApiReference:
    reference: ApiReference = request.app.state.reference
    return reference


ROUTES = [openapi, docs, style]
