"""Payloads and headers on their way through the database, from a publisher to a handler."""

from __future__ import annotations

import asyncio
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from postbus import Bus, InvalidOption, Message, PayloadTooLarge
from postbus._content.codec import decoder_for

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
_any_text = st.text(st.characters(exclude_categories=()))
_storable = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


def _thorough(test: Any) -> Any:
    """Run many examples with the fixtures of one test."""
    health = [hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow]
    return hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=health)(test)


async def _stored(conn: Any, message_id: int) -> Any:
    return await conn.fetchrow("select * from postbus.messages where id = $1", message_id)


@_thorough
@hypothesis.given(payload=st.binary() | _any_text | _json)
async def test_stored_payload_equals_the_published_one(bus: Bus, conn: Any, topic: str, payload: Any) -> None:
    """JSON, text and bytes are the same for the handler as for the publisher."""
    row = await _stored(conn, await bus.publish(conn, topic, payload))

    assert decoder_for(Any)(row["payload"], row["content_type"]) == payload


@_thorough
@hypothesis.given(headers=st.dictionaries(_storable, _storable, max_size=5))
async def test_stored_headers_equal_the_published_ones(
    bus: Bus, conn: Any, topic: str, headers: dict[str, str]
) -> None:
    """Headers are texts in any language."""
    row = await _stored(conn, await bus.publish(conn, topic, "x", headers=headers))

    assert decoder_for(dict[str, str])(row["headers"].encode(), "application/json") == headers


@pytest.mark.parametrize(
    "payload", [2**200, {"big": -(2**200)}, ["\0", "\ud800"], 1e308, "\0\ud800", b"\0\xff"], ids=ascii
)
async def test_payload_that_jsonb_cannot_hold_is_stored(bus: Bus, conn: Any, topic: str, payload: Any) -> None:
    """A payload is bytes to the database, and views show it as JSON only if jsonb can hold it."""
    row = await _stored(conn, await bus.publish(conn, topic, payload))

    assert decoder_for(Any)(row["payload"], row["content_type"]) == payload


async def test_handler_gets_the_published_message(bus: Bus, topic: str) -> None:
    """The message carries the payload's bytes and all options."""
    got: list[tuple[Any, Message]] = []

    @bus.subscribe(topic)
    async def handle(payload: dict[str, int], message: Message) -> None:
        got.append((payload, message))
        bus.stop()

    message_id = await bus.send(
        topic, {"n": 1}, key="k", headers={"ü": "ß"}, priority=7, correlation_id="c", content_type="text/json"
    )
    await asyncio.wait_for(bus.run(), 10)

    payload, message = got[0]
    assert payload == {"n": 1}
    assert (message.id, message.topic, message.payload) == (message_id, topic, b'{"n":1}')
    assert (message.key, message.headers, message.priority) == ("k", {"ü": "ß"}, 7)
    assert (message.correlation_id, message.content_type, message.attempt) == ("c", "text/json", 1)
    assert message.published_at.utcoffset() is not None


async def test_payload_size_limit_is_exact(bus: Bus, conn: Any, topic: str) -> None:
    """A payload with exactly the accepted number of bytes is published, and one byte more is refused."""
    await bus.admin.create_topic(topic, max_payload_bytes=100)

    await bus.publish(conn, topic, "ü" * 50)
    await bus.publish(conn, topic, {"a": "x" * 92})
    for payload in ("ü" * 50 + "x", {"a": "x" * 93}, b"x" * 101):
        with pytest.raises(PayloadTooLarge, match="has 101 bytes, the topic accepts 100"):
            await bus.publish(conn, topic, payload)


async def test_default_payload_limit_is_one_mebibyte(bus: Bus, conn: Any, topic: str) -> None:
    """The default applies to undeclared topics."""
    await bus.publish(conn, topic, b"x" * (1 << 20))

    with pytest.raises(PayloadTooLarge):
        await bus.publish(conn, topic, b"x" * ((1 << 20) + 1))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"a": 1}, "header 'a' is not a pair of strings"),
        ({1: "a"}, "header 1 is not a pair of strings"),
        ({"a": None}, "header 'a' is not a pair of strings"),
        ({"a": b"x"}, "header 'a' is not a pair of strings"),
        ({"a": "\0"}, "header 'a' holds a NUL character or a lone surrogate"),
        ({"\0": "a"}, "holds a NUL character"),
        ({"a": "\ud800"}, "header 'a' holds a NUL character or a lone surrogate"),
        ([("a", "b")], "are not a mapping"),
        ("a=b", "are not a mapping"),
    ],
    ids=ascii,
)
async def test_bad_headers_are_refused(bus: Bus, conn: Any, topic: str, headers: Any, why: str) -> None:
    """Headers are strings that PostgreSQL can store."""
    with pytest.raises(InvalidOption, match=why) as refused:
        await bus.publish(conn, topic, "x", headers=headers)

    assert refused.value.remedy
