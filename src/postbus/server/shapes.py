"""Bodies of requests, as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postbus._content import names
from postbus.options import OnFailure, Semantics, Storage, Tracking
from postbus.start import Mode, StartKind

NAME = f"^{names.NAME}$"
ID = "^[0-9]{1,19}$"

Id = Annotated[str, Meta(pattern=ID, description="An id, as a text: it has up to 64 bits.", examples=["4096"])]
Seconds = float | str
"""A duration: seconds, or a text such as "30s", "5 minutes" or "24h"."""


_LEASED = {"id": "4096", "token": "5f6a7b8c-0d1e-4f20-8a3b-4c5d6e7f8091"}


class RequestBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body of a request. Unknown fields are refused, because a misspelt option would do nothing."""

    EXAMPLE: ClassVar[dict[str, Any]] = {}


class NewMessage(RequestBody, kw_only=True):
    """A message to be pushed, with one of payload, text and base64."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "payload": {"order": 1},
        "key": "customer-7",
        "headers": {"tenant": "acme"},
        "dedup_key": "order-1",
    }

    payload: Annotated[
        msgspec.Raw | UnsetType, Meta(description="Any JSON; stored byte for byte.", examples=[{"order": 1}])
    ] = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    content_type: Annotated[str | None, Meta(description="What the bytes are. By default, the field decides.")] = None
    key: Annotated[
        str | None,
        Meta(description="Messages with the same key are handled one after the other.", examples=["customer-7"]),
    ] = None
    headers: dict[str, str] | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    delay: Annotated[Seconds | None, Meta(description="Deliver after this long.", examples=["30s"])] = None
    deliver_at: Annotated[datetime, Meta(tz=True)] | None = None
    dedup_key: Annotated[
        str | None, Meta(description="Pushing with it again, within the topic's window, only returns the first id.")
    ] = None
    correlation_id: str | None = None


class PopBody(RequestBody, kw_only=True):
    """Which messages to pop, and how long to wait for them."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"count": 10, "wait": 1, "lease": "30s"}

    group: Annotated[str | None, Meta(description="The group, of a PUB_SUB topic.", examples=[None])] = None
    count: Annotated[int, Meta(ge=1, description="The largest number of messages.")] = 1
    wait: Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for the first one.", examples=[0])] = 0.0
    lease: Annotated[
        Seconds | None,
        Meta(description="How long they are yours, unless you extend it. By default, as the topic says."),
    ] = None
    key: Annotated[str | None, Meta(description="Only messages of this key, of a PUB_SUB topic.")] = None
    auto_ack: Annotated[bool, Meta(description="Settle them at once: each is delivered at most once.")] = False
    mode: Annotated[
        Mode | None,
        Meta(description="Where a new group begins. By default, all."),
    ] = None
    timestamp: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="For mode timestamp: the time of the first messages."),
    ] = None
    message_id: Annotated[Id | None, Meta(description="For mode message, of one topic: the first message.")] = None
    look_back: Annotated[
        Seconds | None,
        Meta(description="For mode new: how long before now it begins. By default, 4 seconds.", examples=[None]),
    ] = None


class ScopePopBody(PopBody, kw_only=True):
    """The same for a group of all topics of a namespace, of a task, or whose names match a pattern."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"group": "audit", "pattern": "orders.*", "count": 10, "wait": 1}

    group: Annotated[str, Meta(pattern=NAME, description="The group.", examples=["audit"])]
    namespace: str | None = None
    task: str | None = None
    pattern: Annotated[
        str | None,
        Meta(description="Words with dots between them; * is one word, # any number.", examples=["orders.*"]),
    ] = None


class ScopeHeartbeat(RequestBody, kw_only=True):
    """A group, and the namespace, the task or the pattern that it is subscribed to."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"group": "audit", "pattern": "orders.*"}

    group: Annotated[str, Meta(pattern=NAME, description="The group.", examples=["audit"])]
    namespace: str | None = None
    task: str | None = None
    pattern: Annotated[str | None, Meta(examples=["orders.*"])] = None


class LeasedMessage(msgspec.Struct, kw_only=True):
    """A message that was popped: its id and its lease's token. Other fields are ignored."""

    id: Id
    token: Annotated[UUID, Meta(examples=["5f6a7b8c-0d1e-4f20-8a3b-4c5d6e7f8091"])]


LeasedMessages = Annotated[list[LeasedMessage], Meta(min_length=1)]


class SettleBody(RequestBody, kw_only=True):
    """Messages to be acked, or released."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"messages": [_LEASED]}

    messages: LeasedMessages


class RetryBody(RequestBody, kw_only=True):
    """Messages to be tried again."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "messages": [_LEASED],
        "delay": "1 minute",
        "error": "the printer is out of paper",
    }

    messages: LeasedMessages
    delay: Annotated[Seconds | None, Meta(description="Wait this long. By default, as the topic's policy says.")] = None
    error: str | None = None


class DeadLetterBody(RequestBody, kw_only=True):
    """Messages that become dead letters."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"messages": [_LEASED], "reason": "no such customer"}

    messages: LeasedMessages
    reason: Annotated[str, Meta(min_length=1, examples=["invalid address"])]
    error: str | None = None


class ExtendBody(RequestBody, kw_only=True):
    """Messages whose leases are extended, counted from now."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"messages": [_LEASED], "lease": "1 minute"}

    messages: LeasedMessages
    lease: Annotated[Seconds, Meta(examples=["30s"])]


class TopicMessages(RequestBody, kw_only=True):
    """Messages for one topic."""

    topic: Annotated[str, Meta(pattern=NAME, examples=["invoices"])]
    messages: Annotated[list[NewMessage], Meta(min_length=1)]


