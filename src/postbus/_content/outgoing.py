"""Making messages to be published from the arguments of callers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from postbus.errors import InvalidOption
from postbus.message import Outgoing
from postbus.options import as_timedelta


def outgoing(
    payload: Any,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    priority: int | None = None,
    delay: timedelta | float | None = None,
    deliver_at: datetime | None = None,
    dedup_key: str | None = None,
    correlation_id: str | None = None,
    content_type: str | None = None,
) -> Outgoing:
    """Make a message from arguments. A payload that is an `Outgoing` is returned as it is."""
    options = (key, headers, priority, delay, deliver_at, dedup_key, correlation_id, content_type)
    if isinstance(payload, Outgoing):
        if any(option is not None for option in options):
            raise InvalidOption("options are given beside an Outgoing", remedy="put them into the Outgoing")
        return payload
    return Outgoing(
        payload=payload,
        key=key,
        headers=headers,
        priority=priority,
        delay=None if delay is None else as_timedelta(delay, name="delay"),
        deliver_at=deliver_at,
        dedup_key=dedup_key,
        correlation_id=correlation_id,
        content_type=content_type,
    )
