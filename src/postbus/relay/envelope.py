"""Envelopes: what is told of a message beside its payload, and where it goes."""

from __future__ import annotations

import base64
import hashlib
import json
import string
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum

from postbus._content.codec import holds_json
from postbus._content.content_types import safe_content_type
from postbus._content.identity import EVENT_ID, own_identity
from postbus.errors import InvalidOption
from postbus.message import Message
from postbus.relay.sink import Parcel

EVENT_TYPE, AGGREGATE_TYPE, AGGREGATE_ID, EVENT_VERSION = (
    "event-type",
    "aggregate-type",
    "aggregate-id",
    "event-version",
)
_OF_EVENTS = {name: name.replace("-", "_") for name in (EVENT_TYPE, AGGREGATE_TYPE, AGGREGATE_ID, EVENT_VERSION)}
_NOT_TOLD = {*_OF_EVENTS, EVENT_ID}
_LONGEST_ID = 250  # of RabbitMQ's message_id, which has 255 bytes
_TRACE = ("traceparent", "tracestate")
_FIELDS = ("topic", "key", "event_type", "aggregate_type", "aggregate_id")
CLOUD_EVENTS_PREFIX = "ce-"
_STRUCTURED = "application/cloudevents+json"


class Form(StrEnum):
    """How a message is put."""

    ATTRIBUTES = "attributes"
    """The payload as it is, and headers event_id, event_type, aggregate_type, aggregate_id and created_at."""
    CLOUDEVENTS = "cloudevents"
    """CloudEvents 1.0, binary: the payload as it is, and headers ce-id, ce-type, …"""
    CLOUDEVENTS_STRUCTURED = "cloudevents-structured"
    """CloudEvents 1.0, structured: a JSON object with all of it."""


class Unfit(Exception):
    """A message that can never be sent as it is; the text says why."""


class Envelope:
    """Makes parcels of messages."""

    def __init__(
        self,
        target: str,
        *,
        form: Form | str = Form.ATTRIBUTES,
        source: str,
        route: str = "",
        suffix: str = "",
        quote: Callable[[str], str] = str,
    ) -> None:
        self._published_at: datetime | None = None
        self._moment = ""
        """That one as text: messages that were published together have the same."""
        self._target = target
        self._quote = quote
        """What values that are filled in have to go through."""
        self._is_plain = "{" not in target and "}" not in target
        self._source = source
        self._suffix = f":{route}{suffix}" if route else suffix
        """Of deduplication ids: each route sends a message once, and what a replay sends is sent on purpose."""
        try:
            self._form = Form(form)
        except ValueError:
            raise InvalidOption(f"form {form!r} is not known", remedy=f"use {', '.join(Form)}") from None
        _check_template(target)
        if not source or not source.isprintable():
            raise InvalidOption(f"source {source!r} is not a name", remedy="give a URI, or a path such as /shop/orders")

    def parcel(self, message: Message) -> Parcel:
        """A message on its way. Raises Unfit."""
        headers = message.headers
        key = message.key if message.key is not None else headers.get(AGGREGATE_ID)
        body, content_type = message.payload, safe_content_type(message.content_type)
        told = {name: value for name, value in headers.items() if name not in _NOT_TOLD} if headers else {}
        event_id = message.event_id
        if self._form is Form.ATTRIBUTES:
            told["event_id"], told["created_at"] = event_id, self._told_moment(message)
            if headers:
                told |= {given: headers[name] for name, given in _OF_EVENTS.items() if name in headers}
            if message.correlation_id is not None:
                told["correlation_id"] = message.correlation_id
        elif self._form is Form.CLOUDEVENTS:
            told |= {CLOUD_EVENTS_PREFIX + name: value for name, value in self._cloud_event(message, key).items()}
        else:
            body, content_type = self._structured(message, key), _STRUCTURED
        return Parcel(
            id=self._deduplication_id(message, event_id),
            target=self._target if self._is_plain else self._filled(message, key),
            source=self._source,
            key=key,
            body=body,
            content_type=content_type,
            headers=told,
            message=message,
        )

    def _deduplication_id(self, message: Message, event_id: str) -> str:
        """The id by which a broker may recognise a message that it already has.

        An identity from elsewhere may have come here twice, by two ways or because somebody published it twice. These
        are two messages, and both are sent: what their event is to a consumer, its inbox decides.
        """
        found = event_id + self._suffix
        if EVENT_ID in message.headers:
            own = own_identity(message.source, message.topic, message.id, message.published_at)
            if own != event_id:
                found = f"{event_id}:{own}{self._suffix}"
        return found if len(found) <= _LONGEST_ID else hashlib.sha256(found.encode()).hexdigest()

    def _told_moment(self, message: Message) -> str:
        if message.published_at is not self._published_at:
            self._published_at = message.published_at
            self._moment = message.published_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return self._moment

    def _filled(self, message: Message, key: str | None) -> str:
        known = {given: message.headers.get(name) for name, given in _OF_EVENTS.items()}
        known |= {"topic": message.topic, "key": key}
        try:
            return self._target.format(**{name: self._quote(value) for name, value in known.items() if value})
        except KeyError as error:
            name = str(error.args[0])
            what = "key" if name == "key" else f"header {name.replace('_', '-')}"
            raise Unfit(f"the target {self._target!r} needs a {what}, and the message has none") from None

    def _cloud_event(self, message: Message, key: str | None) -> dict[str, str]:
        headers = message.headers
        told: dict[str, str | None] = {
            "specversion": "1.0",
            "id": message.event_id,
            "source": self._source,
            "type": headers.get(EVENT_TYPE) or message.topic,
            "subject": headers.get(AGGREGATE_ID) or key,
            "time": self._told_moment(message),
            "partitionkey": key,
            "aggregatetype": headers.get(AGGREGATE_TYPE),
            "eventversion": headers.get(EVENT_VERSION),
            "correlationid": message.correlation_id,
        }
        return {name: value for name, value in told.items() if value}

    def _structured(self, message: Message, key: str | None) -> bytes:
        content_type = safe_content_type(message.content_type)
        told = self._cloud_event(message, key) | {"datacontenttype": content_type}
        told |= {name: message.headers[name] for name in _TRACE if name in message.headers}
        head = json.dumps(told)[:-1].encode()
        # As it is, so that no number changes. What only says that it is JSON could close the object and forge the rest.
        if holds_json(message.payload, content_type):
            return head + b', "data": ' + message.payload + b"}"
        if content_type.startswith("text/"):
            with suppress(UnicodeDecodeError):
                text = message.payload.decode("utf-8", "surrogatepass")
                return head + b', "data": ' + json.dumps(text).encode() + b"}"
        return head + b', "data_base64": "' + base64.b64encode(message.payload) + b'"}'


def _check_template(target: str) -> None:
    if not isinstance(target, str) or not target:
        raise InvalidOption(f"target {target!r} is empty", remedy="name a subject, a queue, a stream, or a topic")
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(target) if name is not None]
    except ValueError as error:
        raise InvalidOption(f"target {target!r} is not a template: {error}", remedy="write {{ for a brace") from error
    unknown = [name for name in names if name not in _FIELDS]
    if unknown:
        raise InvalidOption(
            f"target {target!r} has {{{unknown[0]}}}, which is not known",
            remedy=f"use {', '.join(f'{{{name}}}' for name in _FIELDS)}",
        )
