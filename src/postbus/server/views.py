"""What the server answers, as JSON. Ids are texts, since they have up to 64 bits; durations are seconds."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postbus._content.codec import holds_json
from postbus._content.content_types import is_text
from postbus.server.shapes import Id

V = TypeVar("V", bound=msgspec.Struct)


class View(msgspec.Struct, kw_only=True):
    """The root of all answers."""

    WRITTEN: ClassVar[tuple[str, ...]] = ()
    """Fields that hold what publishers and handlers have written: null for callers without payloads."""


class Problem(View, kw_only=True):
    """What went wrong, as RFC 9457 has it, with the code that SQL and Python have for it too."""

    type: Annotated[str, Meta(examples=["urn:postbus:PB404"])]
    title: str
    status: int
    detail: str
    code: Annotated[str, Meta(examples=["PB404"])]
    remedy: str


class Payload(View, kw_only=True):
    """A payload, in one of three fields: JSON, text, or base64 for all other bytes."""

    content_type: str | None
    payload: Annotated[msgspec.Raw | UnsetType, Meta(description="Where the payload is JSON.")] = UNSET
    text: Annotated[str | UnsetType, Meta(description="Where its content type is text/…, and it is UTF-8.")] = UNSET
    base64: Annotated[str | UnsetType, Meta(description="Otherwise.")] = UNSET


class MessageView(Payload, kw_only=True):
    """What a message is."""

    id: Id
    event_id: Annotated[str | None, Meta(description="Its identity, on every path and at every delivery.")]
    topic: str
    key: str | None
    headers: dict[str, str]
    correlation_id: str | None
    published_at: datetime


class Looked(MessageView, kw_only=True):
    """A message as those see it who only look."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("key", "correlation_id", "content_type")
    withheld: Annotated[
        bool | UnsetType,
        Meta(
            description="True if your token is without payloads: payload, headers, key, correlation_id, content_type, "
            "errors and reasons are left out, and event_id where it is one of the headers."
        ),
    ] = UNSET


class Delivered(MessageView, kw_only=True):
    """A message that is yours until its lease ends."""

    event_id: Annotated[str, Meta(description="Its identity, on every path and at every delivery.")]
    content_type: str
    token: Annotated[str | None, Meta(description="Settles it; null with auto_ack.")]
    lease_ends_at: datetime | None
    attempt: int
    priority: int
    source: Annotated[str, Meta(description="The identity of the database.")]


class Popped(View, kw_only=True):
    messages: list[Delivered]


class Alive(View, kw_only=True):
    """How a group stands in a topic."""

    topic: str
    state: Annotated[str, Meta(description="ACTIVE, unless the group is PAUSED.", examples=["ACTIVE"])]
    missed: Annotated[int | None, Meta(description="If it was DEAD: the messages that it had before it.")]
    skipped: Annotated[int | None, Meta(description="Of these, the messages that it will not get.")]


class Heartbeats(View, kw_only=True):
    topics: list[Alive]


class Pushed(View, kw_only=True):
    ids: Annotated[list[str], Meta(examples=[["4096"]])]


class Settled(View, kw_only=True):
    settled: Annotated[int, Meta(description="Messages that this was done to.")]
    lost: Annotated[list[str], Meta(description="Those that are not yours any more: nothing was done to them.")]


class Retried(Settled, kw_only=True):
    dead: Annotated[list[str], Meta(description="Those whose attempts are used up: they are dead letters now.")]


class Committed(View, kw_only=True):
    acked: int
    pushed: Annotated[list[Pushed], Meta(description="In the order of push.")]


class Count(View, kw_only=True):
    count: int
    dry_run: bool


class Browsed(Looked, kw_only=True):
    """A message that is still there, and where."""

    WRITTEN: ClassVar[tuple[str, ...]] = (*Looked.WRITTEN, "last_error")
    state: Annotated[str | UnsetType, Meta(description="Of a QUEUE: where it is.")] = UNSET
    at: Annotated[datetime | UnsetType | None, Meta(description="Due, lease ends, finished or died.")] = UNSET
    attempts: int | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    member: Annotated[str | UnsetType | None, Meta(description="Who has it, or had it.")] = UNSET
    last_error: str | UnsetType | None = UNSET
    lane: Annotated[int | UnsetType | None, Meta(description="Of a PUB_SUB topic.")] = UNSET


