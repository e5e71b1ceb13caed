"""Routes: topics."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import JSONBody, QueryParameter

from postbus.errors import InvalidOption
from postbus.options import TopicOptions
from postbus.server.paging import Cursor, Limit, decoded_cursor, next_of
from postbus.server.routing import InCall, TopicName, route
from postbus.server.shapes import NewTopic, PurgeBody, TopicSettings
from postbus.server.views.base import Count
from postbus.server.views.topics import Topics, TopicView
from postbus.server.visible_groups import of_topic

_TAG = "topics"
_Force = Annotated[bool, QueryParameter(description="Delete its messages and groups, too.")]


@route("GET", "/v1/topics", tag=_TAG)
async def list_topics(call: InCall, cursor: Cursor = None, limit: Limit = 1000) -> Topics:
    """All topics that you may see, with options and message counts. Go on with next as cursor."""
    [after] = decoded_cursor(cursor, ("",))
    store = await call.bus.connect()
    page = await store.topic_page(after=after, limit=limit, topics=call.caller.topics)
    following = next_of(page, lambda one: (one.name,))
    return Topics(topics=[of_topic(call.caller, one) for one in page.found], next=following)


@route("POST", "/v1/topics", status=201, errors=(409,), tag=_TAG)
async def create_topic(call: InCall, data: JSONBody[NewTopic]) -> TopicView:
    """Create a topic. This is needed only if its options differ from the defaults."""
    call.caller.check_topic(data.name)
    await call.admin.create_topic(data.name, **_given(data.options))
    return await _shown(call, data.name)


@route("GET", "/v1/topics/{topic:str}", errors=(404,), tag=_TAG)
async def show_topic(call: InCall, topic: TopicName) -> TopicView:
    """A topic, with its options and message counts."""
    return await _shown(call, topic)


@route("PATCH", "/v1/topics/{topic:str}", errors=(404, 409), tag=_TAG)
async def set_topic(call: InCall, topic: TopicName, data: JSONBody[TopicSettings]) -> TopicView:
    """Change options of a topic. Those that are left out stay."""
    given = _given(data)
    if not given:
        raise InvalidOption("no option is given", remedy='give one such as {"max_attempts": 5}')
    await call.admin.set_topic(topic, **given)
    return await _shown(call, topic)


@route("DELETE", "/v1/topics/{topic:str}", status=204, errors=(404, 409), tag=_TAG)
async def delete_topic(
    call: InCall,
    topic: TopicName,
    force: _Force = False,
) -> None:
    """Delete a topic; with force also its messages and groups."""
    await call.admin.delete_topic(topic, force=force)


@route("POST", "/v1/topics/{topic:str}/pause", errors=(404, 409), tag=_TAG)
async def pause_topic(call: InCall, topic: TopicName) -> TopicView:
    """Stop delivery of a QUEUE; pushing goes on."""
    await call.admin.pause_topic(topic)
    return await _shown(call, topic)


@route("POST", "/v1/topics/{topic:str}/resume", errors=(404, 409), tag=_TAG)
async def resume_topic(call: InCall, topic: TopicName) -> TopicView:
    """Start delivery of a paused QUEUE again."""
    await call.admin.resume_topic(topic)
    return await _shown(call, topic)


@route("POST", "/v1/topics/{topic:str}/purge", errors=(404, 409), tag=_TAG)
async def purge_topic(call: InCall, topic: TopicName, data: JSONBody[PurgeBody]) -> Count:
    """Delete the waiting messages of a QUEUE."""
    return Count(count=await call.admin.purge_topic(topic, dry_run=data.dry_run), dry_run=data.dry_run)


def _given(settings: TopicSettings) -> TopicOptions:
    given: TopicOptions = msgspec.to_builtins(settings)
    return given


async def _shown(call: InCall, topic: str) -> TopicView:
    return of_topic(call.caller, await call.admin.topic(topic))


ROUTES = [list_topics, create_topic, show_topic, set_topic, delete_topic, pause_topic, resume_topic, purge_topic]
