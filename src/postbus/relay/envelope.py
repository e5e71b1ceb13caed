"""Envelopes: the headers, the id and the target with which a message leaves for a sink."""

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
from postbus._content.identity import (
    AGGREGATE_ID,
    AGGREGATE_TYPE,
    EVENT_HEADERS,
    EVENT_ID,
    EVENT_TYPE,
    EVENT_VERSION,
    own_identity,
)
from postbus.errors import InvalidOption
from postbus.message import Message
from postbus.relay.sink import Parcel

_OF_EVENTS = {name: name.replace("-", "_") for name in EVENT_HEADERS}
_REPLACED = {*_OF_EVENTS, EVENT_ID}
_LONGEST_ID = 250  # RabbitMQ's message_id has at most 255 bytes
_TRACE = ("traceparent", "tracestate")
_FIELDS = ("topic", "key", "event_type", "aggregate_type", "aggregate_id")
CLOUD_EVENTS_PREFIX = "ce-"
_STRUCTURED = "application/cloudevents+json"


class Form(StrEnum):
    """The format of a message at the sink."""

    ATTRIBUTES = "attributes"
    """The payload as it is, with headers event_id, event_type, aggregate_type, aggregate_id and created_at."""
    CLOUDEVENTS = "cloudevents"
    """CloudEvents 1.0, binary: the payload as it is, with headers ce-id, ce-type, …"""
    CLOUDEVENTS_STRUCTURED = "cloudevents-structured"
    """CloudEvents 1.0, structured: one JSON object with the payload and the attributes."""


class Unfit(Exception):
    """A message that can never be sent as it is, with the reason."""


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
        """The same time as text. Messages that were published together share it."""
        self._target = target
        self._quote = quote
        """Escapes values that are inserted into the target."""
        self._is_plain = "{" not in target and "}" not in target
        self._source = source
        self._suffix = f":{route}{suffix}" if route else suffix
        """The end of deduplication ids: each route sends a message once, and each replay sends it once more."""
        try:
            self._form = Form(form)
        except ValueError:
            raise InvalidOption(f"form {form!r} is not known", remedy=f"use {', '.join(Form)}") from None
        _check_template(target)
        if not source or not source.isprintable():
            raise InvalidOption(f"source {source!r} is not a name", remedy="give a URI, or a path such as /shop/orders")

    def parcel(self, message: Message) -> Parcel:
        """Make the parcel of a message. Raises Unfit."""
        headers = message.headers
        key = message.key if message.key is not None else headers.get(AGGREGATE_ID)
        body, content_type = message.payload, safe_content_type(message.content_type)
        sent = {name: value for name, value in headers.items() if name not in _REPLACED} if headers else {}
        event_id = message.event_id
        if self._form is Form.ATTRIBUTES:
            sent["event_id"], sent["created_at"] = event_id, self._time_text(message)
            if headers:
                sent |= {given: headers[name] for name, given in _OF_EVENTS.items() if name in headers}
            if message.correlation_id is not None:
                sent["correlation_id"] = message.correlation_id
        elif self._form is Form.CLOUDEVENTS:
            sent |= {CLOUD_EVENTS_PREFIX + name: value for name, value in self._cloud_event(message, key).items()}
        else:
            body, content_type = self._structured(message, key), _STRUCTURED
        return Parcel(
            id=self._deduplication_id(message, event_id),
            target=self._target if self._is_plain else self._filled(message, key),
            source=self._source,
            key=key,
            body=body,
            content_type=content_type,
            headers=sent,
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

    def _time_text(self, message: Message) -> str:
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
        attributes: dict[str, str | None] = {
            "specversion": "1.0",
            "id": message.event_id,
            "source": self._source,
            "type": headers.get(EVENT_TYPE) or message.topic,
            "subject": headers.get(AGGREGATE_ID) or key,
            "time": self._time_text(message),
            "partitionkey": key,
            "aggregatetype": headers.get(AGGREGATE_TYPE),
            "eventversion": headers.get(EVENT_VERSION),
            "correlationid": message.correlation_id,
        }
        return {name: value for name, value in attributes.items() if value}

    def _structured(self, message: Message, key: str | None) -> bytes:
        content_type = safe_content_type(message.content_type)
        attributes = self._cloud_event(message, key) | {"datacontenttype": content_type}
        attributes |= {name: message.headers[name] for name in _TRACE if name in message.headers}
        head = json.dumps(attributes)[:-1].encode()
        # JSON is inserted as it is, so that no number changes. Text that only claims to be JSON could close the object
        # and forge attributes, so it is checked.
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
