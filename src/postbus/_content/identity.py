"""The identity of a message, unique in the world, as the SQL functions event_id and is_event_id compute it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

EVENT_ID = "event-id"
"""The header with the identity of a message that came from elsewhere."""
EVENT_TYPE, EVENT_VERSION = "event-type", "event-version"
AGGREGATE_TYPE, AGGREGATE_ID = "aggregate-type", "aggregate-id"
EVENT_HEADERS = (EVENT_TYPE, EVENT_VERSION, AGGREGATE_TYPE, AGGREGATE_ID)
"""The headers of an event, besides its identity."""

_GIVEN = re.compile(r"[!-~](?:[ -~]{0,198}[!-~])?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_VARIANT = str.maketrans("0123456789abcdef", "89ab" * 4)


def is_event_id(given: object) -> bool:
    """Whether a value may be the identity of a message that came from elsewhere."""
    return isinstance(given, str) and _GIVEN.fullmatch(given) is not None


def identity_of(
    source: str, topic: str, message_id: int, published_at: datetime, headers: Mapping[str, str] | None
) -> str:
    """The identity in the header of a message, or else its own."""
    given = headers.get(EVENT_ID) if headers else None
    if given is not None and is_event_id(given):
        return given
    return own_identity(source, topic, message_id, published_at)


def own_identity(source: str, topic: str, message_id: int, published_at: datetime) -> str:
    """A UUID of version 8 for a message of the database with this source."""
    moment = (published_at - _EPOCH) // _MICROSECOND
    digest = hashlib.sha256(f"{source}:{topic}:{message_id}:{moment}".encode()).hexdigest()
    variant = digest[16].translate(_VARIANT)
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"
