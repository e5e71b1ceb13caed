"""Routes: the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from litestar.params import QueryParameter

from postbus._db.statements.audit import AuditFilters
from postbus._db.statements.pages import LAST
from postbus.server.paging import Cursor, Limit, decoded_cursor, next_of
from postbus.server.routing import InCall, route
from postbus.server.views.access import AuditEntries, AuditEntryView
from postbus.server.views.base import view

_Id = QueryParameter(pattern="^[0-9]{1,18}$", description="Only entries with a lower id.")
_Actor = QueryParameter(description="A part of the login, the role or the actor.")
_Action = QueryParameter(description="An action, such as topic.set, or a kind of actions, such as topic.")


@route("GET", "/v1/audit", tag="audit")
async def list_audit(
    call: InCall,
    since: Annotated[datetime | None, QueryParameter(description="Only entries from this time on.")] = None,
    until: Annotated[datetime | None, QueryParameter(description="Only entries before this time.")] = None,
    actor: Annotated[str | None, _Actor] = None,
    action: Annotated[str | None, _Action] = None,
    topic: Annotated[str | None, QueryParameter(description="Only actions on this topic.")] = None,
    group: Annotated[str | None, QueryParameter(description="Only actions on this group.")] = None,
    before_id: Annotated[str | None, _Id] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> AuditEntries:
    """Read the audit log, the newest entries first. Go on with next as cursor.

    A token for some topics or groups gets the entries about these.
    """
    filters = AuditFilters(
        since, until, actor, action, topic, group,
        topics=None if call.caller.has_all_topics else call.caller.topics,
        groups=None if call.caller.has_all_groups else call.caller.groups,
    )  # fmt: skip
    [last] = decoded_cursor(cursor, (LAST,))
    before = last if before_id is None else min(last, int(before_id))
    store = await call.bus.connect()
    page = await store.audit_page(filters, before_id=before, limit=limit)
    return AuditEntries(
        entries=[view(AuditEntryView, one) for one in page.found], next=next_of(page, lambda one: (one.id,))
    )


ROUTES = [list_audit]
