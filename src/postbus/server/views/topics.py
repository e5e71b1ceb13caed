"""Answers about topics."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from postbus.options import Semantics, Storage, Tracking
from postbus.server.views.base import ListPage, View


class TopicView(View, kw_only=True):
    """A topic, with its options and what it holds."""

    name: str
    semantics: Semantics
    tracking: Tracking | None
    paused_at: datetime | None
    configured: bool
    created_at: datetime | None
    ordered: bool
    lease: float
    max_attempts: int
    retry_initial: float
    retry_factor: float
    retry_max: float
    retry_jitter: float
    retention: float
    dedup_window: float
    max_payload_bytes: int
    notify: bool
    lanes: int
    named_lanes: bool
    storage: Storage
    segment_size: int
    zero_subscription_retention: float
    block_writes_on_zero_subscriptions: bool
    max_retention: float
    dead_retention: float
    zombie_time: float
    heartbeat_interval: float
    heartbeat_timeout: float
    namespace: str | None
    task: str | None
    published: int | None
    groups: Annotated[int | None, Meta(description="Null if your token is limited to some groups.")]
    waiting: int
    delayed: int
    leased: int
    dead: Annotated[
        int | None, Meta(description="Null if your token is limited to some groups, and the topic is PUB_SUB.")
    ]
    oldest_at: datetime | None


class Topics(ListPage, kw_only=True):
    topics: list[TopicView]
