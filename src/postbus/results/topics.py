"""Results about topics and the processes that serve them."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from postbus.options import Semantics, Storage, Tracking


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, with its options and what it holds."""

    name: str
    semantics: Semantics
    ordered: bool
    paused_at: datetime | None
    lease: timedelta
    max_attempts: int
    retry_initial: timedelta
    retry_factor: float
    retry_max: timedelta
    retry_jitter: float
    retention: timedelta
    dedup_window: timedelta
    max_payload_bytes: int
    notify: bool
    configured: bool
    """False for an undeclared topic, which has the default options."""
    created_at: datetime | None
    tracking: Tracking | None
    lanes: int
    storage: Storage
    segment_size: int
    zero_subscription_retention: timedelta
    block_writes_on_zero_subscriptions: bool
    max_retention: timedelta
    zombie_time: timedelta
    heartbeat_interval: timedelta
    heartbeat_timeout: timedelta
    published: int | None
    """Messages of a PUB_SUB topic since it was created, as counted by the last sweep."""
    groups: int
    waiting: int
    """Messages of a QUEUE that can be claimed now."""
    delayed: int
    leased: int
    dead: int
    oldest_at: datetime | None
    """When the oldest waiting message was published."""
    named_lanes: bool
    namespace: str | None
    task: str | None
    dead_retention: timedelta

    @property
    def in_queue(self) -> int:
        """Messages of a QUEUE that are not done; of a PUB_SUB topic, those that are left of its former queue."""
        return self.waiting + self.delayed + self.leased


class QueueBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """Messages left in the queue of a topic that becomes PUB_SUB."""

    waiting: int
    retrying: int
    leased: int
    scheduled: int
    """Messages published with a delay: they stay with the queue's consumers, or go to the first group."""
    prioritised: int


class MoveProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a topic that becomes PUB_SUB, and what it still waits for."""

    topic: str
    waiting: int
    retrying: int
    leased: int
    scheduled: int
    transactions: int
    """Open transactions that may still publish to the queue."""
    ended_at: datetime | None
    """When the groups began to receive; None while they wait."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A process that consumes."""

    name: str
    host: str
    pid: int
    topics: list[str]
    started_at: datetime
    seen_at: datetime
    silent_for: timedelta
    """The time since the last heartbeat."""
    is_alive: bool


class SinkAway(msgspec.Struct, frozen=True, kw_only=True):
    """A sink that a relay cannot reach."""

    topic: str
    group_name: str | None
    """None for a QUEUE."""
    process: str
    sink: str
    since: datetime
    told_at: datetime
    """When the relay last reported it."""
    error: str
