"""Routes: groups, their life cycle, and their catch-ups."""

from __future__ import annotations

from typing import Annotated

from litestar.params import JSONBody, QueryParameter

from postbus.errors import InvalidOption
from postbus.results.groups import CatchUpInfo, GroupInfo, GroupMetrics, RemovedGroup, Resurrection
from postbus.server.paging import Cursor, Limit, decoded_cursor, next_of
from postbus.server.routing import GroupName, InCall, TopicName, route
from postbus.server.shapes import LogPosition, SeekBody, SubscribeBody
from postbus.server.views.base import Count, view
from postbus.server.views.groups import CatchUps, CatchUpView, Groups, GroupView, SubscribedGroup
from postbus.start import Start

_TAG = "groups"
_GROUP = "/v1/topics/{topic:str}/groups/{group:str}"
_CatchUp = Annotated[bool, QueryParameter(description="Give it the messages that it has missed; false: skip them.")]
_Wait = Annotated[float, QueryParameter(ge=0, le=60, description="Seconds that its processes have to settle messages.")]


@route("GET", "/v1/groups", tag=_TAG)
async def list_all_groups(call: InCall, cursor: Cursor = None, limit: Limit = 1000) -> Groups:
    """The groups of all topics that you may see, with lag and state. Go on with next as cursor."""
    return await _page(call, cursor, limit)


@route("GET", "/v1/topics/{topic:str}/groups", errors=(404,), tag=_TAG)
async def list_groups(call: InCall, topic: TopicName, cursor: Cursor = None, limit: Limit = 1000) -> Groups:
    """The groups of a topic, with lag and state. Go on with next as cursor."""
    await call.admin.semantics(topic)  # refuses a topic that does not exist
    return await _page(call, cursor, limit, topic)


async def _page(call: InCall, cursor: str | None, limit: int, topic: str | None = None) -> Groups:
    after = decoded_cursor(cursor, ("", "", 0))
    store = await call.bus.connect()
    page = await store.group_page(
        after=(after[0], after[1], after[2]), limit=limit, topic=topic, topics=call.caller.topics,
        groups=call.caller.groups,
    )  # fmt: skip
    return Groups(groups=[view(GroupView, one) for one in page.found], next=next_of(page, _position))


def _position(one: GroupInfo | CatchUpInfo) -> tuple[str, str, int]:
    return one.topic, one.group_name, one.subscription_id


@route("PUT", _GROUP, errors=(404, 409), tag=_TAG)
async def subscribe_group(
    call: InCall, topic: TopicName, group: GroupName, data: JSONBody[SubscribeBody]
) -> SubscribedGroup:
    """Subscribe a group to a PUB_SUB topic. An existing group keeps its position; a DEAD one comes back."""
    store = await call.store()
    info = await store.subscribe(topic, group, _start(data), data.on_failure)
    return SubscribedGroup(
        subscription_id=str(info.id), state=info.state, is_new=info.is_new, missed=info.missed, skipped=info.skipped
    )


@route("GET", _GROUP, errors=(404, 409), tag=_TAG)
async def show_group(call: InCall, topic: TopicName, group: GroupName) -> GroupView:
    """A group of a topic, with lag and state."""
    return view(GroupView, await call.admin.group(topic, group))


@route("GET", f"{_GROUP}/metrics", errors=(404, 409), tag=_TAG)
async def group_metrics(call: InCall, topic: TopicName, group: GroupName) -> GroupMetrics:
    """Show what a group has done, how fast it is, and what it has yet to do."""
    return await call.admin.group_metrics(topic, group)


@route("DELETE", _GROUP, errors=(404, 409), tag=_TAG)
async def remove_group(
    call: InCall,
    topic: TopicName,
    group: GroupName,
    wait: _Wait = 5.0,
) -> RemovedGroup:
    """Remove a group with all its data. Processes get up to wait seconds to settle what they have in hand."""
    return await call.admin.remove_group(topic, group, wait=wait)


@route("POST", f"{_GROUP}/pause", errors=(404, 409), tag=_TAG)
async def pause_group(call: InCall, topic: TopicName, group: GroupName) -> GroupView:
    """Stop delivery to a group. It keeps its position, and later gets what is published meanwhile."""
    await call.admin.pause_group(topic, group)
    return view(GroupView, await call.admin.group(topic, group))


