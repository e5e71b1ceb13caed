"""Answers about health."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from postbus.health import GroupFinding
from postbus.server.views.base import View


class SweepHealthView(View, kw_only=True):
    """Whether sweeping removes in time what is no longer needed."""

    healthy: bool
    reason: str | None
    backlog: int
    processes: int


class SystemHealthView(View, kw_only=True):
    """Problems that need attention. healthy is false if there is a warning, or if sweeping falls behind."""

    healthy: bool
    findings: list[GroupFinding]
    sweeping: Annotated[SweepHealthView | None, Meta(description="For callers who may see all topics and groups.")]


class HealthLimitsView(View, kw_only=True):
    """The limits beyond which a group is in trouble. Null means no limit."""

    failed_share: float | None
    lag: int | None
    lag_age: float | None
    stopped_for: float | None
