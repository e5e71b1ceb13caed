"""Results about groups, their history and their scopes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from postbus.options import OnFailure
from postbus.start import Mode, StartKind

GroupState = Literal["ACTIVE", "PAUSED", "DEAD", "CANCELLED"]
CatchUpStatus = Literal["IN_PROGRESS", "COMPLETED", "CANCELLED"]
CatchUpReason = Literal["start", "resurrection"]
ProblemKind = Literal["waits", "stopped", "dead", "silent", "sink", "failing", "stuck", "behind"]


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group's subscription to a topic, with its lag and state."""

    topic: str
    group_name: str
    subscription_id: int
    state: GroupState
    start: StartKind
    start_at: datetime | None
    start_id: int | None
    on_failure: OnFailure
    subscribed_at: datetime
    state_changed_at: datetime | None
    seen_at: datetime
    """The last heartbeat of any of its processes."""
    lanes: int
    lanes_held: int
    workers: list[str]
    """Processes that hold lanes of the group."""
    progressed_at: datetime | None
    processed: int
    failed: int
    filtered: int
    in_flight: int
    members: list[str]
    passed: int | None
    """Messages that its cursors have passed."""
    retrying: int
    parked: int
    dead: int
    lost: int
    """Messages that retention dropped before the group received them."""
    lag: int | None
    """Messages before the group, as counted by the last sweep."""
    lag_seconds: float | None
    """The age of the oldest message before the group."""
    heartbeat_timeout: timedelta
    heartbeat_age: float
    """Seconds since the last heartbeat."""
    heartbeats_missed: int
    catch_up: CatchUpStatus | None
    """The status of its latest catch-up."""
    catch_up_lag: int | None
    pending: int | None
    """All that is left to do: messages before it, in its history, and to be tried again."""
    oldest_pending_at: datetime | None
    healthy: bool | None
    """None for a CANCELLED group."""
    problem: str | None
    waits_for_queue: bool
    """The group waits for what is left in the queue that its topic was."""
    keys: list[str] | None
    """The keys that the subscription is limited to; None for all."""
    scope_id: int | None
    stopped_at: datetime | None
    """When its last consumer stopped as planned."""
    stopped_by: str | None
    lost_at: datetime | None
    recently_handled: int
    """Calls of the last five minutes that succeeded."""
    recently_failed: int
    problem_kind: ProblemKind | None
    sink: str | None
    """The sink that it relays to, while that is away."""
    sink_away_since: datetime | None
    sink_error: str | None


class MemberInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a member of a group, in all processes."""

    topic: str
    group_name: str
    name: str
    processed: int
    failed: int
    filtered: int
    in_flight: int
    seen_at: datetime
    handling_ms: float | None
    """The average time that its handler takes for a message."""


class GroupMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a group, its speed, and its backlog."""

    processed: int
    failed: int
    filtered: int
    in_flight: int
    handling_ms: Annotated[float | None, Meta(description="The average time that handlers take for a message.")]
    rate: Annotated[float, Meta(description="Messages per second in the last minute.")]
    lag: int
    pending: int
    oldest_pending_at: datetime | None


class RemovedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of removing a group."""

    removed: Annotated[bool, Meta(description="False while a transaction is open in one of its lanes.")]
    held: Annotated[int, Meta(description="Lanes that processes still held.")]


class Resurrection(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a group missed while it was DEAD."""

    missed: int
    skipped: Annotated[int, Meta(description="Messages that it will not receive.")]


class CatchUpInfo(msgspec.Struct, frozen=True, kw_only=True):
    """History that a group works through, or has worked through."""

    topic: str
    group_name: str
    group_subscription_id: int
    subscription_id: int
    """The history has a subscription of its own."""
    reason: CatchUpReason
    status: CatchUpStatus
    total: int
    processed: int
    skipped: int
    started_at: datetime
    ended_at: datetime | None
    rate: float | None
    """Messages per second in the last ten seconds."""
    eta: datetime | None
    """When it ends at this rate."""
    allowed_rate: float | None
    p95: timedelta | None
    """The 95th percentile of its statements, in the process that reads it."""


class ScopeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded scope of a group: what it subscribed to, and where it starts in topics that join."""

    group_name: str
    topic: str | None
    key: str | None
    namespace: str | None
    task: str | None
    pattern: str | None
    mode: Mode
    start_at: datetime | None
    recorded_at: datetime
    on_failure: OnFailure
    catch_up: dict[str, Any]
    topics: list[str]
    """The topics that are in it now."""
    start_id: int | None
