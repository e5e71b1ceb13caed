"""Options of topics, and durations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, TypedDict, TypeGuard

from postbus.errors import InvalidOption

Duration = timedelta | str | float
"""A timedelta, seconds, or a text such as "30s", "5 minutes" or "24h"."""
Semantics = Literal["QUEUE", "PUB_SUB"]
Tracking = Literal["REFERENCE_COUNTING", "OFFSET_WATERMARK"]
Storage = Literal["shared", "own"]
OnFailure = Literal["block", "pass"]
"""The effect of a failing message on later ones of its key."""


class TopicOptions(TypedDict, total=False):
    """Options of a topic. The default of each is in brackets."""

    semantics: Semantics
    """QUEUE: each message goes to one consumer. PUB_SUB: each message goes to every group (QUEUE)."""
    tracking: Tracking
    """How the completion of a PUB_SUB topic's messages is known: by a receipt for each message and group
    (REFERENCE_COUNTING), or by the positions of the groups alone (OFFSET_WATERMARK)."""
    lanes: int | Literal["named"]
    """Slices of a PUB_SUB topic, to which keys are mapped; also the most processes that can share a group's work (8).
    named: each message has a key, which names its lane, and there may be any number of lanes."""
    storage: Storage
    """shared: with topics of a similar retention. own: its own tables, for a busy PUB_SUB topic (shared)."""
    segment_size: int
    """The number of messages of one publish call that a PUB_SUB topic stores in one row, up to 1000 (1000)."""
    zero_subscription_retention: Duration
    """How long a PUB_SUB topic keeps messages while no group is subscribed (24 hours, or a longer retention)."""
    block_writes_on_zero_subscriptions: bool
    """Refuse to publish to a PUB_SUB topic while no group is ACTIVE (False)."""
    max_retention: Duration
    """After this time a PUB_SUB topic drops even messages that a group has not had, and records that (30 days)."""
    dead_retention: Duration
    """How long a PUB_SUB topic keeps messages for a group that became DEAD, up to max_retention (72 hours)."""
    zombie_time: Duration
    """A group that makes no progress for this long no longer keeps messages from being dropped (7 days)."""
    heartbeat_interval: Duration
    """How often groups show that they are alive (60 seconds) …"""
    heartbeat_timeout: Duration
    """… and how long without that makes them DEAD (300 seconds)."""
    ordered: bool
    """Deliver messages of one key one after the other; a failing one holds up its key only (False)."""
    lease: Duration
    """How long a claimed message is held before another consumer gets it; extended while it is handled (30 s)."""
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
    """How long messages are kept after all consumers settled them (QUEUE: 0, deleted on ack; PUB_SUB: 24 hours)."""
    dedup_window: Duration
    """How long a deduplication key is remembered (24 hours)."""
    max_payload_bytes: int
    """The largest payload (1 MiB)."""
    namespace: str | None
    """The namespace of the topic: groups can subscribe to all topics of a namespace. None removes it (None)."""
    task: str | None
    """The task of the topic, which works like the namespace and is independent of it (None)."""
    notify: bool
    """Notify consumers by every commit that publishes, even if publishing commits then wait for each other (False)."""


_TEXT = re.compile(r"\s*(\d+(\.\d+)?)\s*([a-zA-Z]*)\s*")
_UNITS = {
    "ms": 0.001, "s": 1, "sec": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400, "": 1,
}  # fmt: skip


def as_timedelta(value: Duration, *, name: str = "duration") -> timedelta:
    """Convert a duration to a timedelta."""
    if isinstance(value, timedelta):
        return value
    with suppress(ValueError, OverflowError):  # not a number, infinite, or longer than a timedelta can be
        if isinstance(value, int | float) and not isinstance(value, bool):
            return timedelta(seconds=value)
        if isinstance(value, str) and (match := _TEXT.fullmatch(value)) and match[3].lower() in _UNITS:
            return timedelta(seconds=float(match[1]) * _UNITS[match[3].lower()])
    raise InvalidOption(f"{name} {value!r} is not a duration", remedy='give one such as "30s", "5 minutes" or "24h"')


def is_count(value: object, most: int = 2**63 - 1, *, least: int = 1) -> TypeGuard[int]:
    """Whether a value is a whole number from `least` to `most`. True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def as_wait(value: Duration, *, name: str) -> float:
    """A time to wait, in seconds. Refuses a negative one."""
    seconds = as_timedelta(value, name=name).total_seconds()
    if seconds < 0:
        raise InvalidOption(f"{name} {value} is negative", remedy="use 0 or more")
    return seconds


def as_interval(value: Duration, *, name: str) -> str:
    """Convert a duration to an interval of SQL; without days, which may have 23 or 25 hours there."""
    hours, rest = divmod(as_timedelta(value, name=name), timedelta(hours=1))
    return f"{hours} hours {rest.total_seconds():.6f} seconds"


DURATIONS = (
    "lease", "retry_initial", "retry_max", "retention", "dedup_window", "zero_subscription_retention", "max_retention",
    "dead_retention", "zombie_time", "heartbeat_interval", "heartbeat_timeout",
)  # fmt: skip
"""The options of topics that are durations."""


def as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options to JSON for the database, which checks their values."""
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
        remedy="give a number, a text, a duration, True or False",
    )
