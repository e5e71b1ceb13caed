"""The errors of Postbus, grouped by what the caller can do about them.

    PostbusError
    ├── InvalidInput                 the call is wrong: change it
    │   ├── InvalidTopicName
    │   ├── InvalidOption            an option's value, or a combination of them
    │   ├── InvalidPayload
    │   │   ├── PayloadTooLarge
    │   │   ├── PayloadTooDeep
    │   │   ├── PayloadNotSerializable
    │   │   └── InvalidEvent         an event that the registry does not know, or that breaks its own rules
    │   ├── InvalidHandler
    │   │   └── DuplicateHandler
    │   ├── TopicNotFound
    │   ├── TopicExists
    │   ├── TopicNotEmpty
    │   ├── MessageNotFound
    │   ├── GroupNotFound
    │   ├── InvalidGroup             a group without members, or in a state that does not allow the call
    │   ├── WrongSemantics           a QUEUE where a PUB_SUB topic is needed
    │   ├── TokenNotFound
    │   ├── WebhookNotFound
    │   ├── WebhookExists
    │   ├── NoActiveSubscriptions    the topic blocks writes while nobody is subscribed
    │   ├── TransactionInUse         the call needs a transaction of its own
    │   └── TransactionEnded         a handler or block ended the transaction that Postbus gave it
    ├── LeaseLost                    another consumer has the message now: discard what you did
    ├── MessageInHand                another process has the message: try again later
    ├── PayloadNotDecodable          a stored payload does not fit the handler's type
    │   └── UnreadableEvent          a message is not an event that the registry knows
    ├── SchemaError                  the database needs another schema: migrate, or upgrade Postbus
    │   ├── SchemaMissing
    │   ├── SchemaTooOld
    │   ├── SchemaTooNew
    │   ├── SchemaNotTrusted         the schema, or an object in it, belongs to a stranger
    │   └── RestoredElsewhere        the database was restored into another server: rebase it
    ├── AccessDenied                 the database refused the user or the right
    ├── DatabaseUnavailable          the database is away: try again (the only error that loops retry)
    ├── NotServed                    the HTTP server refuses the request
    │   ├── NotAuthenticated
    │   ├── NotAllowed               the token lacks the role, the topic or the group
    │   ├── TooManyRequests
    │   ├── RequestTooLarge
    │   └── RouteNotFound
    ├── CommitUnknown                the connection broke during COMMIT: check whether it happened
    ├── NotCommitted                 the server answered COMMIT with ROLLBACK: nothing has changed
    ├── EmbeddedError                the embedded PostgreSQL cannot run
    └── SinkUnavailable              the sink of a relay is away: the relay waits for it

Errors that the database raises carry an SQLSTATE of class PB; `from_database` turns them into these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class PostbusError(Exception):
    """The root of all errors of Postbus. `remedy` says what to do; `code` is stable, for programs."""

    code: ClassVar[str] = "PB000"

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class InvalidInput(PostbusError):
    """The call cannot succeed as it is."""

    code = "PB400"


class InvalidTopicName(InvalidInput):
    """A topic name that breaks the naming rules."""

    code = "PB401"


class InvalidOption(InvalidInput):
    """An option has a value, or a combination of values, that makes no sense."""

    code = "PB402"


class InvalidPayload(InvalidInput):
    """A payload that cannot be published."""

    code = "PB410"


class PayloadTooLarge(InvalidPayload):
    """The payload has more bytes than the topic accepts."""

    code = "PB411"


class PayloadTooDeep(InvalidPayload):
    """The payload is nested deeper than Postbus accepts."""

    code = "PB412"


class PayloadNotSerializable(InvalidPayload):
    """The payload holds something that JSON cannot express."""

    code = "PB413"


class InvalidEvent(InvalidPayload):
    """An event that the registry does not know, or whose payload is not what its class declares."""

    code = "PB414"


class InvalidHandler(InvalidInput):
    """A handler whose signature or options do not fit."""

    code = "PB420"


class DuplicateHandler(InvalidHandler):
    """A topic, or a group's member, has a handler already in this process."""

    code = "PB421"


class TopicNotFound(InvalidInput):
    """No topic has this name."""

    code = "PB404"


class TopicExists(InvalidInput):
    """A topic of this name exists already."""

    code = "PB409"


class TopicNotEmpty(InvalidInput):
    """The topic still holds messages."""

    code = "PB408"


class MessageNotFound(InvalidInput):
    """The message does not exist, or no longer."""

    code = "PB405"


