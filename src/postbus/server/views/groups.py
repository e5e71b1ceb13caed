"""Answers about groups and their catch-ups."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

from msgspec import Meta

from postbus.options import OnFailure
from postbus.results.groups import CatchUpReason, CatchUpStatus, GroupState
from postbus.server.shapes import Id
from postbus.server.views.base import ListPage, View
from postbus.start import StartKind


class GroupView(View, kw_only=True):
    """A group of a topic, with lag and state."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("sink_error",)
    topic: str
    group_name: str
    subscription_id: Id
    state: GroupState
    start: StartKind
    on_failure: OnFailure
    subscribed_at: datetime
    state_changed_at: datetime | None
    seen_at: datetime | None
    lanes: int
    lanes_held: int
    workers: list[str]
    members: list[str]
    processed: int
    failed: int
    filtered: int
    in_flight: int
    passed: int | None
    retrying: int
    parked: int
    dead: int
    lost: int
    lag: int | None
    lag_seconds: float | None
    pending: int | None
    catch_up: CatchUpStatus | None
    recently_handled: Annotated[int, Meta(description="Calls in the last 5 minutes that ended well.")]
    recently_failed: int
    healthy: bool | None
    problem: str | None
    stopped_at: Annotated[datetime | None, Meta(description="If it was stopped as planned: the time.")]
    stopped_by: Annotated[str | None, Meta(description="The consumer that stopped last.")]
    sink: Annotated[str | None, Meta(description="The sink, if it relays to one that is away.")]
    sink_away_since: datetime | None
    sink_error: str | None


class Groups(ListPage, kw_only=True):
    groups: list[GroupView]


class SubscribedGroup(View, kw_only=True):
    subscription_id: Id
    state: GroupState
    is_new: bool
    missed: int | None
    skipped: int | None


class CatchUpView(View, kw_only=True):
    """The catch-up of a group."""

    topic: str
    group_name: str
    reason: CatchUpReason
    status: CatchUpStatus
    total: int
    processed: int
    skipped: int
    started_at: datetime
    ended_at: datetime | None
    rate: float | None
    eta: datetime | None


class CatchUps(ListPage, kw_only=True):
    catch_ups: list[CatchUpView]
