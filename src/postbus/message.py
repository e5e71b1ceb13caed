"""Messages as handlers get them, messages to be published, and outcomes of handlers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict

import msgspec

from postbus._content.identity import identity_of

DEFAULT_PRIORITY = 4


class Message(msgspec.Struct, frozen=True, gc=False):
    """A published message, as it is delivered."""

    id: int
    topic: str
    payload: bytes
    """The payload as stored. Handlers get it decoded, as their first argument."""
    content_type: str
    key: str | None
    """Messages with the same key keep their order, in an ordered topic."""
    headers: Mapping[str, str]
    correlation_id: str | None
    priority: int
    attempt: int
    """1 at the first delivery. It is counted before the handler runs."""
    published_at: datetime
    source: str = ""
    """The identity of the database that delivers it."""

    @property
    def event_id(self) -> str:
        """The message's identity, unique in the world, and the same on every path and at every delivery.

        For a message that came from elsewhere it is the header event-id, otherwise a UUID that is computed at each
        access. `postbus.event_id` is the same in SQL.
        """
        return identity_of(self.source, self.topic, self.id, self.published_at, self.headers)


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be published with its own options, for `publish_many`."""

    payload: Any
    key: str | None = None
    headers: Mapping[str, str] | None = None
    priority: int | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    dedup_key: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None


class PublishOptions(TypedDict, total=False):
    """Options of a message beside its payload."""

    key: str | None
    """Messages with the same key keep their order, in an ordered topic."""
    headers: Mapping[str, str] | None
    priority: int | None
    """0 (last) to 9 (first). The default is 4."""
    delay: timedelta | float | None
    """Deliver after this time: a timedelta, or seconds."""
    deliver_at: datetime | None
    """Deliver at this time. Cannot be combined with `delay`."""
    dedup_key: str | None
    """Publishing again with the same key, within the topic's window, publishes nothing and returns the first id."""
    correlation_id: str | None
    content_type: str | None
    """The content type of the payload's bytes (by the payload's type)."""


class Ack(msgspec.Struct, frozen=True):
    """The message is done. A handler that returns None means the same."""


class Retry(msgspec.Struct, frozen=True):
    """Try the message again after `delay` or, without one, after the backoff of the retry policy."""

    delay: timedelta | float | None = None
    """A timedelta, or seconds."""
    error: str | None = None
    """The error, which is kept with the message."""


class DeadLetter(msgspec.Struct, frozen=True):
    """Give the message up at once: it becomes a dead letter."""

    reason: str
    error: str | None = None


class Release(msgspec.Struct, frozen=True):
    """Give the message back as if it had not been claimed, for a consumer that cannot work at the moment."""


Outcome = Ack | Retry | DeadLetter | Release
