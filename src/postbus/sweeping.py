"""How sweeping is set: for all processes, in the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from postbus.options import Duration, as_interval

PRESETS = ("default", "low_throughput", "high_throughput", "critical")


class SweepingOptions(TypedDict, total=False):
    """Options of sweeping. An option that is left out stays as it is."""

    interval: Duration
    """How often finished messages, and parts of the log that nobody needs, are looked for (5 minutes)."""
    batch_size: int
    """Rows that are removed at a time (10,000)."""
    detection_interval: Duration
    """How often groups without heartbeats are looked for, at least five times per heartbeat_timeout (1 minute)."""
    heartbeat_timeout: Duration
    """The default of new topics: how long without a heartbeat makes a group DEAD (300 seconds)."""
    subscription_retention: Duration
    """How long DEAD and CANCELLED subscriptions are kept (30 days)."""
    audit_retention: Duration
    """How long entries of the audit log are kept (90 days), at least 30 days. No preset changes it."""


DURATIONS = tuple(name for name in SweepingOptions.__annotations__ if name != "batch_size")


def sweeping_json(preset: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the database takes them. What they mean is checked there."""
    chosen = {name: _plain(name, value) for name, value in options.items()}
    return chosen if preset is None else {"preset": preset, **chosen}


def _plain(name: str, value: Any) -> Any:
    if value is None or name not in DURATIONS:
        return value
    return as_interval(value, name=name)
