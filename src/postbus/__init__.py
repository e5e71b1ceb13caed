"""Transactional messaging inside PostgreSQL."""

from typing import TYPE_CHECKING, Any

from postbus._version import VERSION
from postbus.admin import Admin
from postbus.bus import Bus
from postbus.catch_up import CatchUp
from postbus.errors import (
    AccessDenied,
    CommitUnknown,
    DatabaseUnavailable,
    DuplicateHandler,
    EmbeddedError,
    GroupNotFound,
    InvalidEvent,
    InvalidGroup,
    InvalidHandler,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    InvalidTopicName,
    LeaseLost,
    MessageInHand,
    MessageNotFound,
    NoActiveSubscriptions,
    NotAllowed,
    NotAuthenticated,
    NotCommitted,
    NotServed,
    PayloadNotDecodable,
    PayloadNotSerializable,
    PayloadTooDeep,
    PayloadTooLarge,
    PostbusError,
    RequestTooLarge,
    RestoredElsewhere,
    RouteNotFound,
    SchemaError,
    SchemaMissing,
    SchemaNotTrusted,
    SchemaTooNew,
    SchemaTooOld,
    SinkUnavailable,
    TokenNotFound,
    TooManyRequests,
    TopicExists,
    TopicNotEmpty,
    TopicNotFound,
    TransactionEnded,
    TransactionInUse,
    UnreadableEvent,
    WebhookExists,
    WebhookNotFound,
    WrongSemantics,
)
from postbus.events import Registry
from postbus.group import Group
from postbus.health import GroupFinding
from postbus.inbox import Inbox, RedisInbox
from postbus.message import Ack, DeadLetter, Message, Outcome, Outgoing, PublishOptions, Release, Retry
from postbus.middleware import Middleware
from postbus.options import TopicOptions
from postbus.pull import Delivery, PopOptions, Popped
from postbus.retry import RetryPolicy
from postbus.scope import Heartbeat
from postbus.start import Start

if TYPE_CHECKING:
    from postbus.http_client import HttpBus as HttpBus
else:

    def __getattr__(name: str) -> Any:
        """Import `HttpBus` at its first use, because it needs httpx. So it is not in `__all__` either."""
        if name != "HttpBus":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from postbus.http_client import HttpBus

        return HttpBus


__version__ = VERSION

__all__ = [
    "AccessDenied",
    "Ack",
    "Admin",
    "Bus",
    "CatchUp",
    "CommitUnknown",
    "DatabaseUnavailable",
    "DeadLetter",
    "Delivery",
    "DuplicateHandler",
    "EmbeddedError",
    "Group",
    "GroupFinding",
    "GroupNotFound",
    "Heartbeat",
    "Inbox",
    "InvalidEvent",
    "InvalidGroup",
    "InvalidHandler",
    "InvalidInput",
    "InvalidOption",
    "InvalidPayload",
    "InvalidTopicName",
    "LeaseLost",
    "Message",
    "MessageInHand",
    "MessageNotFound",
    "Middleware",
    "NoActiveSubscriptions",
    "NotAllowed",
    "NotAuthenticated",
    "NotCommitted",
    "NotServed",
    "Outcome",
    "Outgoing",
    "PayloadNotDecodable",
    "PayloadNotSerializable",
    "PayloadTooDeep",
    "PayloadTooLarge",
    "PopOptions",
    "Popped",
    "PostbusError",
    "PublishOptions",
    "RedisInbox",
    "Registry",
    "Release",
    "RequestTooLarge",
    "RestoredElsewhere",
    "Retry",
    "RetryPolicy",
    "RouteNotFound",
    "SchemaError",
    "SchemaMissing",
    "SchemaNotTrusted",
    "SchemaTooNew",
    "SchemaTooOld",
    "SinkUnavailable",
    "Start",
    "TokenNotFound",
    "TooManyRequests",
    "TopicExists",
    "TopicNotEmpty",
    "TopicNotFound",
    "TopicOptions",
    "TransactionEnded",
    "TransactionInUse",
    "UnreadableEvent",
    "WebhookExists",
    "WebhookNotFound",
    "WrongSemantics",
]
