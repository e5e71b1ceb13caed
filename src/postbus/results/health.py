"""Results about health, sweeping and retention."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from postbus.health import GroupFinding


class SweepHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether sweeping keeps up, and what is left over."""

    healthy: bool
    reason: str | None
    """Why it is not healthy."""
    backlog: int
    finished_rows: int
    finished_messages: int
    partitions: int
    """Partitions of the log that are due to be dropped."""
    partition_messages: int
    published_rate: float | None
    """Messages per second."""
    swept_rate: float | None
    processes: int
    """Processes that sweep."""


class SweepJob(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one job of sweeping, in all processes."""

    job: str
    runs: int
    started_at: datetime | None
    took: timedelta | None
    removed: int | None
    """By the last run."""
    removed_total: int
    failed_at: datetime | None
    error: str | None


class SweepReport(SweepHealth, frozen=True, kw_only=True):
    """Whether sweeping keeps up, and what each job has done."""

    jobs: list[SweepJob]


class SweepSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How all processes sweep: see `SweepingOptions`."""

    interval: timedelta
    batch_size: int
    detection_interval: timedelta
    heartbeat_timeout: timedelta
    subscription_retention: timedelta
    audit_retention: timedelta


class SweepCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of what one run of all jobs removed."""

    messages_returned: int
    finished_rows: int
    dedup_keys: int
    inbox_records: int
    groups_died: int
    partitions: int
    thinned: int
    subscriptions: int


class SystemHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether somebody should look at the groups, or at sweeping."""

    healthy: bool
    """False if a finding is a warning, or if sweeping falls behind."""
    findings: list[GroupFinding]
    sweeping: SweepHealth


class GroupHealthLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits beyond which groups are in trouble: see `HealthLimits`. None where there is no limit."""

    failed_share: float | None
    lag: int | None
    lag_age: timedelta | None
    stopped_for: timedelta | None


class GroupNearTimeout(msgspec.Struct, frozen=True, kw_only=True):
    """A group that will soon be DEAD."""

    topic: str
    group_name: str
    heartbeat_age: timedelta
    heartbeat_timeout: timedelta


class StuckMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a topic that live groups have not settled for long."""

    topic: str
    groups: list[str]
    messages: int
    oldest_at: datetime


class UnclaimedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a topic that no group was ever required for, nor has settled."""

    topic: str
    messages: int
    oldest_at: datetime


class Inconsistency(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a group that do not fit together: a bug of Postbus."""

    kind: Literal["subscription", "lane", "cursor", "deferred", "catch-up"]
    topic: str | None
    group_name: str | None
    subscription_id: int
    explanation: str
