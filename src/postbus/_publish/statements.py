"""The statements that publish, for any connection and driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from postbus._content.codec import encode, encode_headers, encode_lines, encode_many, is_storable
from postbus._content.content_types import MAX_LENGTH, is_content_type
from postbus._content.names import check_topic_name
from postbus._drivers.statement import Statement
from postbus.errors import InvalidOption
from postbus.message import DEFAULT_PRIORITY, Outgoing
from postbus.options import is_count

MAX_CORRELATION_ID = 500
"""In characters. The SQL function check_message has the same limit."""
_IN_FUTURE = "use datetime.now(timezone.utc) + …"
# These statements run on the caller's connection, whose search path may hold anything. So each function, operator and
# type is qualified, except types that are keywords of SQL (integer, bigint, interval). `nullif` would use an operator.
_COMMIT_NOTIFIES = (
    "case when pg_catalog.current_setting('postbus.woken', true) operator(pg_catalog.<>) '' "
    "then pg_catalog.current_setting('postbus.woken', true)::bigint end"
)
# Headers travel as text, because the owner of the connection may have its own codec for jsonb.
_PUBLISH = (
    "select array[postbus.publish($1::pg_catalog.text, $2::pg_catalog.bytea, $3::pg_catalog.text, "
    "$4::pg_catalog.text::pg_catalog.jsonb, $5::integer, $6::interval, $7::pg_catalog.timestamptz, "
    f"$8::pg_catalog.text, $9::pg_catalog.text, $10::pg_catalog.text), {_COMMIT_NOTIFIES}]"
)
_PUBLISH_MANY = (
    "select postbus.publish_many($1::pg_catalog.text, $2::pg_catalog.bytea[], $3::pg_catalog.text[], "
    "$4::pg_catalog.text[]::pg_catalog.jsonb[], $5::integer[], $6::interval[], $7::pg_catalog.timestamptz[], "
    "$8::pg_catalog.text[], $9::pg_catalog.text[], $10::pg_catalog.text[], $11::pg_catalog.text) "
    f"operator(pg_catalog.||) {_COMMIT_NOTIFIES}"
)
_PUBLISH_LINES = (
    "select postbus.publish_lines($1::pg_catalog.text, $2::pg_catalog.bytea, $3::integer) "
    f"operator(pg_catalog.||) {_COMMIT_NOTIFIES}"
)


def publish_one(topic: str, message: Outgoing) -> Statement:
    """The statement that publishes one message."""
    check_topic_name(topic)
    _check_options(message)
    payload, content_type = encode(message.payload)
    return Statement(
        _PUBLISH,
        (
            topic,
            payload,
            message.key,
            encode_headers(message.headers),
            DEFAULT_PRIORITY if message.priority is None else message.priority,
            message.delay,
            message.deliver_at,
            message.dedup_key,
            message.correlation_id,
            message.content_type or content_type,
        ),
    )


def publish_many(topic: str, messages: Iterable[Any]) -> Statement:
    """The statement that publishes many messages to one topic, given as payloads or as `Outgoing`."""
    check_topic_name(topic)
    given = list(messages)
    if not any(issubclass(kind, Outgoing) for kind in set(map(type, given))):
        return _publish_plain(topic, given)
    outgoing = [one if isinstance(one, Outgoing) else Outgoing(payload=one) for one in given]
    for one in outgoing:
        _check_options(one)
    payloads, found = encode_many([one.payload for one in outgoing])
    content_types = [one.content_type or content_type for one, content_type in zip(outgoing, found, strict=True)]
    return Statement(
        _PUBLISH_MANY,
        (
            topic,
            payloads,
            _column([one.key for one in outgoing]),
            _column([encode_headers(one.headers) for one in outgoing]),
            _column([one.priority for one in outgoing]),
            _column([one.delay for one in outgoing]),
            _column([one.deliver_at for one in outgoing]),
            _column([one.dedup_key for one in outgoing]),
            _column([one.correlation_id for one in outgoing]),
            *_uniform(content_types),
        ),
    )


def _publish_plain(topic: str, payloads: Sequence[Any]) -> Statement:
    """The statement for payloads without options, as most large batches have them."""
    if (lines := encode_lines(payloads)) is not None:
        return Statement(_PUBLISH_LINES, (topic, lines, len(payloads)))
    encoded, content_types = encode_many(payloads)
    no_options = (None,) * 7
    return Statement(_PUBLISH_MANY, (topic, encoded, *no_options, *_uniform(content_types)))


def _uniform(content_types: list[str]) -> tuple[list[str] | None, str | None]:
    """One content type for all messages if they have the same, otherwise one for each."""
    if len(set(content_types)) <= 1:
        return None, content_types[0] if content_types else None
    return content_types, None


def _column(values: list[Any]) -> list[Any] | None:
    return None if values.count(None) == len(values) else values


def _check_options(message: Outgoing) -> None:
    priority, delay, deliver_at = message.priority, message.delay, message.deliver_at
    if priority is not None and not is_count(priority, 9, least=0):
        raise InvalidOption(
            f"priority {priority!r} is out of range",
            remedy="a priority goes from 0 (last) to 9 (first); 4 is usual",
        )
    if delay is not None and not isinstance(delay, timedelta):
        raise InvalidOption(f"delay {delay!r} is not a timedelta", remedy="give timedelta(seconds=…)")
    if delay is not None and delay < timedelta(0):
        raise InvalidOption(f"a delay of {delay.total_seconds():g} s is negative", remedy="use 0 or more")
    if delay is not None and deliver_at is not None:
        raise InvalidOption("delay and deliver_at are both given", remedy="give one of them")
    if deliver_at is not None and not isinstance(deliver_at, datetime):
        raise InvalidOption(f"deliver_at {deliver_at!r} is not a datetime", remedy=_IN_FUTURE)
    if deliver_at is not None and deliver_at.utcoffset() is None:
        raise InvalidOption(f"deliver_at {deliver_at} has no time zone", remedy=_IN_FUTURE)
    for name in ("key", "dedup_key", "correlation_id", "content_type"):
        value = getattr(message, name)
        if value is not None and (not isinstance(value, str) or not is_storable(value)):
            raise InvalidOption(
                f"{name} {value!r} is not a text without NUL characters and lone surrogates",
                remedy="give such a str",
            )
    if message.correlation_id is not None and len(message.correlation_id) > MAX_CORRELATION_ID:
        raise InvalidOption(
            f"correlation_id has more than {MAX_CORRELATION_ID} characters", remedy="use a shorter one, or its hash"
        )
    if message.content_type and not is_content_type(message.content_type):
        raise InvalidOption(
            f"content_type {message.content_type!r:.220} is not one of at most {MAX_LENGTH} characters",
            remedy="give type/subtype, and parameters if it has any, such as text/plain; charset=utf-8",
        )
