"""Errors as callers see them: problem details, with the codes of SQL and Python."""

from __future__ import annotations

import logging
import math
import re
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from postbus import errors
from postbus._db.error_map import translate
from postbus._runtime.log_events import event
from postbus.errors import PostbusError
from postbus.server.views.base import Problem

MEDIA_TYPE = "application/problem+json"
_HUNG_UP = "client disconnected prematurely"  # Litestar's text
_AWAY = 2.0  # seconds after which to try again when the database is away

_STATUS: tuple[tuple[type[PostbusError], int], ...] = (
    (errors.TopicNotFound, 404),
    (errors.MessageNotFound, 404),
    (errors.GroupNotFound, 404),
    (errors.TokenNotFound, 404),
    (errors.WebhookNotFound, 404),
    (errors.RouteNotFound, 404),
    (errors.TopicExists, 409),
    (errors.TopicNotEmpty, 409),
    (errors.WebhookExists, 409),
    (errors.InvalidGroup, 409),
    (errors.WrongSemantics, 409),
    (errors.NoActiveSubscriptions, 409),
    (errors.LeaseLost, 409),
    (errors.PayloadTooLarge, 413),
    (errors.RequestTooLarge, 413),
    (errors.NotAuthenticated, 401),
    (errors.NotAllowed, 403),
    (errors.TooManyRequests, 429),
    (errors.InvalidInput, 400),
    (errors.DatabaseUnavailable, 503),
    (errors.CommitUnknown, 503),
    (errors.SchemaError, 503),
    (errors.NotServed, 503),
)
_OF_FRAMEWORK: dict[int, tuple[type[PostbusError], str]] = {
    401: (errors.NotAuthenticated, "send the header Authorization: Bearer TOKEN"),
    403: (errors.NotAllowed, "use another token"),
    404: (errors.RouteNotFound, "see /openapi.json for the routes"),
    405: (errors.RouteNotFound, "see /openapi.json for the routes"),
    413: (errors.RequestTooLarge, "send less in one request"),
}


def status_of(error: PostbusError) -> int:
    """The HTTP status of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem(
    error: PostbusError, *, status: int | None = None, headers: dict[str, str] | None = None
) -> Response[bytes]:
    """The answer for an error."""
    status = status_of(error) if status is None else status
    told = Problem(
        type=f"urn:postbus:{error.code}",
        title=_title(type(error)),
        status=status,
        detail=error.message,
        code=error.code,
        remedy=error.remedy,
    )
    headers = dict(headers or {})
    if isinstance(error, errors.TooManyRequests):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    elif status == 503:
        headers["retry-after"] = str(math.ceil(_AWAY))
    elif status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(msgspec.json.encode(told), media_type=MEDIA_TYPE, status_code=status, headers=headers)


def of_postbus(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Errors of Postbus."""
    assert isinstance(error, PostbusError)
    return problem(error)


def of_framework(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Errors of the framework: an unknown route, or an invalid parameter or body."""
    assert isinstance(error, HTTPException)
    if isinstance(error, ValidationException):
        return problem(errors.InvalidInput(_invalid_parts(error), remedy="see /openapi.json for what the route takes"))
    if error.status_code >= 500:
        if error.detail == _HUNG_UP:  # nobody reads the answer
            return problem(errors.NotServed("the client has disconnected"), status=400)
        return unexpected(request, error)
    kind, remedy = _OF_FRAMEWORK.get(error.status_code, (errors.InvalidInput, "see /openapi.json"))
    kept = {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
    return problem(kind(error.detail, remedy=remedy), status=error.status_code, headers=kept)


def unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Answer an unexpected error. An error of the driver, as of a broken connection, is translated."""
    known = translate(error)
    if known is not None:
        return problem(known)
    event(logging.ERROR, "http.failed", path=request.scope["path"], exc_info=error)
    return problem(
        PostbusError("the server failed to answer this request", remedy="see the log of the server"), status=500
    )


def _invalid_parts(error: ValidationException) -> str:
    extra = error.extra if isinstance(error.extra, list) else []
    told = [f"{one.get('key', 'request')}: {one.get('message', '')}" for one in extra if isinstance(one, dict)]
    return "; ".join(told) or str(error.detail)


def _title(kind: type[PostbusError]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).capitalize()
