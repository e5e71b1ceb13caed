"""Messages as handlers see them, messages to be published, and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict

import msgspec

from postbus._content.identity import identity_of


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message as it was published, with what delivery knows of it."""

    id: int
    topic: str
    payload: bytes
    """The payload as it is stored; handlers get it decoded as their first argument."""
    content_type: str
    key: str | None
    """What order is kept by, in an ordered topic."""
    headers: Mapping[str, str]
    correlation_id: str | None
    priority: int
    attempt: int
    """1 at the first delivery. Counted before the handler runs."""
    published_at: datetime
    source: str = ""
    """The identity of the database that delivers it."""

    @property
    def event_id(self) -> str:
        """The message's identity: the same on every path and at every delivery, and no other message has it.

        It is the header event-id of a message that came from elsewhere, and otherwise a UUID that is computed when it
        is asked for. `postbus.event_id` is the same in SQL.
        """
        return identity_of(self.source, self.topic, self.id, self.published_at, self.headers)


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be published with options of its own, for `publish_many`."""

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
    """What order is kept by, in an ordered topic."""
    headers: Mapping[str, str] | None
    priority: int | None
    """0 (last) to 9 (first); 4 is usual."""
    delay: timedelta | float | None
    """Deliver after this time: a timedelta, or seconds."""
    deliver_at: datetime | None
    """Deliver at this time; not together with `delay`."""
    dedup_key: str | None
    """Publishing again with the same key, within the topic's window, publishes nothing and returns the first id."""
    correlation_id: str | None
    content_type: str | None
    """What the bytes of the payload are; told by the payload's type otherwise."""


class Ack(msgspec.Struct, frozen=True):
    """The message is done. What a handler that returns nothing means."""


class Retry(msgspec.Struct, frozen=True):
    """Try the message again, after `delay` or, without one, after the policy's backoff."""

    delay: timedelta | float | None = None
    """A timedelta, or seconds."""
    error: str | None = None
    """What went wrong, kept with the message."""


class DeadLetter(msgspec.Struct, frozen=True):
    """Give the message up, at once."""

    reason: str
    error: str | None = None


class Release(msgspec.Struct, frozen=True):
    """Give the message back as if it had not been claimed: for a consumer that cannot work at all."""


Outcome = Ack | Retry | DeadLetter | Release
