"""The texts beside a payload are bounded, and stay on one line wherever they are sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from postbus import InvalidOption, Message, Outgoing
from postbus._content.content_types import is_content_type
from postbus._publish.statements import publish_many, publish_one
from postbus.embedded import EmbeddedPostgres
from postbus.relay import RabbitSink
from postbus.relay.envelope import Envelope, Form
from postbus.relay.reach import Reach
from postbus.relay.webhook import WebhookSink
from postbus.server.webhook_runner import Webhook
from relay.parcels import opened
from relay.receiver import receiving
from security.under_attack import database

pytestmark = pytest.mark.attack("content types, correlation ids and headers of messages")

BAD = [
    "text/plain\r\nx-injected: yes",
    "text/plain\nx-injected: yes",
    "text/plain\rx",
    "text/plain\x00",
    "text/plain\x7f",
    "text/plain\t",
    "text/plain\x0bx",
    "text/plain\x85x",
    "text/plain\u2028x",
    "text/plain;\r\n x=y",
    'text/plain; x="\n"',
    'text/plain; x="\r\ny: z"',
    "",
    " ",
    "text",
    "text/",
    "/plain",
    "text/plain/x",
    "text plain",
    " text/plain",
    "text/plain ",
    "text/pläin",
    "t\u00adext/plain",
    "text/plain; x",
    "text/plain; x=",
    "text/plain; =y",
    'text/plain; x="y',
    "text/plain, text/html",
    "<script>/x",
    "\x1b[31m/x",
    "text/" + "x" * 251,
    "text/plain; x=" + "y" * 242,
    "a/b" + " ;" * 127,
    "a/b;" + ";" * 250 + "!",
]
GOOD = [
    "application/json",
    "text/plain; charset=utf-8",
    "text/plain;charset=UTF-8",
    'text/plain; x="a b; c=\\"d\\""',
    "a/b;",
    "a/b ; c=d",
    "application/vnd.acme.order+json; version=2",
    "multipart/form-data; boundary=---x",
    "text/" + "x" * 250,
    "*/*",
    "x-y/z_1.2",
]


@pytest.fixture(scope="module")
def db(server: EmbeddedPostgres) -> Iterator[Any]:
    """Connect to a database with a queue and a log."""
    with database(server) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        for topic, semantics in (("t", "QUEUE"), ("log", "PUB_SUB")):
            conn.execute("select postbus.create_topic(%s, %s)", (topic, json.dumps({"semantics": semantics})))
        conn.execute("select postbus.import_group('old', 'log', 'g', 'ACTIVE')")
        yield conn


WAYS = {
    "publish": "publish(%s, 'x'::bytea, content_type => %s)",
    "publish with a key": "publish(%s, 'x'::bytea, key => 'k', headers => '{}', content_type => %s)",
    "publish_many": "publish_many(%s, '{x,y}'::bytea[], content_type => %s)",
    "publish_many, each": "publish_many(%s, '{x,y}'::bytea[], content_types => array['a/b', %s])",
    "publish_many, unique": "publish_many(%s, '{x,y}'::bytea[], dedup_keys => '{1,2}', "
    "content_types => array['a/b', %s])",
    "publish_lines": "publish_lines(%s, '1\n2'::bytea, content_type => %s)",
    "import_messages": (
        "import_messages(source => 'old', topic => %s, content_type => %s, source_ids => '{1}', payloads => '{x}', "
        "keys => null, headers => null, correlation_ids => null, published_ats => array[now()], attempts => '{0}', "
        "errors => '{null}')"
    ),
    "import_deferred": (
        "import_deferred(source => 'old', topic => %s, group_name => 'g', content_type => %s, source_ids => '{1}', "
        "payloads => '{x}', keys => null, headers => null, correlation_ids => null, published_ats => array[now()], "
        "attempts => '{0}', errors => '{null}')"
    ),
}


def _count(db: Any) -> int:
    return int(
        db.execute("select (select count(*) from postbus.messages) + (select count(*) from postbus.log)").fetchone()[0]
    )


@pytest.mark.parametrize("content_type", BAD, ids=ascii)
@pytest.mark.parametrize("way", WAYS)
def test_sql_refuses_bad_content_types(db: Any, way: str, content_type: str) -> None:
    """Every function with a content type refuses it, for a queue and a log, and publishes nothing."""
    if "\0" in content_type:
        content_type = content_type.replace("\0", "\1")  # which PostgreSQL cannot hold at all
    before = _count(db)
    for topic in ("log",) if way == "import_deferred" else ("t", "log"):
        with pytest.raises(psycopg.Error) as refused:
            db.execute(f"select postbus.{WAYS[way]}".encode(), (topic, content_type))
        assert refused.value.sqlstate == "PB402"
    assert _count(db) == before


@pytest.mark.parametrize("content_type", [one for one in BAD if one], ids=ascii)  # an empty one means none
def test_python_refuses_bad_content_types_before_the_database(content_type: str) -> None:
    """It does so for one message and for many."""
    message = Outgoing(payload=b"x", content_type=content_type)
    with pytest.raises(InvalidOption, match="content_type"):
        publish_one("t", message)
    with pytest.raises(InvalidOption, match="content_type"):
        publish_many("t", [message])


@pytest.mark.control
@pytest.mark.parametrize("content_type", GOOD, ids=ascii)
def test_usual_content_types_are_accepted(db: Any, content_type: str) -> None:
    """They may have parameters, quoted or not, as in RFC 9110; SQL and Python agree."""
    before = _count(db)
    for topic in ("t", "log"):
        db.execute("select postbus.publish(%s, 'x'::bytea, content_type => %s)", (topic, content_type))
    assert publish_one("t", Outgoing(payload=b"x", content_type=content_type)).args[-1] == content_type
    assert _count(db) == before + 2


def _message(content_type: str, payload: bytes = b"x", **more: Any) -> Message:
    given: dict[str, Any] = {
        "id": 1,
        "topic": "t",
        "payload": payload,
        "content_type": content_type,
        "key": None,
        "headers": {},
        "correlation_id": None,
        "priority": 4,
        "attempt": 1,
        "published_at": datetime(2026, 1, 1, tzinfo=UTC),
        "source": "s",
    }
    return Message(**given | more)


@pytest.mark.parametrize("content_type", [one for one in BAD if one], ids=ascii)
def test_relays_replace_bad_content_types_of_older_versions(content_type: str) -> None:
    """In every form the sent content type is valid and on one line, and the message goes out."""
    for form in Form:
        parcel = Envelope("x", form=form, source="/s").parcel(_message(content_type))
        assert is_content_type(parcel.content_type)
        if form is Form.CLOUDEVENTS_STRUCTURED:
            assert is_content_type(json.loads(parcel.body)["datacontenttype"])


async def test_webhooks_and_sinks_replace_bad_content_types() -> None:
    """A bad content type neither ends the request nor adds a header to it."""
    row: dict[str, Any] = {"name": "w", "url": "", "secret": "s" * 32, "timeout": 5, "concurrency": 1}
    messages = [_message(one) for one in BAD]
    with receiving() as receiver:
        webhook = Webhook(row | {"url": receiver.url}, Reach(["127.0.0.1"]))
        await webhook.sink.open()
        for message in messages:
            await webhook.post(message)
        await webhook.sink.close()
        envelope = Envelope(receiver.url, source="/s")
        async with opened(WebhookSink(connections=2)) as sink:
            await sink.send([envelope.parcel(message) for message in messages])
    assert len(receiver.received) == 2 * len(BAD)
    for got in receiver.received:
        assert got.headers["content-type"] == "application/octet-stream"
        assert "x-injected" not in got.headers


@pytest.mark.parametrize(
    "message",
    [
        _message("text/" + "x" * 250),
        _message("a/b", correlation_id="x" * 500),
        _message("a/b", correlation_id="ä" * 500),
        _message("a/b", headers={"event-type": "x" * 300}),
        _message("a/b", headers={"a": "x" * 65_535}, key="k" * 1000),
    ],
    ids=["content type", "correlation id", "wide correlation id", "event type", "header"],
)
def test_message_at_its_limits_can_be_written_as_amqp(message: Message) -> None:
    """AMQP has texts of 255 bytes; a longer one goes into a header, and the message is not given up."""
    sent = RabbitSink("amqp://127.0.0.1/")._message(Envelope("q", source="/s").parcel(message))
    assert sent.properties.marshal()
    assert sent.headers.get("correlation_id") == message.correlation_id


FORGING = {
    "more attributes": b'1, "id": "forged", "source": "/forged"',
    "the object's end": b'1}, {"id": "forged"',
    "no value": b"",
    "a comment": b"1 /*",
    "a line": b'1\r\n, "id": "forged"',
    "not UTF-8": b'"\xff"',
    "NaN": b"NaN",
    "depth": b"[" * 50_000,
}


@pytest.mark.parametrize("name", FORGING)
@pytest.mark.parametrize("content_type", ["application/json", "application/vnd.x+json", "text/plain"])
def test_payload_cannot_forge_a_cloud_event(name: str, content_type: str) -> None:
    """A payload that only claims to be JSON does not become part of the object around it."""
    envelope = Envelope("x", form=Form.CLOUDEVENTS_STRUCTURED, source="/s")
    told = json.loads(envelope.parcel(_message(content_type, FORGING[name])).body)
    assert (told["source"], told["type"]) == ("/s", "t")
    assert told["id"] != "forged"


LIMITS: dict[str, tuple[str, str]] = {
    "a correlation id of 501 characters": ("correlation_id", "repeat('x', 501)"),
    "a correlation id of 501 wide ones": ("correlation_id", "repeat('\u00e4', 501)"),
    "a correlation id of a megabyte": ("correlation_id", "repeat('x', 1048576)"),
    "one header of 64 KiB": ("header", "jsonb_build_object('a', repeat('x', 65536))"),
    "one name of 64 KiB": ("header", "jsonb_build_object(repeat('x', 65537), '')"),
    "many headers": (
        "header",
        "(select jsonb_object_agg('n' || n, repeat('x', 100)) from generate_series(1, 700) as n)",
    ),
    "wide letters": ("header", "jsonb_build_object('a', repeat('\u00e4', 32768))"),
    "a header that is stored compressed": ("header", "(select headers from pg_temp.kept)"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_texts_beside_the_payload_are_bounded(db: Any, name: str) -> None:
    """Every publishing function refuses longer ones, and an import reports them."""
    what, value = LIMITS[name]
    db.execute(
        "create temp table if not exists kept as select jsonb_build_object('a', repeat('x', 4000000)) as headers"
    )
    kind, each = {"correlation_id": ("correlation_id", "correlation_ids"), "header": ("headers", "headers")}[what]
    before = _count(db)
    for topic in ("t", "log"):
        for call in (
            f"publish('{topic}', 'x'::bytea, {kind} => {value})",
            f"publish('{topic}', '1'::jsonb, {kind} => {value})",
            f"publish('{topic}', 'x'::text, key => 'k', {kind} => {value})",
            f"publish_many('{topic}', '{{x,y}}'::bytea[], {each} => array[null, {value}])",
            f"publish_many('{topic}', '{{1,2}}'::jsonb[], dedup_keys => '{{1,2}}', {each} => array[null, {value}])",
        ):
            with pytest.raises(psycopg.Error) as refused:
                db.execute(f"select postbus.{call}".encode())
            assert refused.value.sqlstate == "PB402", call
        others = {"headers": "null", "correlation_ids": "null"} | {each: f"array[{value}]"}
        told = db.execute(
            f"select problem from postbus.import_messages(source => 'old', topic => '{topic}', source_ids => '{{1}}', "
            f"payloads => '{{x}}', keys => null, content_type => 'a/b', published_ats => array[now()], "
            f"attempts => '{{0}}', errors => '{{null}}', headers => {others['headers']}, "
            f"correlation_ids => {others['correlation_ids']})".encode()
        ).fetchall()
        assert "more than" in told[0][0]
    assert _count(db) == before


@pytest.mark.control
def test_texts_up_to_the_limits_are_accepted(db: Any) -> None:
    """SQL and Python accept 500 characters, and 64 KiB of header names and values."""
    headers = {"a": "x" * 65_534, "b": ""}
    for topic in ("t", "log"):
        db.execute(
            "select postbus.publish(%s, 'x'::bytea, headers => %s, correlation_id => %s)",
            (topic, json.dumps(headers), "ä" * 500),
        )
    publish_one("t", Outgoing(payload=b"x", headers=headers, correlation_id="ä" * 500))
    with pytest.raises(InvalidOption, match="65537 bytes, more than 65536"):
        publish_one("t", Outgoing(payload=b"x", headers=headers | {"c": ""}))
    with pytest.raises(InvalidOption, match="more than 500 characters"):
        publish_one("t", Outgoing(payload=b"x", correlation_id="x" * 501))
