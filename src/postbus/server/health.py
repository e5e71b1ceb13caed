"""Routes: liveness, readiness and health."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request
from litestar.params import JSONBody, QueryParameter

from postbus._db.patterns import likes
from postbus.errors import NotAllowed
from postbus.health import HealthLimits, is_well
from postbus.options import as_timedelta
from postbus.server.context import ServerContext
from postbus.server.routing import InCall, route
from postbus.server.shapes import HealthLimitsBody
from postbus.server.views.base import Health, Welcome, view
from postbus.server.views.health import HealthLimitsView, SweepHealthView, SystemHealthView
from postbus.server.visible_groups import of_findings

_TAG = "health"
_Topic = Annotated[str | None, QueryParameter(description="The limits of this topic; without it, those of all topics.")]
_Group = Annotated[str | None, QueryParameter(description="The limits of this group of the topic.")]


@route("GET", "/", tag=_TAG)
async def welcome() -> Welcome:
    """Where to go from here."""
    return Welcome(name="Postbus", docs="/docs", openapi="/openapi.json", ready="/readyz")


@route("GET", "/livez", tag=_TAG)
async def livez() -> Health:
    """The process answers."""
    return Health(status="ok")


@route("GET", "/readyz", errors=(503,), tag=_TAG)
async def readyz(request: Request[Any, Any, Any]) -> Health:
    """The database can be reached, and its schema is right. This is checked once a second at most."""
    server: ServerContext = request.app.state.server
    await server.readiness.check()
    return Health(status="ok")


@route("GET", "/v1/health", tag=_TAG)
async def show_health(
    call: InCall, stuck_after: Annotated[float, QueryParameter(gt=0, description="Seconds.")] = 3600.0
) -> SystemHealthView:
    """Show problems of groups, and whether sweeping keeps up. Always 200: look at healthy."""
    store = await call.bus.connect()
    longest = as_timedelta(stuck_after, name="stuck_after")
    findings = list(of_findings(call.caller, await store.group_findings(longest, likes(call.caller.topics))))
    sees_all = call.caller.has_all_topics and call.caller.has_all_groups
    sweeping = await store.sweep_health() if sees_all else None
    shown = None if sweeping is None else view(SweepHealthView, sweeping)
    return SystemHealthView(healthy=is_well(findings, sweeping), findings=findings, sweeping=shown)


@route("GET", "/v1/health/limits", tag=_TAG)
async def show_health_limits(call: InCall, topic: _Topic = None, group: _Group = None) -> HealthLimitsView:
    """The limits beyond which groups are in trouble: all groups, those of a topic, or one."""
    if topic is not None:
        call.caller.check_topic(topic)
    if group is not None:
        call.caller.check_group(group)
    return view(HealthLimitsView, await call.admin.health_limits(topic, group))


@route("PATCH", "/v1/health/limits", tag=_TAG)
async def set_health_limits(
    call: InCall,
    data: JSONBody[HealthLimitsBody],
    topic: _Topic = None,
    group: _Group = None,
) -> HealthLimitsView:
    """Set limits. Those left out stay, "off" means no limit, and null means the next less specific limit."""
    if topic is not None:
        call.caller.check_topic(topic)
    elif not call.caller.has_all_topics:
        raise NotAllowed(
            "limits without a topic apply to all topics, and the token is limited to some",
            remedy="name a topic: ?topic=NAME",
        )
    call.caller.check_group(group)
    given: HealthLimits = msgspec.to_builtins(data)
    return view(HealthLimitsView, await call.admin.set_health_limits(topic, group, **given))


ROUTES = [welcome, livez, readyz, show_health, show_health_limits, set_health_limits]
