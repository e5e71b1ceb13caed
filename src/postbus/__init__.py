"""Transactional messaging inside PostgreSQL."""

from importlib.metadata import version as _version

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
    PayloadNotDecodable,
    PayloadNotSerializable,
    PayloadTooDeep,
    PayloadTooLarge,
    PostbusError,
    RestoredElsewhere,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    SinkUnavailable,
    TopicExists,
    TopicNotEmpty,
    TopicNotFound,
    TransactionInUse,
    UnreadableEvent,
    WrongSemantics,
)
from postbus.group import Group
from postbus.message import Ack, DeadLetter, Message, Outcome, Outgoing, PublishOptions, Release, Retry
from postbus.middleware import Middleware
from postbus.options import TopicOptions
from postbus.pull import Delivery, PopOptions, Popped
from postbus.retry import RetryPolicy
from postbus.start import Start

__version__ = _version("postbus")

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
    "GroupNotFound",
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
    "Release",
    "RestoredElsewhere",
    "Retry",
    "RetryPolicy",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SchemaTooOld",
    "SinkUnavailable",
    "Start",
    "TopicExists",
    "TopicNotEmpty",
    "TopicNotFound",
    "TopicOptions",
    "TransactionInUse",
    "UnreadableEvent",
    "WrongSemantics",
]