class TransactionBody(RequestBody, kw_only=True):
    """Acks and pushes that are committed together, or not at all."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "ack": [_LEASED],
        "push": [{"topic": "invoices", "messages": [{"payload": {"order": 1}}]}],
    }

    ack: list[LeasedMessage] = []
    push: list[TopicMessages] = []


class TopicSettings(RequestBody, kw_only=True, omit_defaults=True):
    """Options of a topic. Those that are left out stay, or have their defaults."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"max_attempts": 5, "lease": "1 minute"}

    semantics: Semantics | UnsetType = UNSET
    tracking: Tracking | UnsetType = UNSET
    lanes: int | Literal["named"] | UnsetType = UNSET
    storage: Storage | UnsetType = UNSET
    segment_size: int | UnsetType = UNSET
    zero_subscription_retention: Seconds | UnsetType = UNSET
    block_writes_on_zero_subscriptions: bool | UnsetType = UNSET
    max_retention: Seconds | UnsetType = UNSET
    dead_retention: Seconds | UnsetType = UNSET
    zombie_time: Seconds | UnsetType = UNSET
    heartbeat_interval: Seconds | UnsetType = UNSET
    heartbeat_timeout: Seconds | UnsetType = UNSET
    ordered: bool | UnsetType = UNSET
    lease: Seconds | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    retry_initial: Seconds | UnsetType = UNSET
    retry_factor: float | UnsetType = UNSET
    retry_max: Seconds | UnsetType = UNSET
    retry_jitter: float | UnsetType = UNSET
    retention: Seconds | UnsetType = UNSET
    dedup_window: Seconds | UnsetType = UNSET
    max_payload_bytes: int | UnsetType = UNSET
    namespace: str | UnsetType | None = UNSET
    task: str | UnsetType | None = UNSET
    notify: bool | UnsetType = UNSET


class HealthLimitsBody(RequestBody, kw_only=True, omit_defaults=True):
    """The limits beyond which a group is in trouble. "off" means no limit, null the next less specific one."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"lag_age": "10 minutes"}

    failed_share: Annotated[
        float | Literal["off"] | UnsetType | None,
        Meta(
            description="The share of calls in the last 5 minutes that failed, if these are 5 or more. By default, 0.5."
        ),
    ] = UNSET
    lag: Annotated[int | Literal["off"] | UnsetType | None, Meta(description="Messages before a group.")] = UNSET
    lag_age: Annotated[
        Seconds | UnsetType | None, Meta(description="The age of the oldest message before a group.")
    ] = UNSET
    stopped_for: Annotated[
        Seconds | UnsetType | None,
        Meta(description="How long a group may have no consumer after a planned stop. By default, 24 hours."),
    ] = UNSET


class NewTopic(RequestBody, kw_only=True):
    """A topic to be created."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"name": "orders", "options": {"semantics": "PUB_SUB", "retention": "7 days"}}

    name: Annotated[str, Meta(pattern=NAME, examples=["orders"])]
    options: TopicSettings = msgspec.field(default_factory=TopicSettings)


class LogPosition(RequestBody, kw_only=True):
    """A position in a log."""

    start: StartKind = "FROM_NOW"
    timestamp: Annotated[datetime, Meta(tz=True)] | None = None
    message_id: Id | None = None


class SubscribeBody(LogPosition, kw_only=True):
    """The position at which a new group starts. An existing group keeps its position."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"start": "FROM_BEGINNING"}

    on_failure: Annotated[OnFailure, Meta(description="The effect of a failing message on later ones of its key.")] = (
        "block"
    )


class SeekBody(LogPosition, kw_only=True):
    """The position to which a group is moved."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "start": "FROM_TIMESTAMP",
        "timestamp": "2030-01-31T18:00:00Z",
        "dry_run": True,
    }

    dry_run: bool = False
    confirm: Annotated[bool, Meta(description="Move the group. Without it, the group stays where it is.")] = False


class RedriveBody(RequestBody, kw_only=True):
    """The dead letters to put back. By default, all."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"reason_like": "timeout%", "rate": 10}

    ids: list[Id] | None = None
    group: str | None = None
    reason_like: Annotated[str | None, Meta(description="% stands for any text.")] = None
    died_after: Annotated[datetime, Meta(tz=True)] | None = None
    died_before: Annotated[datetime, Meta(tz=True)] | None = None
    key: str | None = None
    max_count: Annotated[int, Meta(ge=1)] | None = None
    rate: Annotated[float | None, Meta(description="Dead letters per second, to spread them.")] = None
    dry_run: bool = False


class PurgeDeadLettersBody(RequestBody, kw_only=True):
    """The dead letters to delete for good. By default, all."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"died_before": "2030-01-31T18:00:00Z"}

    ids: list[Id] | None = None
    group: str | None = None
    died_before: Annotated[datetime, Meta(tz=True)] | None = None
    dry_run: bool = False


class PurgeBody(RequestBody, kw_only=True):
    """Whether messages are deleted, or only counted."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"dry_run": True}

    dry_run: bool = False


class NewWebhook(RequestBody, kw_only=True):
    """A webhook to be created."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "name": "billing",
        "topic": "orders",
        "url": "https://billing.example.org/hook",
    }

    name: Annotated[str, Meta(examples=["billing"])]
    topic: Annotated[str, Meta(pattern=NAME, examples=["orders"])]
    group: str | None = None
    url: Annotated[str, Meta(examples=["https://billing.example.org/hook"])]
    secret: str | None = None
    concurrency: int = 4
    timeout: Seconds = 10.0
    enabled: bool = True


class WebhookSettings(RequestBody, kw_only=True):
    """Options of a webhook. Those that are left out stay."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"enabled": False}

    url: str | None = None
    secret: str | None = None
    concurrency: int | None = None
    timeout: Seconds | None = None
    enabled: bool | None = None
