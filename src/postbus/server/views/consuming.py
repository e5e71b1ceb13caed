"""Answers to producers and consumers."""

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
    token: Annotated[str | None, Meta(description="The token of its lease. Null with auto_ack.")]
    lease_ends_at: datetime | None
    attempt: int
    priority: int
    source: Annotated[str, Meta(description="The identity of the database.")]


class PoppedMessages(View, kw_only=True):
    messages: list[Delivered]


class Settled(View, kw_only=True):
    settled: Annotated[int, Meta(description="The number of messages that were settled.")]
    lost: Annotated[list[str], Meta(description="Messages that are no longer yours. Nothing was done to them.")]


class Retried(Settled, kw_only=True):
    dead: Annotated[list[str], Meta(description="Messages whose attempts are used up. They are dead letters now.")]


class Committed(View, kw_only=True):
    acked: int
    pushed: Annotated[list[PushedIds], Meta(description="In the order of push.")]


class TopicHeartbeat(View, kw_only=True):
    """The state of a group in a topic."""

    topic: str
    state: Annotated[str, Meta(description="ACTIVE, unless the group is PAUSED.", examples=["ACTIVE"])]
    missed: Annotated[
        int | None, Meta(description="If it was DEAD: the number of messages that it has to catch up with.")
    ]
    skipped: Annotated[int | None, Meta(description="The number of these that it will not get.")]


class Heartbeats(View, kw_only=True):
    topics: list[TopicHeartbeat]