class Listed(View, kw_only=True):
    """A page of a list."""

    next: Annotated[str | None, Meta(description="Leads to the next page, as cursor. null: there is none.")] = None


class Messages(Listed, kw_only=True):
    messages: list[Browsed]


class DeliveryView(View, kw_only=True):
    """What became of a message at a group."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("last_error",)
    group_name: str
    status: str
    required: bool
    settled_at: datetime | None
    worker: str | None
    attempts: int | None
    last_error: str | None
    holder: str | None


class Story(Browsed, kw_only=True):
    """A message with all that happened to it."""

    required: list[str] | UnsetType = UNSET
    completed: list[str] | UnsetType = UNSET
    status: str | UnsetType = UNSET
    settled_at: datetime | UnsetType | None = UNSET
    retained: bool | UnsetType = UNSET
    deliveries: list[DeliveryView] | UnsetType = UNSET


class DeadLetterView(Looked, kw_only=True):
    """A message that was given up."""

    WRITTEN: ClassVar[tuple[str, ...]] = (*Looked.WRITTEN, "reason", "last_error")
    group_name: str | None
    died_at: datetime
    reason: str | None
    last_error: str | None
    attempts: int
    priority: int


class DeadLetters(Listed, kw_only=True):
    dead_letters: list[DeadLetterView]


class TopicView(View, kw_only=True):
    """A topic, with its options and what it holds."""

    name: str
    semantics: str
    tracking: str | None
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
    storage: str
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


class Topics(Listed, kw_only=True):
    topics: list[TopicView]


class GroupView(View, kw_only=True):
    """A group of a topic, with lag and state."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("sink_error",)
    topic: str
    group_name: str
    subscription_id: Id
    state: str
    start: str
    on_failure: str
    subscribed_at: datetime
    state_changed_at: datetime | None
    seen_at: datetime | None
    lanes: int
    lanes_held: int
    workers: list[str] | None
    members: list[str] | None
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
    catch_up: str | None
    recently_handled: Annotated[int, Meta(description="Calls in the last 5 minutes that ended well.")]
    recently_failed: int
    healthy: bool | None
    problem: str | None
    stopped_at: Annotated[datetime | None, Meta(description="If it was stopped as planned: since when.")]
    stopped_by: Annotated[str | None, Meta(description="Which consumer stopped it, the last one.")]
    sink: Annotated[str | None, Meta(description="If it relays to a sink that is away: which one.")]
    sink_away_since: datetime | None
    sink_error: str | None


class GroupFinding(View, kw_only=True):
    """Something that somebody should know of a group."""

    kind: str
    level: Annotated[str, Meta(description="warning, or info for what is as it should be.")]
    topic: str | None
    group: str | None
    text: str
    remedy: str


class SweepHealth(View, kw_only=True):
    """Whether what is no longer needed is removed in time."""

    healthy: bool
    reason: str | None
    backlog: int
    processes: int


class SystemHealth(View, kw_only=True):
    """Whether somebody should look: healthy is false if there is a warning, or if sweeping falls behind."""

    healthy: bool
    findings: list[GroupFinding]
    sweeping: Annotated[SweepHealth | None, Meta(description="For callers who may see all topics and groups.")]


class HealthLimits(View, kw_only=True):
    """From when on groups count as being in trouble; null where there is no limit."""

    failed_share: float | None
    lag: int | None
    lag_age: float | None
    stopped_for: float | None


class Groups(Listed, kw_only=True):
    groups: list[GroupView]


class GroupMetrics(View, kw_only=True):
    """What a group has done, how fast it is, and what is before it."""

    processed: int
    failed: int
    filtered: int
    in_flight: int
    handling_ms: float | None
    rate: float
    lag: int
    pending: int
    oldest_pending_at: datetime | None


