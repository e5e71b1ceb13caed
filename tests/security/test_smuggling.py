"""A request that two servers could read differently is refused, and nothing behind it is read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postbus import Bus
from postbus.embedded import EmbeddedPostgres
from security.under_attack import Target, answers, attacked, database, with_bus

pytestmark = pytest.mark.attack("request smuggling")


async def _prepare(bus: Bus) -> dict[str, str]:
    await bus.admin.create_topic("t")
    return {"all": (await bus.admin.create_token("all", ["producer", "observer", "admin"], topics=["*"])).token}


@pytest.fixture(scope="module")
def target(server: EmbeddedPostgres) -> Iterator[Target]:
    """Run a server, and make a token for all its topics."""
    with database(server) as dsn:
        tokens = with_bus(dsn, _prepare)
        with attacked(dsn, "--auth") as target:
            target.tokens |= tokens
            yield target


BODY = b'{"text": "x"}'


def _request(target: Target, *lines: bytes, body: bytes = b"", first: bytes = b"POST /v1/topics/t/messages") -> bytes:
    given = [first + b" HTTP/1.1", b"Authorization: Bearer " + target.tokens["all"].encode(), *lines]
    return b"\r\n".join([*given, b"", body])


HOST = b"Host: 127.0.0.1"


def _hidden(target: Target) -> bytes:
    """Return the request that is smuggled: on its own it pushes a message."""
    return _request(target, HOST, b"Content-Length: %d" % len(BODY), body=BODY)


@pytest.mark.control
def test_two_pipelined_requests_are_two(target: Target) -> None:
    """Requests are read one after the other, so a smuggled one would be seen."""
    before = target.stored()
    told = answers(target.send(_hidden(target) + _hidden(target)))
    assert [one.status for one in told] == [201, 201]
    assert target.stored() == before + 2


_CHUNKED = b"Transfer-Encoding: chunked"
_END = b"0\r\n\r\n"

# Headers, with their body, that frame it in two ways or in a way that others read differently.
# The smuggled request follows.
FRAMINGS = {
    "CL.TE": ([b"Content-Length: 5", _CHUNKED], _END),
    "TE.CL": ([_CHUNKED, b"Content-Length: 5"], _END),
    "CL.TE, CL 0": ([b"Content-Length: 0", _CHUNKED], _END),
    "two lengths": ([b"Content-Length: 0", b"Content-Length: 13"], b""),
    "two lengths, the other way": ([b"Content-Length: 13", b"Content-Length: 0"], b""),
    "two lengths that are the same": ([b"Content-Length: 0", b"Content-Length: 0"], b""),
    "a list of lengths": ([b"Content-Length: 0, 13"], b""),
    "negative length": ([b"Content-Length: -1"], b""),
    "length with plus": ([b"Content-Length: +0"], b""),
    "hexadecimal length": ([b"Content-Length: 0x0"], b""),
    "length with a letter": ([b"Content-Length: 0a"], b""),
    "length with underscore": ([b"Content-Length: 1_3"], BODY),
    "length with a point": ([b"Content-Length: 0.0"], b""),
    "length beyond 64 bits": ([b"Content-Length: 18446744073709551616"], b""),
    "empty length": ([b"Content-Length: "], b""),
    "length in other digits": (["Content-Length: ٠".encode()], b""),
    "length behind NUL": ([b"Content-Length: 0\x00"], b""),
    "space before the colon": ([b"Content-Length : 0"], b""),
    "tab before the colon": ([b"Transfer-Encoding\t: chunked"], _END),
    "space before the name": ([b" Content-Length: 0"], b""),
    "folded line": ([b"Transfer-Encoding:\r\n chunked"], _END),
    "folded header": ([b"X-Y: z\r\n Transfer-Encoding: chunked", b"Content-Length: 5"], _END),
    "unknown coding": ([b"Transfer-Encoding: xchunked"], _END),
    "identity": ([b"Transfer-Encoding: identity"], b""),
    "chunked, then identity": ([b"Transfer-Encoding: chunked, identity"], _END),
    "chunked twice": ([_CHUNKED, _CHUNKED], _END + _END),
    "chunked and a vertical tab": ([b"Transfer-Encoding: \x0bchunked"], _END),
    "quoted coding": ([b'Transfer-Encoding: "chunked"'], _END),
    "bare LF in headers": ([b"X-Y: z\nTransfer-Encoding: chunked", b"Content-Length: 5"], _END),
    "bare CR in headers": ([b"X-Y: z\rTransfer-Encoding: chunked", b"Content-Length: 5"], _END),
    "NUL in a name": ([b"Transfer-Enc\x00oding: chunked"], _END),
    "no name": ([b": chunked", b"Content-Length: 0"], b""),
    "no colon": ([b"Transfer-Encoding chunked", b"Content-Length: 0"], b""),
    "negative chunk": ([_CHUNKED], b"-1\r\nx\r\n" + _END),
    "chunk size with 0x": ([_CHUNKED], b"0x1\r\nx\r\n" + _END),
    "chunk size with plus": ([_CHUNKED], b"+1\r\nx\r\n" + _END),
    "chunk size beyond 64 bits": ([_CHUNKED], b"10000000000000001\r\nx\r\n" + _END),
    "chunk without its end": ([_CHUNKED], b"1\r\nxy\r\n" + _END),
    "chunk that ends with LF": ([_CHUNKED], b"1\r\nx\n" + _END),
    "chunk size that ends with LF": ([_CHUNKED], b"1\nx\r\n" + _END),
    "chunk size with a space": ([_CHUNKED], b"1 \r\nx\r\n" + _END),
    "chunk extension with LF": ([_CHUNKED], b"1;a\nb\r\nx\r\n" + _END),
    "chunk extension with CR": ([_CHUNKED], b"1;a\rb\r\nx\r\n" + _END),
    "empty chunk size": ([_CHUNKED], b"\r\nx\r\n" + _END),
    "HTTP/1.0 in chunks": ([_CHUNKED], _END),
}


@pytest.mark.parametrize("name", FRAMINGS)
def test_ambiguously_framed_body_is_refused(target: Target, name: str) -> None:
    """The connection ends with it, so that the bytes behind it are no request and store no message."""
    lines, body = FRAMINGS[name]
    before = target.stored()
    request = _request(target, HOST, *lines, body=body)
    if name.startswith("HTTP/1.0"):
        request = request.replace(b" HTTP/1.1", b" HTTP/1.0", 1)

    told = target.send(request + _hidden(target))

    assert b" 201 " not in told.replace(b"\r\n", b" "), told
    assert target.stored() == before
    for one in answers(told):
        assert 400 <= one.status < 500, one


# Request lines and heads that are invalid.
HEADS = {
    "no host": b"POST /v1/topics/t/messages HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "two hosts": b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 0\r\n\r\n",
    "no version": b"POST /v1/topics/t/messages\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"GET /v1/topics\r\n\r\n",
    "HTTP/1.10": b"POST /v1/topics/t/messages HTTP/1.10\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "lower-case version": b"POST /v1/topics/t/messages http/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "space in the target": b"POST /v1/topics/t/messages /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "tab after the method": b"POST\t/v1/topics/t/messages HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "NUL in the target": b"POST /v1/topics/t\x00/messages HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "LF only": b"POST /v1/topics/t/messages HTTP/1.1\nHost: a\nContent-Length: 0\n\n",
    "lower-case method": b"post /v1/topics/t/messages HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "CONNECT": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: a\r\n\r\n",
    "upgrade to h2c": b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
    "upgrade to a socket": b"GET /v1/topics HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
}


@pytest.mark.parametrize("name", HEADS)
def test_invalid_head_opens_nothing(target: Target, name: str) -> None:
    """It opens neither a tunnel nor another protocol, and authenticates nobody."""
    before = target.stored()

    told = target.send(HEADS[name])

    assert b" 101 " not in told
    assert target.stored() == before
    for one in answers(told):
        assert one.status < 500
        assert one.status >= 400 or one.json.get("name") == "Postbus"  # which everybody may see
