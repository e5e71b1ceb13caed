"""Routes: tokens, without their secrets. They are made and revoked where the database is: postbus tokens."""

from __future__ import annotations

from postbus.server.routing import InCall, route
from postbus.server.views import Tokens, TokenView, view

_TAG = "tokens"


@route("GET", "/v1/tokens", tag=_TAG)
async def list_tokens(call: InCall) -> Tokens:
    """All tokens, also those that are revoked or expired: what they may do, who made them, when they were last used."""
    return Tokens(tokens=[view(TokenView, row) for row in await call.admin.tokens()])


ROUTES = [list_tokens]
