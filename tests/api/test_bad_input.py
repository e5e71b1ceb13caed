"""Bad input raises the same error in Python and in SQL: class, code, reason and remedy."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import hypothesis
import pytest
from hypothesis import strategies as st

from postbus import Bus, InvalidInput, InvalidOption, InvalidTopicName, Outgoing, PostbusError
from postbus._content.names import check_topic_name
from postbus.errors import from_database
from support.naming import steady

_AT = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


async def _refusal(conn: Any, sql: str, *args: Any) -> PostbusError:
    """Return the error that a statement of plain SQL raises, which has one of our codes."""
    with pytest.raises(asyncpg.PostgresError) as raised:
        await conn.fetchval(sql, *args)
    fields: Any = raised.value
    refused = from_database(fields.sqlstate, fields.message, fields.hint)
    assert refused is not None, raised.value
    return refused


def _are_alike(python: PostbusError, sql: PostbusError) -> None:
    assert type(python) is type(sql)
    assert python.code == sql.code
    assert python.remedy
    assert sql.remedy


@pytest.mark.parametrize(
    ("options", "in_sql", "why"),
    [
        ({"priority": 10}, "priority => 10", "priority 10 is out of range"),
        ({"priority": -1}, "priority => -1", "priority -1 is out of range"),
        ({"delay": -1}, "delay => '-1 second'", "delay .* is negative"),
        ({"delay": timedelta(days=400_000)}, "delay => '400000 days'", "delay 400000 days.* is longer than 1000 years"),
        ({"delay": 1, "deliver_at": _AT}, "delay => '1 second', deliver_at => 'now'", "delay and deliver_at are both"),
        ({"key": "k" * 1001}, "key => repeat('k', 1001)", "key has more than 1000 characters or 2000 bytes"),
        ({"key": "😀" * 501}, "key => repeat('😀', 501)", "key has more than 1000 characters or 2000 bytes"),
        ({"dedup_key": "k" * 1001}, "dedup_key => repeat('k', 1001)", "dedup_key has more than 1000 characters"),
        ({"headers": {"a": 1}}, """headers => '{"a": 1}'""", "header"),
        ({"headers": ["a"]}, """headers => '["a"]'""", "headers"),
    ],
    ids=steady,
)
@pytest.mark.parametrize("many", [False, True])
async def test_bad_message_options_are_refused(
    bus: Bus, conn: Any, topic: str, options: dict[str, Any], in_sql: str, why: str, many: bool
) -> None:
    """Python and SQL refuse the option, for one message or many, and publish nothing."""
    if many and isinstance(options.get("delay"), int):
        options = {**options, "delay": timedelta(seconds=options["delay"])}
    with pytest.raises(InvalidOption, match=why) as python:
        if many:
            await bus.publish_many(conn, topic, ["before", Outgoing(payload="x", **options), "after"])
        else:
            await bus.publish(conn, topic, "x", **options)
    sql = await _refusal(conn, f"select postbus.publish($1, 'x'::text, {in_sql})", topic)

    assert re.search(why, sql.message)
    _are_alike(python.value, sql)
    assert await conn.fetchval("select count(*) from postbus.messages where topic = $1", topic) == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"priority": True}, "priority True is out of range"),
        ({"priority": "4"}, "priority '4' is out of range"),
        ({"priority": 4.0}, "priority 4.0 is out of range"),
        ({"delay": "soon"}, "delay 'soon' is not a duration"),
        ({"delay": float("nan")}, "delay nan is not a duration"),
        ({"delay": float("inf")}, "delay inf is not a duration"),
        ({"delay": True}, "delay True is not a duration"),
        ({"deliver_at": datetime(2100, 1, 1)}, "deliver_at 2100-01-01 00:00:00 has no time zone"),
        ({"deliver_at": "tomorrow"}, "deliver_at 'tomorrow' is not a datetime"),
        ({"deliver_at": date(2100, 1, 1)}, "deliver_at .* is not a datetime"),
        ({"deliver_at": 4102444800}, "deliver_at 4102444800 is not a datetime"),
        ({"key": 5}, "key 5 is not a text"),
        ({"key": "\0"}, "key .* is not a text without NUL characters and lone surrogates"),
        ({"key": "\ud800"}, "key .* is not a text without NUL"),
        ({"dedup_key": b"x"}, "dedup_key b'x' is not a text"),
        ({"correlation_id": "\0"}, "correlation_id .* is not a text"),
        ({"content_type": 1}, "content_type 1 is not a text"),
        ({"content_type": "\ud800"}, "content_type .* is not a text"),
    ],
    ids=ascii,
)
async def test_options_of_wrong_types_are_refused(bus: Bus, conn: Any, topic: str, options: Any, why: str) -> None:
    """A wrong type is refused before the database is asked."""
    with pytest.raises(InvalidOption, match=why) as refused:
        await bus.publish(conn, topic, "x", **options)
    with pytest.raises(InvalidOption):
        await bus.send(topic, "x", **options)

    assert refused.value.code == "PB402"
    assert refused.value.remedy


async def test_outgoing_refuses_a_delay_in_seconds(bus: Bus, conn: Any, topic: str) -> None:
    """Seconds as a number are for `publish`; an `Outgoing` needs a timedelta."""
    seconds: Any = 5
    with pytest.raises(InvalidOption, match="delay 5 is not a timedelta"):
        await bus.publish_many(conn, topic, [Outgoing(payload="x", delay=seconds)])


@pytest.mark.parametrize(
    ("in_sql", "why"),
    [
        ("priority => null", "priority null is out of range"),
        ("deliver_at => 'infinity'", "deliver_at is infinity"),
        ("deliver_at => '-infinity'", "deliver_at is -infinity"),
        ("""headers => '"text"'""", "headers are not an object of strings"),
        ("""headers => '{"a": null}'""", "headers are not an object of strings"),
        ("""headers => '{"a": {"b": "c"}}'""", "headers are not an object of strings"),
    ],
)
async def test_bad_options_that_only_sql_can_express_are_refused(conn: Any, topic: str, in_sql: str, why: str) -> None:
    """SQL refuses them with the same error class."""
    refused = await _refusal(conn, f"select postbus.publish($1, 'x'::text, {in_sql})", topic)

    assert (type(refused), refused.message) == (InvalidOption, why)


async def test_end_of_time_is_refused(bus: Bus, conn: Any, topic: str) -> None:
    """The last moment that Python knows means infinity to asyncpg."""
    with pytest.raises(InvalidOption, match="deliver_at is infinity"):
        await bus.publish(conn, topic, "x", deliver_at=datetime.max.replace(tzinfo=UTC))


async def test_infinite_delay_is_refused(conn: Any, topic: str) -> None:
    """Servers that know an infinite interval refuse it as a delay."""
    if conn.get_server_version().major < 17:
        pytest.skip("no such interval before PostgreSQL 17")

    refused = await _refusal(conn, "select postbus.publish($1, 'x'::text, delay => 'infinity')", topic)

    assert refused.message == "delay infinity is longer than 1000 years"


async def test_null_payload_is_refused(conn: Any, topic: str) -> None:
    """NULL is not a payload in any of the functions."""
    for call in ("publish($1, null::bytea)", "publish($1, null::jsonb)", "publish_many($1, array[null::bytea])"):
        refused = await _refusal(conn, f"select postbus.{call}", topic)

        assert (refused.code, refused.message) == ("PB410", "the payload is null")


@pytest.mark.parametrize(
    "arrays",
    ["keys => '{a}'", "keys => '{}'", "priorities => '{1,2,3}'", "content_types => '{a}'", "dedup_keys => '{a,b,c}'"],
)
async def test_arrays_of_other_lengths_are_refused(conn: Any, topic: str, arrays: str) -> None:
    """Each option of many messages has one value per message."""
    refused = await _refusal(conn, f"select postbus.publish_many($1, '{{a,b}}'::bytea[], {arrays})", topic)

    assert (refused.code, refused.message) == ("PB402", "an array has another length than payloads")


async def test_message_without_a_key_is_refused_by_an_ordered_topic(bus: Bus, conn: Any, topic: str) -> None:
    """It would have no position in the order."""
    await bus.admin.create_topic(topic, ordered=True)
    with pytest.raises(InvalidOption, match="a message of an ordered topic needs a key") as python:
        await bus.publish(conn, topic, "x")
    with pytest.raises(InvalidOption, match="needs a key"):
        await bus.publish_many(conn, topic, [Outgoing(payload="x", key="k"), "y"])
    with pytest.raises(InvalidOption, match="needs a key"):
        await bus.send(topic, "x")

    _are_alike(python.value, await _refusal(conn, "select postbus.publish($1, 'x'::text)", topic))
    assert await conn.fetchval("select count(*) from postbus.messages where topic = $1", topic) == 0


async def test_content_type_may_be_null(conn: Any, topic: str) -> None:
    """NULL as a content type means the default, for one message and for many."""
    await conn.execute("select postbus.publish($1, 'a'::bytea, content_type => null)", topic)
    await conn.execute("select postbus.publish_many($1, '{a}'::bytea[], content_type => null)", topic)

    rows = await conn.fetch("select content_type from postbus.messages where topic = $1", topic)
    assert [row["content_type"] for row in rows] == ["application/octet-stream"] * 2


@pytest.mark.parametrize("name", ["", " ", "a b", ".a", "-a", "/a", "a\n", "a\0", "ä", "*", "a" * 201, None, 5, b"a"])
async def test_bad_topic_names_are_refused(bus: Bus, conn: Any, name: Any) -> None:
    """The error shows the name and the rule, wherever the name is given."""
    for call in (
        lambda: bus.publish(conn, name, "x"),
        lambda: bus.publish_many(conn, name, ["x"]),
        lambda: bus.send(name, "x"),
        lambda: bus.admin.create_topic(name),
    ):
        with pytest.raises(InvalidTopicName, match="bad topic name") as refused:
            await call()
        assert repr(name) in refused.value.message
        assert refused.value.code == "PB401"
        assert "1 to 200 letters, digits" in refused.value.remedy


_likely = st.text(st.sampled_from("aZ09_.:/- \n*ä$"), max_size=6) | st.text(max_size=5)


@hypothesis.settings(
    max_examples=200, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(name=_likely.filter(lambda name: "\0" not in name) | st.integers(198, 203).map(lambda n: "x" * n))
async def test_python_and_sql_agree_on_topic_names(conn: Any, name: str) -> None:
    """A name is valid for both, or for neither, by the rule that the error states."""
    by_rule = bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._\-:/]*", name)) and 1 <= len(name) <= 200
    try:
        check_topic_name(name)
        in_python = True
    except InvalidTopicName:
        in_python = False
    try:
        await conn.fetchval("select postbus.topic_options($1)", name)
        in_sql = True
    except asyncpg.PostgresError as error:
        assert getattr(error, "sqlstate", None) == "PB401"
        in_sql = False

    assert (in_python, in_sql) == (by_rule, by_rule)


async def test_refused_batch_publishes_nothing(bus: Bus, conn: Any, topic: str) -> None:
    """When one of many messages is refused, the caller's transaction is as it was before."""
    await bus.admin.create_topic(topic, max_payload_bytes=3)
    messages = [Outgoing(payload="abc", dedup_key="1"), Outgoing(payload="abcd", dedup_key="2")]
    async with conn.transaction():
        await bus.publish(conn, topic, "one")
        for wrong in (messages, ["abc", "abcd"], [Outgoing(payload="abc", delay=timedelta(1)), "abcd"]):
            with pytest.raises(InvalidInput):
                async with conn.transaction():
                    await bus.publish_many(conn, topic, wrong)

    rows = await conn.fetch("select payload from postbus.messages where topic = $1", topic)
    assert [row["payload"] for row in rows] == [b"one"]
    assert await conn.fetchval("select count(*) from postbus.dedup where dedup_key in ('1', '2')") == 0


@pytest.mark.parametrize("messages", ["text", b"bytes", {"a": 1}], ids=steady)
async def test_single_payload_is_refused_as_a_batch(bus: Bus, conn: Any, topic: str, messages: Any) -> None:
    """A text or a dict given to `publish_many` is refused, instead of published in parts."""
    with pytest.raises(InvalidInput, match="publish_many got one"):
        await bus.publish_many(conn, topic, messages)
