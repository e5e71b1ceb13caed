"""Answers about messages and dead letters."""

from __future__ import annotations

import base64
import contextlib
from datetime import datetime
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postbus._content.codec import holds_json
from postbus._content.content_types import is_text
from postbus.results.messages import (
    DeliveryStatus,
    MessageInfo,
    MessageStatus,
    MessageStory,
    QueueMessage,
    QueueState,
)
from postbus.server.shapes import Id
from postbus.server.views.base import ListPage, View, shown, view


class Payload(View, kw_only=True):
    """A payload, in one of three fields: JSON, text, or base64 for all other bytes."""

    content_type: str | None
    payload: Annotated[msgspec.Raw | UnsetType, Meta(description="If the payload is JSON.")] = UNSET
    text: Annotated[str | UnsetType, Meta(description="If its content type is text/…, and it is UTF-8.")] = UNSET
    base64: Annotated[str | UnsetType, Meta(description="If it is anything else.")] = UNSET


class MessageView(Payload, kw_only=True):
    """A message."""

    id: Id
    event_id: Annotated[str | None, Meta(description="Its identity, on every path and at every delivery.")]
    topic: str
    key: str | None
    headers: dict[str, str]
    correlation_id: str | None
    published_at: datetime


class ObservedMessage(MessageView, kw_only=True):
    """A message as an observer sees it."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("key", "correlation_id", "content_type")
    withheld: Annotated[
        bool | UnsetType,
        Meta(
            description="True if your token is without payloads: payload, headers, key, correlation_id, content_type, "
            "errors and reasons are left out, and event_id where it is one of the headers."
        ),
    ] = UNSET


class BrowsedMessage(ObservedMessage, kw_only=True):
    """A retained message, and its state."""

    WRITTEN: ClassVar[tuple[str, ...]] = (*ObservedMessage.WRITTEN, "last_error")
    state: Annotated[QueueState | UnsetType, Meta(description="Of a QUEUE: its state.")] = UNSET
    at: Annotated[
        datetime | UnsetType | None,
        Meta(description="When it is due, its lease ends, it was finished or it was given up."),
    ] = UNSET
    attempts: int | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    member: Annotated[str | UnsetType | None, Meta(description="The member that has it, or had it.")] = UNSET
    last_error: str | UnsetType | None = UNSET
    lane: Annotated[int | UnsetType | None, Meta(description="Of a PUB_SUB topic: its lane.")] = UNSET


class Messages(ListPage, kw_only=True):
    messages: list[BrowsedMessage]


class DeliveryView(View, kw_only=True):
    """The state of a message in a group."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("last_error",)
    group_name: str
    status: DeliveryStatus
    required: bool
    settled_at: datetime | None
    worker: str | None
    attempts: int | None
    last_error: str | None
    holder: str | None


class MessageStoryView(BrowsedMessage, kw_only=True):
    """A message with all that happened to it."""

    required: list[str] | UnsetType = UNSET
    completed: list[str] | UnsetType = UNSET
    status: MessageStatus | UnsetType = UNSET
    settled_at: datetime | UnsetType | None = UNSET
    retained: bool | UnsetType = UNSET
    deliveries: list[DeliveryView] | UnsetType = UNSET


class DeadLetterView(ObservedMessage, kw_only=True):
    """A message that was given up."""

    WRITTEN: ClassVar[tuple[str, ...]] = (*ObservedMessage.WRITTEN, "reason", "last_error")
    group_name: str | None
    died_at: datetime
    reason: str | None
    last_error: str | None
    attempts: int
    priority: int


class DeadLetters(ListPage, kw_only=True):
    dead_letters: list[DeadLetterView]


M = TypeVar("M", bound=MessageView)


def message_view(kind: type[M], message: MessageInfo) -> M:
    """Show a message. Fields that it does not have are left out."""
    known = (name for name in kind.__struct_fields__ if name != "payload" and hasattr(message, name))
    values = {name: shown(name, getattr(message, name)) for name in known}
    return kind(**values, **payload_of(message.payload, message.content_type))


def story_view(message: QueueMessage | MessageStory) -> MessageStoryView:
    """Show a message with all that happened to it."""
    shown_message = message_view(MessageStoryView, message)
    if isinstance(message, QueueMessage):
        return shown_message
    deliveries = [view(DeliveryView, one) for one in message.deliveries]
    return msgspec.structs.replace(shown_message, deliveries=deliveries)


def payload_of(payload: bytes, content_type: str) -> dict[str, Any]:
    """The field of a payload: JSON byte for byte, text as it was pushed."""
    if holds_json(payload, content_type):
        return {"payload": msgspec.Raw(payload)}
    if is_text(content_type):
        with contextlib.suppress(UnicodeDecodeError):
            return {"text": payload.decode()}
    return {"base64": base64.b64encode(payload).decode()}
