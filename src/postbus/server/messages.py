"""Routes: pushing messages, and looking at them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated

from litestar.params import HeaderParameter, JSONBody, QueryParameter
from litestar.response import Stream
from msgspec import UNSET, UnsetType

from postbus._content.codec import check_json
from postbus._content.content_types import BYTES, JSON, TEXT, is_json
from postbus._content.outgoing import outgoing
from postbus._db.statements.pages import LAST
from postbus.errors import InvalidPayload
from postbus.message import Outgoing
from postbus.options import as_timedelta
from postbus.results.messages import LogMessage, QueueMessage
from postbus.server.follow import follow
from postbus.server.paging import MOST_BYTES, AfterId, Cursor, Limit, decoded_cursor, next_of
from postbus.server.routing import InCall, MessageId, TopicName, route
from postbus.server.shapes import NewMessage
from postbus.server.views.consuming import PushedIds
from postbus.server.views.messages import BrowsedMessage, Messages, MessageStoryView, message_view
from postbus.server.visible_groups import of_message

_TAG = "messages"
_Newest = Annotated[bool, QueryParameter(description="Begin with the newest messages; further pages go back in time.")]


@route("POST", "/v1/topics/{topic:str}/messages", status=201, errors=(409, 413), tag=_TAG)
async def push(call: InCall, topic: TopicName, data: JSONBody[NewMessage | list[NewMessage]]) -> PushedIds:
    """Push a message, or a list: all its messages are committed together, or none is."""
    if isinstance(data, NewMessage):
        return PushedIds(ids=[str(await call.bus.send(topic, message_of(data)))])
    call.server.quotas.check_batch(len(data))
    ids = await call.bus.send_many(topic, [message_of(one) for one in data])
    return PushedIds(ids=[str(one) for one in ids])


@route("GET", "/v1/topics/{topic:str}/messages", errors=(404,), tag=_TAG)
async def browse_messages(
    call: InCall,
    topic: TopicName,
    after_id: AfterId = "0",
    cursor: Cursor = None,
    limit: Limit = 100,
    newest: _Newest = False,
) -> Messages:
    """Retained messages of a topic, in their order: the first ones, or the newest.

    A page ends at limit, or at 8 MiB. Go on with next as cursor, which leads to earlier messages with newest.
    """
    store = await call.bus.connect()
    found: Sequence[QueueMessage | LogMessage]
    if await call.admin.semantics(topic) == "PUB_SUB":
        start = (LAST, 0) if newest else (0, -1)
        position = decoded_cursor(cursor, start)
        in_log = await store.log_page(
            topic,
            after=(position[0], position[1]),
            after_id=int(after_id),
            limit=limit,
            max_bytes=MOST_BYTES,
            newest=newest,
        )
        found, following = in_log.found, next_of(in_log, lambda one: (one.sequence, one.index), newest=newest)
    else:
        after, [last] = int(after_id), decoded_cursor(cursor, (LAST if newest else 0,))
        after, before = (after, last) if newest else (max(after, last), LAST)
        queued = await store.queue_page(
            topic, after=after, before=before, limit=limit, max_bytes=MOST_BYTES, newest=newest
        )
        found, following = queued.found, next_of(queued, lambda one: (one.id,), newest=newest)
    return Messages(messages=[message_view(BrowsedMessage, one) for one in found], next=following)


@route("GET", "/v1/topics/{topic:str}/messages/{message_id:str}", errors=(404,), tag=_TAG)
async def show_message(call: InCall, topic: TopicName, message_id: MessageId) -> MessageStoryView:
    """A message, its state and, in a PUB_SUB topic, what became of it in each group."""
    return of_message(call.caller, await call.admin.message(topic, int(message_id)))


@route("GET", "/v1/topics/{topic:str}/follow", errors=(404,), tag=_TAG, media_type="text/event-stream")
async def follow_topic(
    call: InCall,
    topic: TopicName,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(
            name="last-event-id", pattern=r"^\d{1,19}\.\d{1,9}$", description="The id of an event: go on after it."
        ),
    ] = None,
) -> Stream:
    """New messages of a topic as server-sent events. No group's position changes."""
    await call.admin.semantics(topic)  # refuses a topic that does not exist
    call.server.quotas.check_polls(call.caller.name)  # while an error can still be answered
    return Stream(follow(call, topic, last_event_id), media_type="text/event-stream", headers=_UNBUFFERED)


_UNBUFFERED = {"cache-control": "no-store", "x-accel-buffering": "no"}


def message_of(given: NewMessage) -> Outgoing:
    """Convert a pushed message into one to publish."""
    payload, content_type = _payload_of(given)
    return outgoing(
        payload,
        key=given.key,
        headers=given.headers,
        priority=given.priority,
        delay=None if given.delay is None else as_timedelta(given.delay, name="delay"),
        deliver_at=given.deliver_at,
        dedup_key=given.dedup_key,
        correlation_id=given.correlation_id,
        content_type=given.content_type or content_type,
    )


def _payload_of(given: NewMessage) -> tuple[bytes, str]:
    if [given.payload, given.text, given.base64].count(UNSET) != 2:
        raise InvalidPayload(
            "the message has no payload, or several", remedy="give one of payload (JSON), text and base64"
        )
    if not isinstance(given.payload, UnsetType):
        payload = bytes(given.payload)
        check_json(payload)
        if given.content_type is not None and not is_json(given.content_type):
            raise InvalidPayload(
                f"payload is JSON, and content_type {given.content_type!r} is not", remedy="use text or base64 for it"
            )
        return payload, JSON
    if not isinstance(given.text, UnsetType):
        return given.text.encode(), TEXT
    try:
        return base64.b64decode(str(given.base64), validate=True), BYTES
    except (binascii.Error, ValueError) as error:
        raise InvalidPayload(f"base64 is not valid: {error}", remedy="encode the bytes as RFC 4648 says") from error


ROUTES = [push, browse_messages, show_message, follow_topic]
