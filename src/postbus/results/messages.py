"""Results about messages and dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

QueueState = Literal["waiting", "parked", "scheduled", "retrying", "leased", "finished", "dead"]
DeliveryStatus = Literal["PENDING", "RETRYING", "WAITING", "COMPLETED", "DEAD", "ABANDONED", "SKIPPED"]
MessageStatus = Literal["PENDING", "PROCESSING", "COMPLETED", "FAILED"]


class MessageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A message as an observer sees it."""

    topic: str
    id: int
    event_id: str
    key: str | None
    published_at: datetime
    correlation_id: str | None
    content_type: str
    headers: dict[str, str]
    payload: bytes


class QueueMessage(MessageInfo, frozen=True, kw_only=True):
    """A message of a QUEUE, and where it is."""

    state: QueueState
    at: datetime | None
    """When it is due, its lease ends, or it finished or died."""
    attempts: int
    priority: int
    member: str | None
    """The consumer that has it, or had it."""
    last_error: str | None
    group_name: str | None
    """Of a dead letter: the group that gave it up."""


class LogMessage(MessageInfo, frozen=True, kw_only=True):
    """A message of a PUB_SUB topic, and where it is in the log."""

    lane: int
    sequence: int
    index: int


class DeliveryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a message at one group."""

    subscription_id: int
    group_name: str
    status: DeliveryStatus
    required: bool
    settled_at: datetime | None
    worker: str | None
    """The process that settled it."""
    attempts: int | None
    last_error: str | None
    holder: str | None
    """The process that has it in hand, or reads its lane."""


class MessageProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a message of a PUB_SUB topic is settled."""

    required: list[str]
    """Groups that are required for it."""
    completed: list[str]
    status: MessageStatus
    settled_at: datetime | None


class MessageStory(MessageInfo, frozen=True, kw_only=True):
    """A message of a PUB_SUB topic, with what became of it at each group."""

    lane: int | None
    """None if the log no longer has the message."""
    required: list[str]
    completed: list[str]
    status: MessageStatus
    settled_at: datetime | None
    retained: bool
    """False if the log has dropped it: then only groups that retry it, or gave it up, are known."""
    deliveries: list[DeliveryInfo]


class DeadLetterInfo(MessageInfo, frozen=True, kw_only=True):
    """A message that was given up."""

    group_name: str | None
    """None for a QUEUE."""
    died_at: datetime
    reason: str | None
    last_error: str | None
    attempts: int
    priority: int