class Subscribed(View, kw_only=True):
    subscription_id: Id
    state: str
    is_new: bool
    missed: int | None
    skipped: int | None


class Removed(View, kw_only=True):
    removed: bool
    held: Annotated[int, Meta(description="Lanes that processes still held.")]


class Resurrected(View, kw_only=True):
    missed: int
    skipped: int


class CatchUpView(View, kw_only=True):
    """History that a group works through."""

    topic: str
    group_name: str
    reason: str
    status: str
    total: int
    processed: int
    skipped: int
    started_at: datetime
    ended_at: datetime | None
    rate: float | None
    eta: datetime | None


class CatchUps(Listed, kw_only=True):
    catch_ups: list[CatchUpView]


class WebhookView(View, kw_only=True):
    """A webhook, without its secret."""

    name: str
    topic: str
    group_name: str | None
    url: str
    concurrency: int
    timeout: float
    enabled: bool
    created_at: datetime
    changed_at: datetime


class CreatedWebhook(WebhookView, kw_only=True):
    """A webhook with its secret, which is told once."""

    secret: str


class Webhooks(Listed, kw_only=True):
    webhooks: list[WebhookView]


class TokenView(View, kw_only=True):
    """A token, without its secret."""

    id: str
    name: str
    roles: list[str]
    topics: list[str]
    groups: list[str]
    payloads: bool
    state: Annotated[str, Meta(description="valid, revoked or expired.")]
    created_at: datetime
    created_by: Annotated[
        str | None, Meta(description="The database user who made it, and for whom; null if nobody noted that.")
    ]
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: Annotated[datetime | None, Meta(description="To the minute or so; null if it never was.")]


class Tokens(Listed, kw_only=True):
    tokens: list[TokenView]


class AuditEntryView(View, kw_only=True):
    """Something that somebody did to a topic, a group, a token or a setting."""

    id: Id
    at: datetime
    login: Annotated[str, Meta(description="The user who logged in to the database.")]
    role: Annotated[str | None, Meta(description="The role that this session had taken.")]
    actor: Annotated[str | None, Meta(description="Who acted, as told by whoever has the login.")]
    program: str | None
    address: str | None
    action: Annotated[str, Meta(examples=["topic.set"])]
    topic: str | None
    group_name: str | None
    target: Annotated[str | None, Meta(description="What else it was done to: a token, a webhook, a scope.")]
    affected: Annotated[int | None, Meta(description="Messages, or rows.")]
    given: Annotated[dict[str, Any] | None, Meta(description="What these were chosen by.")]
    before: Annotated[dict[str, Any] | None, Meta(description="Of what was changed.")]
    after: dict[str, Any] | None


class AuditEntries(View, kw_only=True):
    entries: list[AuditEntryView]


class Welcome(msgspec.Struct):
    """What somebody finds who opens the address in a browser."""

    name: str
    docs: str
    openapi: str
    ready: str


class Health(View, kw_only=True):
    status: str


_IDS = ("id", "subscription_id")


def view(kind: type[V], row: Mapping[str, Any]) -> V:
    """A row as one of these answers."""
    plain = {name: str(value) if name in _IDS else _plain(value) for name, value in row.items()}
    if issubclass(kind, MessageView):
        plain["headers"] = headers_of(row["headers"])
        plain.pop("payload", None)
        return msgspec.structs.replace(msgspec.convert(plain, kind), **payload_of(row["payload"], row["content_type"]))
    return msgspec.convert(plain, kind)


def payload_of(payload: bytes, content_type: str) -> dict[str, Any]:
    """A payload's field: JSON goes out byte for byte, text as it was pushed."""
    if holds_json(payload, content_type):
        return {"payload": msgspec.Raw(payload)}
    if is_text(content_type):
        with contextlib.suppress(UnicodeDecodeError):
            return {"text": payload.decode()}
    return {"base64": base64.b64encode(payload).decode()}


def headers_of(headers: Any) -> dict[str, str]:
    return json.loads(headers) if isinstance(headers, str) else dict(headers or {})


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [{key: _plain(one) for key, one in item.items()} if isinstance(item, dict) else item for item in value]
    return value
