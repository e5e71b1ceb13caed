"""A bad body gets a clear answer of 4xx, and nothing of it is stored."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from postbus import Bus
from postbus.embedded import EmbeddedPostgres
from postbus.results.access import TokenRole
from security.under_attack import Target, answers, attacked, database, with_bus

pytestmark = pytest.mark.attack("bodies of HTTP")

_PUSH = "/v1/topics/t/messages"
_TEXT = b'{"text": "x"}'


async def _prepare(bus: Bus) -> dict[str, str]:
    await bus.admin.create_topic("t", max_payload_bytes=1 << 20)
    await bus.admin.create_topic("log", semantics="PUB_SUB")
    roles: list[TokenRole] = ["producer", "consumer", "observer", "admin"]
    return {
        name: (await bus.admin.create_token(name, roles, topics=[topics])).token
        for name, topics in (("all", "*"), ("narrow", "t"))
    }


@pytest.fixture(scope="module")
def target(server: EmbeddedPostgres) -> Iterator[Target]:
    """Run a server that accepts bodies of 2 MB, and make a token for all its topics."""
    with database(server) as dsn:
        tokens = with_bus(dsn, _prepare)
        with attacked(dsn, "--auth", "--max-body", str(2 << 20)) as target:
            target.tokens |= tokens
            yield target


def deep(opening: bytes, closing: bytes, levels: int) -> bytes:
    return b'{"payload": ' + opening * levels + b"1" + closing * levels + b"}"


def with_field(name: str, value: str) -> bytes:
    return f'{{"text": "x", "{name}": {value}}}'.encode()


BODIES: dict[str, bytes] = {
    # Invalid JSON
    "empty": b"",
    "blank": b" \r\n\t ",
    "null": b"null",
    "a number": b"1",
    "a text": b'"x"',
    "cut off": b'{"text": "x"',
    "cut off in a text": b'{"text": "x',
    "more behind it": b'{"text": "x"} {"text": "y"}',
    "a comma too many": b'{"text": "x",}',
    "single quotes": b"{'text': 'x'}",
    "a comment": b'{"text": "x" /* y */}',
    "NaN": b'{"payload": NaN}',
    "infinity": b'{"payload": [Infinity]}',
    "minus infinity": b'{"payload": {"a": -Infinity}}',
    "a number with leading zeros": b'{"payload": 007}',
    "a hexadecimal number": b'{"payload": 0x10}',
    "a number that begins with a point": b'{"payload": .5}',
    "a NUL in it": b'{"payload": "a\x00b"}',
    "a NUL behind it": b'{"text": "x"}\x00',
    "a line end in a text": b'{"text": "a\nb"}',
    "an escape that is none": b'{"text": "\\x41"}',
    "bad UTF-8 in a text": b'{"text": "\xff"}',
    "bad UTF-8 in a payload": b'{"payload": "\xc3\x28"}',
    "overlong UTF-8": b'{"text": "\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"text": "\xed\xa0\x80"}',
    "a byte order mark": b"\xef\xbb\xbf" + _TEXT,
    "UTF-16": '{"text": "x"}'.encode("utf-16"),
    "UTF-32": '{"text": "x"}'.encode("utf-32"),
    "XML with an entity": b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
    "YAML": b"text: x",
    "pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01x\x94.",
    "MessagePack": b"\x81\xa4text\xa1x",
    "gzip": gzip.compress(_TEXT),
    "zlib": zlib.compress(_TEXT),
    # Too deep, too long, too large
    "100,000 lists": b"[" * 100_000,
    "100,000 lists that end": b"[" * 100_000 + b"]" * 100_000,
    "a payload of 100,000 lists": deep(b"[", b"]", 100_000),
    "a payload of 100,000 objects": deep(b'{"a":', b"}", 100_000),
    "a payload of 101 lists": deep(b"[", b"]", 101),
    "a payload of 101 objects": deep(b'{"a":', b"}", 101),
    "depth behind brackets in texts": b'{"payload": ["]]]]]]]]", ' + b"[" * 101 + b"]" * 101 + b"]}",
    "a payload beyond the topic's limit": b'{"text": "' + b"x" * ((1 << 20) + 1) + b'"}',
    "1,001 messages": b"[" + b",".join([_TEXT] * 1001) + b"]",
    "beyond the server's limit": b'{"text": "' + b"x" * (2 << 20) + b'"}',
    # Unsuitable values
    "no payload": b"{}",
    "two payloads": b'{"text": "x", "payload": 1}',
    "three payloads": b'{"text": "x", "payload": 1, "base64": "eA=="}',
    "an unknown field": with_field("topic", '"log"'),
    "a field of Python": with_field("__class__", '"x"'),
    "a field of JavaScript": with_field("__proto__", '{"admin": true}'),
    "a list in a list": b'[[{"text": "x"}]]',
    "null in a list": b'[{"text": "x"}, null]',
    "one of many is wrong": b'[{"text": "x"}, {"text": "y"}, {"text": 1}]',
    "one of many has a bad key": b'[{"text": "x"}, {"text": "y", "key": "a\\u0000"}]',
    "one of many has a bad priority": b'[{"text": "x"}, {"text": "y", "priority": 10}]',
    "base64 that is none": b'{"base64": "%%%"}',
    "base64 without its end": b'{"base64": "eA"}',
    "base64 with line ends": b'{"base64": "eA==\\n"}',
    "base64 of other letters": '{"base64": "еА=="}'.encode(),
    "a text that is a number": b'{"text": 1}',
    "a text that is null": b'{"text": null}',
    "a lone surrogate in a text": b'{"text": "\\ud800"}',
    "a lone surrogate in a key": with_field("key", '"\\udfff"'),
    "a NUL in a key": with_field("key", '"a\\u0000b"'),
    "a NUL in a header": with_field("headers", '{"a": "\\u0000"}'),
    "a NUL in a header's name": with_field("headers", '{"a\\u0000": "b"}'),
    "a NUL in a deduplication key": with_field("dedup_key", '"\\u0000"'),
    "a key beyond its limit": with_field("key", json.dumps("k" * 1001)),
    "a key of many bytes": with_field("key", json.dumps("\U0001f600" * 501)),
    "a deduplication key beyond its limit": with_field("dedup_key", json.dumps("k" * 1001)),
    "a correlation id beyond its limit": with_field("correlation_id", json.dumps("c" * 501)),
    "headers beyond their limit": with_field("headers", json.dumps({f"n{n}": "x" * 1000 for n in range(70)})),
    "a header beyond the limit": with_field("headers", json.dumps({"n": "x" * 65_536})),
    "a header's name beyond the limit": with_field("headers", json.dumps({"n" * 65_537: ""})),
    "headers that are a list": with_field("headers", '["a"]'),
    "a header that is a number": with_field("headers", '{"a": 1}'),
    "a header that is an object": with_field("headers", '{"a": {"b": "c"}}'),
    "a header that is null": with_field("headers", '{"a": null}'),
    "an identity with a line end": with_field("headers", '{"event-id": "a\\nb"}'),
    "a priority of 10": with_field("priority", "10"),
    "a priority below 0": with_field("priority", "-1"),
    "a priority of many digits": with_field("priority", "9" * 5000),
    "a priority with an exponent": with_field("priority", "1e999999"),
    "a priority that is true": with_field("priority", "true"),
    "a delay beyond all time": with_field("delay", "1e400"),
    "a delay of many digits": with_field("delay", "9" * 400),
    "a delay that is negative": with_field("delay", "-1"),
    "a delay that is NaN": with_field("delay", '"nan"'),
    "a delay that is infinite": with_field("delay", '"infinity"'),
    "a delay with SQL": with_field("delay", '"1\'; drop schema postbus cascade; --"'),
    "a moment that is none": with_field("deliver_at", '"2030-02-30T00:00:00Z"'),
    "a moment without a zone": with_field("deliver_at", '"2030-01-01T00:00:00"'),
    "a moment that is infinite": with_field("deliver_at", '"infinity"'),
    "a moment beyond year 9999": with_field("deliver_at", '"99999-01-01T00:00:00Z"'),
    "delay and moment": b'{"text": "x", "delay": 1, "deliver_at": "2030-01-01T00:00:00Z"}',
    "a content type with a line end": with_field("content_type", '"text/plain\\r\\nx: y"'),
    "a content type that is none": with_field("content_type", '"text"'),
    "a payload that is said not to be JSON": b'{"payload": 1, "content_type": "text/html"}',
}


@pytest.mark.parametrize("name", BODIES)
def test_bad_body_is_refused(target: Target, name: str) -> None:
    """The answer is 400 or 413 with problem details, and no message is stored."""
    before = target.stored()
    told = target.ask("POST", _PUSH, BODIES[name], token=target.tokens["all"]).is_refused(400, 413)
    assert told.headers["content-type"] == "application/problem+json"
    assert told.json["remedy"]
    assert target.stored() == before


# Other routes, and bodies that do not suit them.
ELSEWHERE: list[tuple[str, str, bytes]] = [
    ("POST", "/v1/topics/t/pop", b'{"count": 0}'),
    ("POST", "/v1/topics/t/pop", b'{"count": 99999999999999999999}'),
    ("POST", "/v1/topics/t/pop", b'{"wait": 1e308}'),
    ("POST", "/v1/topics/t/pop", b'{"wait": -1}'),
    ("POST", "/v1/topics/t/pop", b'{"lease": "1e999 years"}'),
    ("POST", "/v1/topics/t/pop", b'{"lease": "-1s"}'),
    ("POST", "/v1/topics/log/pop", b'{"group": "g\\u0000"}'),
    ("POST", "/v1/topics/log/pop", b'{"group": "../../x y"}'),
    ("POST", "/v1/topics/log/pop", b'{"group": "g", "key": "\\ud800"}'),
    ("POST", "/v1/topics/log/pop", b'{"group": "g", "mode": "message", "message_id": "99999999999999999999"}'),
    ("POST", "/v1/topics/log/pop", b'{"group": "g", "mode": "timestamp", "timestamp": "0000-01-01T00:00:00Z"}'),
    ("POST", "/v1/pop", b'{"group": "g", "pattern": "((((a+)+)+)+)$"}'),
    ("POST", "/v1/pop", b'{"group": "g", "pattern": "x\\u0000"}'),
    ("POST", "/v1/ack", b'{"messages": []}'),
    ("POST", "/v1/ack", b'{"messages": [{"id": "1", "token": "x"}]}'),
    ("POST", "/v1/ack", b'{"messages": [{"id": "-1", "token": "00000000-0000-4000-8000-000000000000"}]}'),
    (
        "POST",
        "/v1/ack",
        b'{"messages": [{"id": "9223372036854775808", "token": "00000000-0000-4000-8000-000000000000"}]}',
    ),
    ("POST", "/v1/ack", b'{"messages": [{"id": 1e3, "token": "00000000-0000-4000-8000-000000000000"}]}'),
    (
        "POST",
        "/v1/extend",
        b'{"messages": [{"id": "1", "token": "00000000-0000-4000-8000-000000000000"}], "lease": 1e300}',
    ),
    (
        "POST",
        "/v1/dead-letter",
        b'{"messages": [{"id": "1", "token": "00000000-0000-4000-8000-000000000000"}], "reason": "\\u0000"}',
    ),
    (
        "POST",
        "/v1/retry",
        b'{"messages": [{"id": "1", "token": "00000000-0000-4000-8000-000000000000"}], "error": "\\ud800"}',
    ),
    ("POST", "/v1/transaction", b"{}"),
    ("POST", "/v1/transaction", b'{"push": [{"topic": "t; drop table x", "messages": [{"text": "x"}]}]}'),
    (
        "POST",
        "/v1/transaction",
        b'{"push": [{"topic": "t", "messages": [{"text": "x"}]}, {"topic": "t", "messages": [{}]}]}',
    ),
    (
        "POST",
        "/v1/transaction",
        b'{"push": [{"topic": "t", "messages": [{"text": "x"}]}], '
        b'"ack": [{"id": "1", "token": "00000000-0000-4000-8000-000000000000"}]}',
    ),
    ("POST", "/v1/topics", b'{"name": "a\\nb"}'),
    ("POST", "/v1/topics", b'{"name": "new", "options": {"lanes": 99999999999}}'),
    ("POST", "/v1/topics", b'{"name": "new", "options": {"retention": "1000000000 years"}}'),
    ("POST", "/v1/topics", b'{"name": "new", "options": {"max_attempts": 1e308}}'),
    ("POST", "/v1/topics", b'{"name": "new", "options": {"retry_factor": 1e400}}'),
    ("PATCH", "/v1/topics/t", b'{"namespace": "\\u0000"}'),
    ("POST", "/v1/topics/log/groups/g/seek", b'{"start": "FROM_TIMESTAMP", "timestamp": "infinity"}'),
    ("POST", "/v1/topics/t/dead-letters/redrive", b'{"reason_like": "\\u0000"}'),
    ("POST", "/v1/topics/t/dead-letters/redrive", b'{"rate": 1e-400, "max_count": 0}'),
    ("POST", "/v1/topics/t/dead-letters/purge", b'{"ids": ["9223372036854775808"]}'),
    ("POST", "/v1/webhooks", b'{"name": "w", "topic": "t", "url": "file:///etc/passwd"}'),
    ("POST", "/v1/webhooks", b'{"name": "w\\u0000", "topic": "t", "url": "http://127.0.0.1:9/"}'),
    ("POST", "/v1/webhooks", b'{"name": "w", "topic": "t", "url": "http://127.0.0.1:9/", "concurrency": 1e9}'),
]


@pytest.mark.parametrize(("method", "path", "body"), ELSEWHERE, ids=lambda one: ascii(one)[:70])
def test_other_routes_refuse_bad_bodies(target: Target, method: str, path: str, body: bytes) -> None:
    """These are huge numbers, texts that the database cannot hold, and lists with one bad part."""
    before = target.stored()
    target.ask(method, path, body, token=target.tokens["all"]).is_refused(400, 404, 409, 413)
    assert target.stored() == before
    assert target.fetch("select count(*) from postbus.topics where name = 'new'") == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"push": [{"topic": "t", "topic": "log", "messages": [{"text": "x"}]}]}',
        b'{"push": [{"topic": "log", "messages": [{"text": "x"}], "\\u0074opic": "log"}]}',
        b'{"push": [{"topic": "t", "messages": [{"text": "x"}]}], '
        b'"push": [{"topic": "log", "messages": [{"text": "x"}]}]}',
    ],
)
def test_repeated_field_is_checked_as_it_is_used(target: Target, body: bytes) -> None:
    """A token for one topic cannot push to another one that is named beside it."""
    before = target.stored()
    target.ask("POST", "/v1/transaction", body, token=target.tokens["narrow"]).is_refused(400, 403)
    assert target.stored() == before


# Content types and codings that declare the body as something else than JSON.
TOLD: dict[str, tuple[bytes, tuple[tuple[str, str], ...]]] = {
    "a form": (b"text=x", (("content-type", "application/x-www-form-urlencoded"),)),
    "parts": (
        b'--b\r\ncontent-disposition: form-data; name="text"\r\n\r\nx\r\n--b--\r\n',
        (("content-type", "multipart/form-data; boundary=b"),),
    ),
    "parts without a boundary": (b"--\r\n", (("content-type", "multipart/form-data"),)),
    "a million parts": (b"--b\r\n\r\n" * 200_000, (("content-type", "multipart/form-data; boundary=b"),)),
    "UTF-16": (_TEXT.decode().encode("utf-16"), (("content-type", "application/json; charset=utf-16"),)),
    "MessagePack": (b"\x81\xa4text\xa1x", (("content-type", "application/x-msgpack"),)),
    "gzip": (gzip.compress(_TEXT), (("content-encoding", "gzip"),)),
    "gzip of a gigabyte": (gzip.compress(bytes(1 << 26)) * 16, (("content-encoding", "gzip"),)),
    "deflate": (zlib.compress(_TEXT), (("content-encoding", "deflate"),)),
    "br": (b"\x0b\x06\x80" + _TEXT + b"\x03", (("content-encoding", "br"),)),
    "gzip, told as a transfer": (gzip.compress(_TEXT), (("transfer-encoding", "gzip, chunked"),)),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_bodies_in_other_forms_are_not_unpacked(target: Target, name: str) -> None:
    """They are refused quickly, and take no memory."""
    body, headers = TOLD[name]
    before = target.stored()
    target.ask("POST", _PUSH, body, token=target.tokens["all"], headers=headers).is_refused(400, 413, 415)
    assert target.stored() == before


# Bodies that do not end as declared. Each contains a complete message up to where it stops.
UNFINISHED: dict[str, tuple[str, bytes]] = {
    "length beyond what comes": ("content-length: 100", _TEXT),
    "a chunk that is cut off": ("transfer-encoding: chunked", b"20\r\n" + _TEXT),
    "no last chunk": ("transfer-encoding: chunked", b"d\r\n" + _TEXT + b"\r\n"),
    "half a last chunk": ("transfer-encoding: chunked", b"d\r\n" + _TEXT + b"\r\n0\r\n"),
    "a chunk's size that is cut off": ("transfer-encoding: chunked", b"d\r\n" + _TEXT + b"\r\n1"),
    "a trailer that is cut off": ("transfer-encoding: chunked", b"d\r\n" + _TEXT + b"\r\n0\r\nx-y: "),
    "a chunk of no end": ("transfer-encoding: chunked", b"ffffffffffffffffffff\r\n" + _TEXT),
}


@pytest.mark.parametrize("name", UNFINISHED)
def test_unfinished_body_is_not_stored(target: Target, name: str) -> None:
    """When the client hangs up in the middle, nothing was pushed."""
    header, body = UNFINISHED[name]
    before = target.stored()
    head = (
        f"POST {_PUSH} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {target.tokens['all']}\r\n{header}\r\n\r\n"
    )
    told: list[Any] = answers(target.send(head.encode() + body, hang_up=True))
    assert all(400 <= one.status < 500 for one in told), told
    assert target.ask("GET", "/livez").status == 200
    assert target.stored() == before
