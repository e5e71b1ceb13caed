"""The names by which the inbox knows consumers and messages."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from postbus._content.codec import is_storable
from postbus.errors import InvalidOption
from postbus.message import Message
from postbus.options import Duration, as_timedelta

MessageId = str | int | UUID | Message
"""The id of a message at any broker, or a message of Postbus, which is known by its `event_id`."""

WINDOW = timedelta(hours=720)
"""How long an inbox remembers that a message is done. A copy that comes later has its effect again."""


def as_text(message_id: MessageId) -> str:
    """Convert a message's id to text, as inboxes store it."""
    if isinstance(message_id, Message):
        return message_id.event_id
    if isinstance(message_id, bool) or not isinstance(message_id, str | int | UUID):
        raise InvalidOption(
            f"{message_id!r:.200} is not the id of a message", remedy="give a str, an int, a UUID or a Message"
        )
    return checked("id of a message", str(message_id), most=500)


def checked(what: str, name: str, *, most: int) -> str:
    """A name that both inboxes can store. Refuses any other."""
    if not isinstance(name, str) or not 1 <= len(name) <= most or not is_storable(name):
        raise InvalidOption(
            f"bad {what}: {name!r:.220}",
            remedy=f"give 1 to {most} characters, without NUL and lone surrogates",
        )
    return name


def checked_consumer(consumer: str) -> str:
    return checked("name of a consumer", consumer, most=200)


def as_window(length: Duration, *, name: str, least: timedelta) -> timedelta:
    """Convert a retention to a timedelta. Refuses one that is out of range."""
    kept = as_timedelta(length, name=name)
    if not least <= kept <= timedelta(days=36600):
        raise InvalidOption(f"{name} {kept} is out of range", remedy=f"give {least.total_seconds():g} s to 100 years")
    return kept
