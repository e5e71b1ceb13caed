"""The settings of sweeping, which the database keeps for all processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, get_args

from postbus.options import Duration, as_interval

SweepingPreset = Literal["default", "low_throughput", "high_throughput", "critical"]
PRESETS: tuple[SweepingPreset, ...] = get_args(SweepingPreset)


class SweepingOptions(TypedDict, total=False):
    """Settings of sweeping. Those that are omitted stay as they are."""

    interval: Duration
    """The time between two sweeps for finished messages and unneeded parts of the log (5 minutes)."""
    batch_size: int
    """The number of rows that are removed at a time (10,000)."""
    detection_interval: Duration
    """The time between two searches for groups without heartbeats, at most a fifth of heartbeat_timeout (1 minute)."""
    heartbeat_timeout: Duration
    """The default of new topics for how long a group may lack a heartbeat before it is DEAD (300 seconds)."""
    subscription_retention: Duration
    """How long DEAD and CANCELLED subscriptions are kept (30 days)."""
    audit_retention: Duration
    """How long entries of the audit log are kept, at least 30 days (90 days). No preset changes it."""


DURATIONS = tuple(name for name in SweepingOptions.__annotations__ if name != "batch_size")


def sweeping_json(preset: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings to JSON for the database, which checks their values."""
    chosen = {name: _plain(name, value) for name, value in options.items()}
    return chosen if preset is None else {"preset": preset, **chosen}


def _plain(name: str, value: Any) -> Any:
    if value is None or name not in DURATIONS:
        return value
    return as_interval(value, name=name)
