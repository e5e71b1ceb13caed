"""Routes: tokens, without their secrets. They are made and revoked where the database is: postbus tokens."""

from __future__ import annotations

from postbus.server.paging import Cursor, Limit, decoded_cursor, next_of
from postbus.server.routing import InCall, route
from postbus.server.views.access import Tokens

_TAG = "tokens"


@route("GET", "/v1/tokens", tag=_TAG)
async def list_tokens(call: InCall, cursor: Cursor = None, limit: Limit = 1000) -> Tokens:
    """All tokens, also revoked and expired ones, with their rights, who made them, and when they were last used.

    Go on with next as cursor.
    """
    [after] = decoded_cursor(cursor, ("",))
    store = await call.bus.connect()
    page = await store.token_page(after=after, limit=limit)
    return Tokens(tokens=page.found, next=next_of(page, lambda one: (one.id,)))


ROUTES = [list_tokens]
