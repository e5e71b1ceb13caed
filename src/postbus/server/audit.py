"""Routes: the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from litestar.params import FromQuery, QueryParameter

from postbus.server.paging import Limit
from postbus.server.routing import InCall, route
from postbus.server.views.access import AuditEntries, AuditEntryView
from postbus.server.views.base import view

_Id = QueryParameter(pattern="^[0-9]{1,18}$", description="Only entries with a lower id: the next page.")
_Actor = QueryParameter(description="A part of the login, the role or the actor.")
_Action = QueryParameter(description="An action, such as topic.set; or topic, for all of that kind.")


@route("GET", "/v1/audit", tag="audit")
async def list_audit(
    call: InCall,
    since: FromQuery[datetime | None] = None,
    until: FromQuery[datetime | None] = None,
    actor: Annotated[str | None, _Actor] = None,
    action: Annotated[str | None, _Action] = None,
    topic: FromQuery[str | None] = None,
    group: FromQuery[str | None] = None,
    before_id: Annotated[str | None, _Id] = None,
    limit: Limit = 100,
) -> AuditEntries:
    """Read the audit log, the newest entries first. Tokens for some topics or groups get entries about these."""
    entries = await call.admin.audit(
        since=since, until=until, actor=actor, action=action, topic=topic, group=group,
        topics=None if call.caller.has_all_topics else call.caller.topics,
        groups=None if call.caller.has_all_groups else call.caller.groups,
        before_id=None if before_id is None else int(before_id), limit=limit,
    )  # fmt: skip
    return AuditEntries(entries=[view(AuditEntryView, one) for one in entries])


ROUTES = [list_audit]
