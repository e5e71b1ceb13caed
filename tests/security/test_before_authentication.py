"""Strangers can make the server do little before authentication: read, wait, remember, query the database."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql

from http_api.serving import new_token, serving
from postbus import Bus
from postbus.embedded import EmbeddedPostgres
from security.served import Served, database, read_all, send_until_closed, served, soon, status_of

pytestmark = pytest.mark.attack("limits before authentication")
_CONNECTIONS = 40
_MIB = 1 << 20


@pytest.fixture(scope="module")
def target(server: EmbeddedPostgres) -> Iterator[Served]:
    """Run a server with few connections and short timeouts, and a token for everything."""
    options = ("--auth", "--max-connections", str(_CONNECTIONS), "--header-timeout", "0.5", "--body-timeout", "0.5")
    with database(server) as dsn, served(dsn, *options) as running:
        running.tokens["all"] = running.new_token("producer", "consumer", "observer", "admin")
        yield running


def is_well(target: Served) -> None:
    """Check that a valid token is served, and quickly."""
    began = time.monotonic()
    with target.client(target.tokens["all"]) as http:
        assert http.get("/v1/topics").status_code == 200
    assert time.monotonic() - began < 2.0


HEAD = b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\n"


# Size and number of headers


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (HEAD + b"x-long: ", b"a" * _MIB),
        (HEAD + b"x", b"a" * _MIB),
        (b"GET /", b"a" * _MIB),
        (b"GET /?", b"a=1&" * (_MIB // 4)),
        (HEAD, b"x-many: 1\r\n" * (_MIB // 11)),
        (HEAD + b"authorization: Bearer ", b"p" * _MIB),
        (b"", b"\r\n" * (_MIB // 2)),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n5;x=", b"e" * _MIB),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\nx-trailer: ", b"t" * _MIB),
    ],
    ids=["value", "name", "address", "query", "many", "token", "empty lines", "chunk extension", "trailer"],
)
def test_head_of_200_mb_is_refused(target: Served, start: bytes, piece: bytes) -> None:
    """The server stops reading long before, and its memory hardly grows."""
    before = target.most_memory()
    with target.connect() as conn:
        conn.sendall(start)
        sent = send_until_closed(conn, piece, 200)
    assert sent < 200, "all of it was read"
    assert target.most_memory() - before < 30 * _MIB
    is_well(target)


@pytest.mark.parametrize("size", [65 << 10, 100 << 10, 200 << 10])
def test_slightly_too_large_head_gets_431(target: Served, size: int) -> None:
    """The answer has a remedy, and the server does not wait for the end of the head."""
    with target.connect() as conn:
        conn.sendall(HEAD + b"x-long: " + b"a" * size)
        answer = read_all(conn)
    assert status_of(answer) == 431
    assert b"PB443" in answer
    assert b"remedy" in answer


@pytest.mark.parametrize(("count", "status"), [(98, 401), (101, 431), (1000, 431)])
def test_request_has_100_headers_at_most(target: Served, count: int, status: int) -> None:
    """The limit applies however short they are."""
    with target.connect() as conn:
        conn.sendall(HEAD + b"a: b\r\n" * count + b"connection: close\r\n\r\n")
        assert status_of(read_all(conn)) == status


def test_headers_within_the_limits_are_accepted(target: Served) -> None:
    """60 KiB in many headers, with a valid token, may arrive in pieces."""
    fields = b"".join(b"x-%02d: %b\r\n" % (number, b"v" * 1000) for number in range(60))
    token = f"authorization: Bearer {target.tokens['all']}\r\n".encode()
    request = HEAD + fields + token + b"connection: close\r\n\r\n"
    with target.connect() as conn:
        for place in range(0, len(request), 10_000):
            conn.sendall(request[place : place + 10_000])
        assert status_of(read_all(conn)) == 200


def test_trailers_are_no_headers(target: Served) -> None:
    """A token that comes after the body does not authenticate."""
    trailer = f"authorization: Bearer {target.tokens['all']}\r\n".encode()
    start = b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    with target.connect() as conn:
        conn.sendall(start + b'd\r\n{"payload":1}\r\n0\r\n' + trailer + b"\r\n")
        assert status_of(read_all(conn)) == 401


def test_garbage_gets_400_and_is_not_logged(target: Served) -> None:
    """Otherwise anybody could fill the log."""
    before = target.logged()
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"HELP\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"a: b\r\n\r\n",
    ):
        with target.connect() as conn:
            conn.sendall(garbage)
            answer = read_all(conn)
        assert status_of(answer) == 400, garbage
        assert b"application/problem+json" in answer
    assert target.logged() == before


# Connections


def opened(target: Served, count: int, start: bytes) -> ExitStack:
    """Open this many connections, over which this much was sent."""
    stack = ExitStack()
    for _ in range(count):
        conn = stack.enter_context(target.connect())
        with suppress(OSError):
            conn.sendall(start)
    return stack


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET",
        HEAD,
        HEAD + b"x-long: aaaa",
        b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{",
        HEAD + b"authorization: Bearer pbt_000000000000_00\r\n\r\n" + HEAD,
    ],
    ids=["silent", "method", "host", "header", "body", "wrong token"],
)
def test_half_sent_requests_keep_nobody_out(target: Served, start: bytes) -> None:
    """Callers with a valid token are served meanwhile, and the 600 requests are gone a moment later."""
    with opened(target, 600, start):
        for _ in range(5):
            is_well(target)
        assert target.connections() <= _CONNECTIONS + 20 + 20

        def all_are_gone() -> None:
            assert target.connections() == 0

        soon(all_are_gone, within=8)


@pytest.mark.parametrize(("start", "piece"), [
    (HEAD, b"a: b\r\n"),
    (b"", b"\r\n"),
    (b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n", b" "),
    (HEAD + b"\r\n" + b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n", b" "),
], ids=["headers", "empty lines", "body", "body after an answer"])  # fmt: skip
def test_request_that_comes_byte_by_byte_is_ended(target: Served, start: bytes, piece: bytes) -> None:
    """Sending something now and then does not keep the connection."""
    with target.connect() as conn:
        conn.sendall(start)
        began = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - began < 12:
                conn.sendall(piece)
                time.sleep(0.1)
        assert time.monotonic() - began < 11


def test_slow_body_with_a_valid_token_gets_408(target: Served) -> None:
    """The answer comes after the timeout for bodies."""
    token = target.tokens["all"].encode()
    start = b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + token
    with target.connect() as conn:
        conn.sendall(start + b"\r\ncontent-length: 1000\r\n\r\n{")
        assert status_of(read_all(conn)) == 408


def test_slow_headers_get_408(target: Served) -> None:
    """The answer comes after the timeout for headers."""
    with target.connect() as conn:
        conn.sendall(HEAD)
        assert status_of(read_all(conn)) == 408


def test_authenticated_connections_are_limited_too(target: Served) -> None:
    """Beyond the limit a caller gets a clear refusal; when one connection closes, the next is accepted."""
    token = target.tokens["all"]
    poll = (
        f"POST /v1/topics/polled/pop HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: 11\r\n\r\n"
        '{"wait":30}'
    ).encode()
    with ExitStack() as stack:
        polls = [stack.enter_context(target.connect()) for _ in range(_CONNECTIONS)]
        for one in polls:
            one.sendall(poll)

        def is_refused() -> httpx.Response:
            with target.client(token) as http:
                answer = http.get("/v1/topics")
            assert answer.status_code == 503
            return answer

        refused = soon(is_refused)
        assert refused.json()["code"] == "PB439"
        assert "--max-connections" in refused.json()["remedy"]
        assert refused.headers["retry-after"]
        with target.client() as http:
            assert http.get("/livez").status_code == 200
        polls.pop().close()

        def is_let_in() -> None:
            is_well(target)

        soon(is_let_in)


def test_pipelined_requests_are_not_queued(target: Served) -> None:
    """A client that sends 100,000 requests without waiting is cut off, and costs no memory."""
    before = target.most_memory()
    with target.connect() as conn:
        conn.settimeout(5)
        with suppress(OSError):
            conn.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 100_000)
    assert target.most_memory() - before < 30 * _MIB
    is_well(target)


def test_unread_answers_are_dropped(target: Served) -> None:
    """The largest answer that strangers can get is requested 300 times and never read."""
    with target.client() as http:
        assert http.get("/docs").status_code == 200
    before = target.memory()
    with opened(target, 300, b"GET /docs HTTP/1.1\r\nhost: x\r\n\r\n" * 3):
        is_well(target)
        assert target.memory() - before < 100 * _MIB


# Wrong tokens


class Hammer(threading.Thread):
    """Sends wrong tokens as quickly as it can, over one connection."""

    def __init__(self, target: Served, stop: threading.Event, token: str, headers: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._target, self._end, self._token, self._headers = target, stop, token, headers
        self.statuses: list[int] = []

    def run(self) -> None:
        with self._target.client(self._token) as http:
            while not self._end.is_set():
                with suppress(httpx.HTTPError):
                    self.statuses.append(http.get("/v1/topics", headers=self._headers).status_code)


def hammered(target: Served, token: str, headers: dict[str, str], seconds: float) -> list[int]:
    """Return the statuses that some hammers got in so many seconds, while valid tokens are served from the same
    address."""
    stop = threading.Event()
    hammers = [Hammer(target, stop, token, headers) for _ in range(8)]
    for one in hammers:
        one.start()
    try:
        deadline = time.monotonic() + seconds
        with target.client(target.tokens["all"]) as http:
            while time.monotonic() < deadline:
                assert http.get("/v1/topics").status_code == 200
        fresh = target.new_token("observer")
        with target.client(fresh) as http:
            assert http.get("/v1/topics").status_code == 200, "a token that the server has not seen before"
    finally:
        stop.set()
        for one in hammers:
            one.join(10)
    return [status for one in hammers for status in one.statuses]


@pytest.mark.parametrize(
    ("token", "headers"),
    [
        ("pbt_000000000000_" + "0" * 64, {}),
        ("pbt_000000000000_" + "0" * 64, {"x-forwarded-for": "198.51.100.7"}),
        ("pbt_000000000000_" + "0" * 64, {"forwarded": "for=198.51.100.7", "x-real-ip": "198.51.100.7"}),
        ("no-token", {}),
    ],
    ids=["plain", "x-forwarded-for", "forwarded", "no token"],
)
def test_wrong_tokens_are_limited_and_valid_ones_are_not(target: Served, token: str, headers: dict[str, str]) -> None:
    """Few are checked and the others have to wait; no header can pretend another address."""
    statuses = hammered(target, token, headers, 1.0)

    assert set(statuses) <= {401, 429}
    assert statuses.count(401) <= 40
    assert len(statuses) < 150, "each connection has to wait"


def test_wrong_tokens_with_a_right_id_are_limited_too(target: Served) -> None:
    """Ids are no secrets, and the real token with that id keeps working."""
    _, token_id, _ = target.tokens["all"].split("_")
    statuses = hammered(target, f"pbt_{token_id}_{'0' * 64}", {}, 1.0)
    assert set(statuses) <= {401, 429}
    is_well(target)


def test_trusted_proxy_reports_client_addresses(server: EmbeddedPostgres, target: Served) -> None:
    """Each client is counted by its own address, and addresses that the client itself sends are ignored."""
    wrong = {"authorization": f"Bearer pbt_000000000000_{'0' * 64}"}
    with served(target.dsn, "--auth", "--trusted-proxy", "127.0.0.0/8") as proxied, proxied.client() as http:

        def last_of(client: str, count: int) -> int:
            for _ in range(count):
                answer = http.get("/v1/topics", headers={**wrong, "x-forwarded-for": client})
            return answer.status_code

        assert last_of("198.51.100.1", 21) == 429
        assert last_of("198.51.100.2", 1) == 401
        assert last_of("203.0.113.9, 198.51.100.1", 1) == 429, "the first address is what the client has sent"
        assert last_of("198.51.100.1, 127.0.0.3", 1) == 429, "a second proxy is trusted as well"
        assert last_of("2001:db8::1", 20) == 401
        assert last_of("2001:db8::ffff:1", 1) == 429, "each client has 64 bits of addresses to itself"
        assert last_of("[2001:db8:1::1]:4711", 1) == 401


# Health


def asked(target: Served) -> int:
    """Return how often the database was asked for its state."""
    with psycopg.connect(target.dsn, autocommit=True) as conn:
        row: Any = conn.execute(
            "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = 'schema_state'"
        ).fetchone()
    return int(row[0])


def test_readyz_queries_the_database_once_a_second(server: EmbeddedPostgres, target: Served) -> None:
    """The rate does not depend on how often strangers ask."""
    with psycopg.connect(target.dsn, autocommit=True) as conn:
        name = conn.info.dbname
        conn.execute(sql.SQL("alter database {} set track_functions = 'all'").format(sql.Identifier(name)))
    with served(target.dsn, "--auth") as fresh, fresh.client() as http:
        before = asked(target)
        began = time.monotonic()
        for _ in range(500):
            assert http.get("/readyz").status_code == 200
        seconds = time.monotonic() - began

        def is_counted() -> None:
            assert asked(target) > before

        soon(is_counted)
        assert asked(target) - before <= seconds + 2


def test_readyz_tells_strangers_nothing_of_the_database(target: Served, server: EmbeddedPostgres) -> None:
    """The answer has neither host nor port, nor the cause."""
    with psycopg.connect(target.dsn, autocommit=True) as conn:
        conn.execute("alter function postbus.schema_state() rename to hidden")
        try:

            def is_unready() -> httpx.Response:
                with target.client() as http:
                    answer = http.get("/readyz")
                assert answer.status_code == 503
                return answer

            told = soon(is_unready).json()
        finally:
            conn.execute("alter function postbus.hidden() rename to schema_state")
    assert "postbus." not in told["detail"]
    assert told["remedy"] == "see the log of the server"


@pytest.mark.parametrize("where", ["headers", "body"])
def test_clients_that_hang_up_leave_no_traceback(target: Served, where: str) -> None:
    """Twenty clients disconnect in the middle of a request."""
    token = target.tokens["all"].encode()
    start = b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + token + b"\r\n"
    if where == "body":
        start += b"content-length: 1000\r\n\r\n{"
    before = target.logged()
    for _ in range(20):
        with target.connect() as conn:
            conn.sendall(start)
            time.sleep(0.01)
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    is_well(target)

    def all_are_gone() -> None:
        assert target.connections() == 0

    soon(all_are_gone)
    assert target.logged() == before


async def test_client_that_does_not_read_its_answer_is_cut_off(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a valid token and a large answer, and holds up nobody else."""
    monkeypatch.setattr("postbus.server.connections._STALLED", 0.5)
    for _ in range(8):
        await bus.send("large", "x" * 1_000_000)
    token = await new_token(bus, "observer")
    request = f"GET /v1/topics/large/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n"
    async with serving(bus, auth=True) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1000)
        writer.write(request.encode())
        read = await reader.readexactly(1000)
        assert read.startswith(b"HTTP/1.1 200")
        await asyncio.sleep(2)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(8_000_000)
        writer.close()