@route("POST", f"{_GROUP}/resume", errors=(404, 409), tag=_TAG)
async def resume_group(call: InCall, topic: TopicName, group: GroupName) -> GroupView:
    """Start delivery to a paused group again."""
    await call.admin.resume_group(topic, group)
    return view(GroupView, await call.admin.group(topic, group))


@route("POST", f"{_GROUP}/cancel", status=204, errors=(404, 409), tag=_TAG)
async def cancel_group(call: InCall, topic: TopicName, group: GroupName) -> None:
    """End a group's subscription for good. Subscribing again makes a new one."""
    await call.admin.cancel_group(topic, group)


@route("POST", f"{_GROUP}/resurrect", errors=(404, 409), tag=_TAG)
async def resurrect_group(
    call: InCall,
    topic: TopicName,
    group: GroupName,
    catch_up: _CatchUp = True,
) -> Resurrection:
    """Bring a DEAD group back: at its position or, without catch_up, with messages from now on.

    Without catch_up the group does not get what it missed, and the request needs the role admin.
    """
    if not catch_up:
        call.caller.check_role(("admin",))
    return await call.admin.resurrect_group(topic, group, catch_up=catch_up)


@route("POST", f"{_GROUP}/seek", errors=(404, 409), tag=_TAG)
async def seek_group(call: InCall, topic: TopicName, group: GroupName, data: JSONBody[SeekBody]) -> Count:
    """Move a group to another position. Returns how many messages it has before it then.

    The request needs confirm: a group that goes forward skips messages, and one that goes back gets messages again.
    """
    start, is_meant = _start(data), data.confirm and not data.dry_run
    count = await call.admin.seek(topic, group, start, dry_run=not is_meant)
    if not (is_meant or data.dry_run):
        raise InvalidOption(
            f"group {group!r} would have {count} messages before it then; nothing was done",
            remedy='send "confirm": true to move it, or "dry_run": true to only count',
        )
    return Count(count=count, dry_run=data.dry_run)


@route("GET", "/v1/catch-ups", tag=_TAG)
async def list_catch_ups(call: InCall, cursor: Cursor = None, limit: Limit = 1000) -> CatchUps:
    """Catch-ups of groups: how much history they have, how fast they are, and when they end at that rate.

    Go on with next as cursor.
    """
    after = decoded_cursor(cursor, ("", "", 0))
    store = await call.bus.connect()
    page = await store.catch_up_page(
        after=(after[0], after[1], after[2]), limit=limit, topics=call.caller.topics, groups=call.caller.groups
    )
    return CatchUps(catch_ups=[view(CatchUpView, one) for one in page.found], next=next_of(page, _position))


@route("GET", f"{_GROUP}/catch-ups", errors=(404, 409), tag=_TAG)
async def group_catch_ups(call: InCall, topic: TopicName, group: GroupName) -> CatchUps:
    """The catch-ups of a group."""
    await call.admin.group(topic, group)
    return CatchUps(catch_ups=[view(CatchUpView, one) for one in await call.admin.catch_ups(topic, group)])


@route("POST", f"{_GROUP}/catch-ups/cancel", status=204, errors=(404, 409), tag=_TAG)
async def cancel_catch_up(call: InCall, topic: TopicName, group: GroupName) -> None:
    """Cancel a group's catch-up. The group itself goes on."""
    await call.admin.cancel_catch_up(topic, group)


@route("POST", f"{_GROUP}/catch-ups/resume", status=204, errors=(404, 409), tag=_TAG)
async def resume_catch_up(call: InCall, topic: TopicName, group: GroupName) -> None:
    """Go on with a catch-up that was cancelled."""
    await call.admin.resume_catch_up(topic, group)


def _start(data: LogPosition) -> Start:
    return Start.from_kind(data.start, data.timestamp, None if data.message_id is None else int(data.message_id))


ROUTES = [
    list_all_groups, list_groups, subscribe_group, show_group, group_metrics, remove_group, pause_group, resume_group,
    cancel_group, resurrect_group, seek_group, list_catch_ups, group_catch_ups, cancel_catch_up, resume_catch_up,
]  # fmt: skip
