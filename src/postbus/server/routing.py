"""Routes: who may use them, how their bodies are read, and what they can answer."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import msgspec
from litestar import Litestar, Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency, Provide
from litestar.dto import AbstractDTO, DTOConfig
from litestar.dto.data_structures import DTOFieldDefinition
from litestar.exceptions import ValidationException
from litestar.handlers import HTTPRouteHandler
from litestar.handlers.base import BaseRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example, Reference, Schema
from litestar.params import PathParameter, QueryParameter, SkipValidation
from litestar.plugins import OpenAPISchemaPlugin
from litestar.types import ASGIApp, Method
from litestar.typing import FieldDefinition

from postbus.errors import InvalidInput
from postbus.server.connections import KEY, Connection
from postbus.server.context import Call, ServerContext, call_of
from postbus.server.problems import MEDIA_TYPE
from postbus.server.rights import RIGHTS
from postbus.server.shapes import ID, NAME, RequestBody
from postbus.server.views.base import Problem

TopicName = Annotated[str, PathParameter(pattern=NAME, examples=[Example(value="orders")], description="The topic.")]
GroupName = Annotated[str, PathParameter(pattern=NAME, examples=[Example(value="mail")], description="The group.")]
MessageId = Annotated[str, PathParameter(pattern=ID, examples=[Example(value="4096")], description="The message's id.")]
InCall = NamedDependency[SkipValidation[Call]]

SLASH = "\x1f"
"""Stands for an encoded slash within a name, while routes are looked up."""
_MEANINGS = {
    400: "The request is invalid.",
    401: "The request has no valid token.",
    403: "The token lacks the role, the topic or the group.",
    404: "There is nothing with this name.",
    409: "The request conflicts with the current state.",
    413: "The request is too large.",
    429: "Too many requests, or too many at the same time: see Retry-After.",
    503: "The database is away: see Retry-After.",
}
_ALWAYS = (400, 401, 403, 429, 503)


class HttpRoute(HTTPRouteHandler):
    """Removes payloads from answers to callers without payloads, whatever its function returns."""

    async def to_response(self, app: Litestar, data: Any, request: Request[Any, Any, Any]) -> ASGIApp:
        call: Call | None = getattr(request.state, "call", None)
        return await super().to_response(app, data if call is None else call.shown(data), request)


def route(
    method: Method,
    path: str,
    *,
    status: int = 200,
    errors: tuple[int, ...] = (),
    tag: str,
    media_type: str | None = None,
) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """A route. RIGHTS has the right that it needs, by its name. `errors` are its statuses beyond the usual ones."""

    def register(function: Callable[..., Any]) -> HTTPRouteHandler:
        name = function.__name__
        right = RIGHTS[name]
        told = {
            code: ResponseSpec(Problem, description=_MEANINGS[code], media_type=MEDIA_TYPE, generate_examples=False)
            for code in sorted((*_ALWAYS, *errors) if right.roles else errors)
        }
        return HttpRoute(
            path,
            http_method=method,
            status_code=status,
            guards=[let_in] if right.roles else [],
            opt={"right": right, "query": _query_parameters(function)},
            responses=told,
            operation_id=name,
            summary=name.replace("_", " ").capitalize(),
            tags=[tag],
            security=[{"token": []}] if right.roles else [{}],
            media_type=media_type,
        )(function)

    return register


async def let_in(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Find the caller, and check its rights, its limits, and the topic and group in the path."""
    server: ServerContext = connection.app.state.server
    authorization = connection.headers.get("authorization")
    address = connection.client.host if connection.client else ""
    caller = await server.authenticator.caller(authorization, address)
    line = connection.state.get(KEY)
    if isinstance(line, Connection):
        line.slots.become_known(line)
    server.quotas.admit(caller.name)
    caller.check(handler.opt["right"])
    _check_query(connection, handler)
    names = {name: _with_slashes(value) for name, value in connection.scope["path_params"].items()}
    connection.scope["path_params"] = names
    if "topic" in names:
        caller.check_topic(names["topic"])
    if "group" in names:
        caller.check_group(names["group"])
    connection.state.call = Call(server, caller, authorization, address)


def _query_parameters(function: Callable[..., Any]) -> frozenset[str]:
    """The names of the query parameters that a route takes."""
    hints = get_type_hints(function, include_extras=True)
    return frozenset(
        name for name, hint in hints.items() if any(isinstance(one, QueryParameter) for one in get_args(hint))
    )


def _check_query(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    known = handler.opt["query"]
    unknown = sorted(set(connection.query_params) - known)
    if unknown:
        raise InvalidInput(
            f"unknown query parameter: {', '.join(unknown)}",
            remedy=f"this route takes {', '.join(sorted(known)) or 'no query parameters'}",
        )


def _with_slashes(value: Any) -> Any:
    return value.replace(SLASH, "/") if isinstance(value, str) else value


class BodyReader(AbstractDTO[Any]):
    """Decodes a body straight into its type. Raw JSON stays as it was sent."""

    model_type = object
    config = DTOConfig()
    _decoders: ClassVar[dict[str, msgspec.json.Decoder[Any]]] = {}

    @classmethod
    def create_for_field_definition(
        cls, field_definition: FieldDefinition, handler_id: str, backend_cls: Any = None
    ) -> None:
        cls._decoders[handler_id] = msgspec.json.Decoder(field_definition.annotation)

    def decode_bytes(self, value: bytes) -> Any:
        handler_id = self.asgi_connection.route_handler.handler_id
        try:
            return self._decoders[handler_id].decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValidationException(extra=[{"key": "body", "message": str(error)}]) from error

    @classmethod
    def create_openapi_schema(
        cls, field_definition: FieldDefinition, handler_id: str, schema_creator: Any
    ) -> Reference | Schema:
        schema: Reference | Schema = schema_creator.for_field_definition(field_definition)
        for kind in (field_definition, *field_definition.inner_types):
            if kind.is_subclass_of(RequestBody):
                component = schema_creator.schema_registry.from_reference(schema_creator.for_field_definition(kind))
                component.schema.examples = [kind.annotation.EXAMPLE]
        return schema

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Generator[DTOFieldDefinition, None, None]:
        yield from ()  # bodies are decoded as a whole

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        return False


class RawSchema(OpenAPISchemaPlugin):
    """The schema of JSON that is passed on unchanged, which may be anything."""

    def is_plugin_supported_field(self, field_definition: FieldDefinition) -> bool:
        return field_definition.annotation is msgspec.Raw

    def to_openapi_schema(self, field_definition: FieldDefinition, schema_creator: Any) -> Schema:
        return Schema()

    @staticmethod
    def is_undefined_sentinel(value: Any) -> bool:
        return value is msgspec.UNSET


COMMON: dict[str, Any] = {
    "dependencies": {"call": Provide(call_of, sync_to_thread=False)},
    "dto": BodyReader,
    "return_dto": None,
    "plugins": [RawSchema()],
    "logging_config": None,
}
"""The arguments of every application that has the routes."""