class GroupNotFound(InvalidInput):
    """The group has no subscription to the topic."""

    code = "PB406"


class TokenNotFound(InvalidInput):
    """No token of the HTTP server has this id."""

    code = "PB444"


class WebhookNotFound(InvalidInput):
    """No webhook has this name."""

    code = "PB445"


class WebhookExists(InvalidInput):
    """A webhook of this name, or for the same consumer, exists already."""

    code = "PB446"


class NoActiveSubscriptions(InvalidInput):
    """The topic blocks writes while no group is ACTIVE."""

    code = "PB430"


class TransactionInUse(InvalidInput):
    """The call needs a transaction of its own, and the given one has written already."""

    code = "PB431"


class TransactionEnded(InvalidInput):
    """A handler, or a block of `bus.transaction()`, ended the transaction that Postbus gave it."""

    code = "PB435"


class WrongSemantics(InvalidInput):
    """The topic is a QUEUE where a PUB_SUB topic is needed, or the other way round."""

    code = "PB432"


class InvalidGroup(InvalidInput):
    """The group's state, or a lack of members, does not allow the call."""

    code = "PB433"


class LeaseLost(PostbusError):
    """The lease is lost: another consumer has the message, or it is done."""

    code = "PB423"
    ids: Sequence[int] = ()
    """The messages of the lease, if they are known."""


class MessageInHand(PostbusError):
    """Another process has the message in hand, for at most `retry_after` seconds."""

    code = "PB434"

    def __init__(self, message: str, *, remedy: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class PayloadNotDecodable(PostbusError):
    """A stored payload does not fit the type that the handler asks for."""

    code = "PB422"


class UnreadableEvent(PayloadNotDecodable):
    """The message is no event that the registry knows, or its payload is invalid. It is not tried again."""

    code = "PB424"


class SchemaError(PostbusError):
    """The database's schema and this version of Postbus do not fit together."""

    code = "PB500"


class SchemaMissing(SchemaError):
    """The database has no schema postbus."""

    code = "PB501"


class SchemaTooOld(SchemaError):
    """The database has to be migrated."""

    code = "PB502"


class SchemaTooNew(SchemaError):
    """The database was migrated by a newer, incompatible Postbus."""

    code = "PB503"


class SchemaNotTrusted(SchemaError):
    """The schema, or an object in it, belongs to a role whose rights the user does not have."""

    code = "PB509"


class RestoredElsewhere(SchemaError):
    """The database was restored from a dump into another server, where its cursors are not valid."""

    code = "PB507"


class AccessDenied(PostbusError):
    """The database refused the user, the password or the right."""

    code = "PB403"


class DatabaseUnavailable(PostbusError):
    """The database cannot be reached at the moment."""

    code = "PB504"


class NotServed(PostbusError):
    """The HTTP server refuses the request."""

    code = "PB439"


class NotAuthenticated(NotServed):
    """The request has no token, or one that is not valid."""

    code = "PB440"


class NotAllowed(NotServed):
    """The token lacks the role, the topic or the group."""

    code = "PB441"


class TooManyRequests(NotServed):
    """The caller makes more requests, in all or at the same time, than it may."""

    code = "PB442"

    def __init__(self, message: str, *, remedy: str = "", retry_after: float = 1.0) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class RequestTooLarge(NotServed):
    """The body has more bytes, or more messages, than the server takes."""

    code = "PB443"


class RouteNotFound(NotServed):
    """The address does not exist, or does not accept the method."""

    code = "PB447"


class CommitUnknown(PostbusError):
    """The connection broke while COMMIT was under way: the change may or may not have happened."""

    code = "PB505"


class NotCommitted(PostbusError):
    """The server answered COMMIT with ROLLBACK, since a statement had failed: nothing has changed."""

    code = "PB508"


class EmbeddedError(PostbusError):
    """The embedded PostgreSQL cannot be started or used."""

    code = "PB506"


class SinkUnavailable(PostbusError):
    """The sink of a relay cannot be reached at the moment."""

    code = "PB520"


def _all_errors(root: type[PostbusError]) -> list[type[PostbusError]]:
    return [root, *(error for sub in root.__subclasses__() for error in _all_errors(sub))]


_BY_CODE = {error.code: error for error in _all_errors(PostbusError)}


def from_database(sqlstate: str | None, message: str, hint: str | None) -> PostbusError | None:
    """The error for a PB code that SQL raised, or None for any other code."""
    if sqlstate is None or not sqlstate.startswith("PB"):
        return None
    return _BY_CODE.get(sqlstate, PostbusError)(message, remedy=hint or "")
