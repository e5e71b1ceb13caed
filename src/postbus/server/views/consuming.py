"""Answers to those who publish and consume."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from postbus.server.views.base import View
from postbus.server.views.messages import MessageView


class PushedIds(View, kw_only=True):
    ids: Annotated[list[str], Meta(examples=[["4096"]])]


class Delivered(MessageView, kw_only=True):
    """A message that is yours until its lease ends."""

    event_id: Annotated[str, Meta(description="Its identity, on every path and at every delivery.")]
    content_type: str
    token: Annotated[str | None, Meta(description="Settles it; null with auto_ack.")]
    lease_ends_at: datetime | None
    attempt: int
    priority: int
    source: Annotated[str, Meta(description="The identity of the database.")]


class PoppedMessages(View, kw_only=True):
    messages: list[Delivered]


class Settled(View, kw_only=True):
    settled: Annotated[int, Meta(description="Messages that this was done to.")]
    lost: Annotated[list[str], Meta(description="Those that are not yours any more: nothing was done to them.")]


class Retried(Settled, kw_only=True):
    dead: Annotated[list[str], Meta(description="Those whose attempts are used up: they are dead letters now.")]


class Committed(View, kw_only=True):
    acked: int
    pushed: Annotated[list[PushedIds], Meta(description="In the order of push.")]


class TopicHeartbeat(View, kw_only=True):
    """How a group stands in a topic."""

    topic: str
    state: Annotated[str, Meta(description="ACTIVE, unless the group is PAUSED.", examples=["ACTIVE"])]
    missed: Annotated[int | None, Meta(description="If it was DEAD: the messages that it had before it.")]
    skipped: Annotated[int | None, Meta(description="Of these, the messages that it will not get.")]


class Heartbeats(View, kw_only=True):
    topics: list[TopicHeartbeat]
