"""The description of the server, as OpenAPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

import postbus
from postbus.server.routing import COMMON

ROLES = "x-postbus-roles"
"""The field of an operation with its roles, of which a caller needs one."""
_ABOUT = (
    "Transactional messaging inside PostgreSQL. Ids are texts, because they have up to 64 bits and JavaScript's "
    "numbers have fewer. Durations are seconds. In requests they may also be texts such as 30s."
)


def describe(routes: Sequence[HTTPRouteHandler]) -> dict[str, Any]:
    """The document. An application of its own makes it: Litestar would add pages to the one that serves."""
    app = Litestar(
        routes,
        openapi_config=OpenAPIConfig(
            title="Postbus",
            version=postbus.__version__,
            description=_ABOUT,
            use_handler_docstrings=True,
            render_plugins=[JsonRenderPlugin()],
            components=Components(
                security_schemes={"token": SecurityScheme(type="http", scheme="bearer", description="pbt_…, or a JWT.")}
            ),
        ),
        **COMMON,
    )
    document: dict[str, Any] = app.openapi_schema.to_schema()
    roles = {route.operation_id: list(route.opt["right"].roles) for route in routes}
    for operations in document["paths"].values():
        for operation in operations.values():
            operation[ROLES] = roles.get(operation.get("operationId"), [])
    return document
