"""Messages as the tests of sinks send them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from postbus import Message
from postbus.relay import Envelope, Parcel, Sink

S = TypeVar("S", bound=Sink)
PUBLISHED = datetime(2030, 1, 31, 18, 0, tzinfo=UTC)


def message(number: int = 1, *, payload: bytes = b'{"n": 1}', **options: Any) -> Message:
    """Return a message as it comes from a topic."""
    given: dict[str, Any] = {
        "topic": "orders", "content_type": "application/json", "key": None, "headers": {}, "correlation_id": None,
        "priority": 4, "attempt": 1, "published_at": PUBLISHED,
    }  # fmt: skip
    return Message(id=number, payload=payload, **(given | options))


def event_id(number: int = 1) -> str:
    """Return the event id of such a message."""
    return message(number).event_id


def parcel(target: str, number: int = 1, **options: Any) -> Parcel:
    """Return the message as a parcel."""
    return Envelope(target, source="/tests").parcel(message(number, **options))


@asynccontextmanager
async def opened(sink: S) -> AsyncIterator[S]:
    """Open a sink within the block."""
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()
