"""Options of topics, as callers give them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypedDict

from postbus.errors import InvalidOption

Duration = timedelta | str | float
"""A timedelta, seconds, or a text such as "30s", "5 minutes" or "24h"."""


class TopicOptions(TypedDict, total=False):
    """Options of a topic. An option that is left out has the default named here."""

    semantics: str
    """QUEUE: each message goes to one consumer. PUB_SUB: each message goes to every group (QUEUE)."""
    tracking: str
    """How completion is known, of PUB_SUB: by receipts that tell who settled what when (REFERENCE_COUNTING), or by the
    places of the groups alone (OFFSET_WATERMARK)."""
    lanes: int | str
    """Slices of a PUB_SUB topic that its order per key is kept by; the most processes that share a group's work (8).
    named: each message has a key, which names its lane; there may be any number of these."""
    storage: str
    """shared: with topics that were created with a like retention. own: a hot PUB_SUB topic's own tables (shared)."""
    segment_size: int
    """Messages of one publish call that a PUB_SUB topic stores in one row, up to 1000 (1000)."""
    zero_subscription_retention: Duration
    """How long a PUB_SUB topic keeps messages while no group is subscribed (24 hours, or a longer retention)."""
    block_writes_on_zero_subscriptions: bool
    """Refuse to publish to a PUB_SUB topic while no group is ACTIVE (False)."""
    max_retention: Duration
    """After this a PUB_SUB topic's messages go even if a group has not had them; that is recorded (30 days)."""
    dead_retention: Duration
    """How long a PUB_SUB topic keeps messages for a group that became DEAD, up to max_retention (72 hours)."""
    zombie_time: Duration
    """A group without any progress for this long no longer keeps messages from being dropped (7 days)."""
    heartbeat_interval: Duration
    """How often groups show that they are alive (60 seconds) …"""
    heartbeat_timeout: Duration
    """… and how long without that makes them DEAD (300 seconds)."""
    ordered: bool
    """Messages of one key one after the other; a failing one holds up its key only (False)."""
    lease: Duration
    """How long a claimed message is held, prolonged while it is handled, before somebody else gets it (30 s)."""
    max_attempts: int
    """Attempts before a message becomes a dead letter (25)."""
    retry_initial: Duration
    """Wait before the second attempt (1 second) …"""
    retry_factor: float
    """… each further wait is this many times longer (2) …"""
    retry_max: Duration
    """… up to this (1 hour)."""
    retry_jitter: float
    """Each wait is changed at random by up to this part of it (0.2)."""
    retention: Duration
    """How long messages are kept when all are done with them (QUEUE: 0, deleted on ack; PUB_SUB: 24 hours)."""
    dedup_window: Duration
    """How long a deduplication key is remembered (24 hours)."""
    max_payload_bytes: int
    """The largest payload (1 MiB)."""
    namespace: str | None
    """What the topic belongs to: groups can subscribe to all topics of a namespace. None takes it away (None)."""
    task: str | None
    """What the topic is for: the same, independent of the namespace (None)."""
    notify: bool
    """Wake consumers by every commit that publishes, also where these then wait for one another (False)."""


_TEXT = re.compile(r"\s*(\d+(\.\d+)?)\s*([a-zA-Z]*)\s*")
_UNITS = {
    "ms": 0.001, "s": 1, "sec": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400, "": 1,
}  # fmt: skip


def as_timedelta(value: Duration, *, name: str = "duration") -> timedelta:
    """A duration, however it was given."""
    if isinstance(value, timedelta):
        return value
    with suppress(ValueError, OverflowError):  # not a number, infinite, or longer than a timedelta can be
        if isinstance(value, int | float) and not isinstance(value, bool):
            return timedelta(seconds=value)
        if isinstance(value, str) and (match := _TEXT.fullmatch(value)) and match[3].lower() in _UNITS:
            return timedelta(seconds=float(match[1]) * _UNITS[match[3].lower()])
    raise InvalidOption(f"{name} {value!r} is not a duration", remedy='use "30s", "5 minutes", "24h" or a timedelta')


def as_wait(value: Duration, *, name: str) -> float:
    """A time to wait, in seconds. Refuses a negative one."""
    seconds = as_timedelta(value, name=name).total_seconds()
    if seconds < 0:
        raise InvalidOption(f"{name} {value} is negative", remedy="use 0 or more")
    return seconds


def as_interval(value: Duration, *, name: str) -> str:
    """A duration as the database reads it. Not in days, which may have 23 or 25 hours there."""
    hours, rest = divmod(as_timedelta(value, name=name), timedelta(hours=1))
    return f"{hours} hours {rest.total_seconds():.6f} seconds"


DURATIONS = (
    "lease", "retry_initial", "retry_max", "retention", "dedup_window", "zero_subscription_retention", "max_retention",
    "dead_retention", "zombie_time", "heartbeat_interval", "heartbeat_timeout",
)  # fmt: skip
"""Options of topics that are durations."""


def as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the database takes them. What they mean is checked there."""
    return {name: _as_json(name, value) for name, value in options.items()}


def _as_json(name: str, value: Any) -> Any:
    if name in DURATIONS and value is not None:
        return as_interval(value, name=name)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise InvalidOption(
        f"option {name} has the value {value!r}",
        remedy="options are numbers, texts, durations, True or False",
    )
