"""The keys of JWTs: replacing them, making the server fetch them, and what strangers learn of that."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from postbus import InvalidOption, PostbusError
from postbus.errors import NotAuthenticated, NotServed
from postbus.server import jwks
from postbus.server.jwt import JwtVerifier
from postbus.server.settings import JwtSettings

pytestmark = pytest.mark.attack("keys of JWTs")

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())


def published(*keys: str) -> bytes:
    found = [ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": one, "use": "sig"} for one in keys]
    return json.dumps({"keys": found}).encode()


def token(kid: str = "k", *, key: Any = KEY) -> str:
    claims = {"iss": "i", "aud": "a", "sub": "s", "exp": time.time() + 60, "postbus_roles": ["observer"]}
    return jwt.encode(claims, key, algorithm="ES256", headers={"kid": kid})


class Issuer:
    """A server with keys that counts its requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.url = ""
        self.ended = threading.Event()
        self.answer: Callable[[Issuer, Any], None] = lambda issuer, wfile: None

    def gives(self, body: bytes, head: str = "HTTP/1.1 200 OK") -> None:
        self.answer = lambda issuer, wfile: wfile.write(
            f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )


@contextmanager
def issuing() -> Iterator[Issuer]:
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked += 1
            try:
                issuer.answer(issuer, self.wfile)
            except OSError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # closing waits for them

    server = Server(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_address[1]}/jwks"
    issuer.gives(published("k"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield issuer
    finally:
        issuer.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
        for one in threading.enumerate():
            if one.name == "postbus-jwks":
                one.join()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as started:
        yield started


def verifier(address: str) -> JwtVerifier:
    return JwtVerifier(JwtSettings("i", "a", address))


async def told(of: JwtVerifier, given: str) -> str:
    """Return the error for this JWT, or an empty text if it is accepted."""
    try:
        await of.caller(given)
    except PostbusError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@asynccontextmanager
async def at_most(seconds: float) -> AsyncIterator[None]:
    async with asyncio.timeout(seconds):
        yield


@pytest.mark.parametrize(
    "address",
    [
        "http://id.example.org/jwks", "HTTP://id.example.org/jwks", "http://10.0.0.1/jwks", "http://127.0.0.1.evil.org/",
        "http://localhost.evil.org/", "http://127.0.0.1@evil.org/", "http://[::2]/", "http://0x7f000001/", "ftp://h/k",
        "file:///etc/passwd", "data://text/plain,x", "https://", "https:///jwks", "gopher://h/",
    ],
)  # fmt: skip
def test_keys_from_an_insecure_address_are_refused(address: str) -> None:
    """Only https, a file, and http on this machine are accepted, which is checked when the server starts."""
    with pytest.raises(InvalidOption, match="keys of JWTs cannot come from"):
        JwtSettings("i", "a", address)


@pytest.mark.control
@pytest.mark.parametrize(
    "address", ["https://id.example.org/k", "http://localhost:1/k", "http://127.0.0.1/k", "http://[::1]:1/", "/k.json"]
)
def test_secure_key_addresses_are_accepted(address: str) -> None:
    """The rule refuses no more than it should."""
    assert JwtSettings("i", "a", address).jwks == address


async def test_strangers_cannot_make_the_server_fetch_keys(issuer: Issuer) -> None:
    """A hundred JWTs with unknown keys cost one request, and known keys work meanwhile."""
    one = verifier(issuer.url)
    heard = await asyncio.gather(*(told(one, token(f"unknown-{number}")) for number in range(100)))
    assert set(heard) == {"NotAuthenticated: the JWT's key is not known (ask its issuer for another one)"}
    assert await told(one, token()) == ""
    assert issuer.asked == 1


@pytest.mark.parametrize("minutes", [0, 1, 2])
async def test_keys_are_fetched_once_a_minute_at_most(
    minutes: int, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute an unknown key is worth another request, because the issuer may have a new one."""
    one = verifier(issuer.url)
    await told(one, token("unknown"))
    issuer.gives(published("k", "new"))
    now = time.monotonic()
    monkeypatch.setattr(jwks, "_now", lambda: now + 50 + 60 * minutes)
    taken = await told(one, token("new")) == ""
    assert (issuer.asked, taken) == ((1, False) if minutes == 0 else (2, True))


async def test_failing_key_requests_are_not_repeated(issuer: Issuer) -> None:
    """An issuer in trouble is not asked for every stranger."""
    issuer.gives(b"", "HTTP/1.1 500 No")
    one = verifier(issuer.url)
    for _ in range(20):
        with pytest.raises(NotServed):
            await one.caller(token())
    assert issuer.asked == 1


BAD_ANSWERS: dict[str, bytes] = {
    "no JSON": b"<html>", "no text": b"\xff\xfe", "a list": b"[]", "a number": b"1", "null": b"null", "no keys": b"{}",
    "keys that are none": b'{"keys": 1}', "keys of nothing": b'{"keys": [null, 1, "x", []]}',
    "a key of nothing": b'{"keys": [{"kty": "EC"}]}',
    "a password": b'{"keys": [{"kty": "oct", "k": "AA", "kid": "k"}]}',
    "too deep": b"[" * 100_000, "too long": b" " * (1 << 20) + published("k"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_answer_without_keys_admits_nobody(name: str, issuer: Issuer) -> None:
    """Whatever the issuer answers, callers learn only that they are refused."""
    issuer.gives(BAD_ANSWERS[name])
    one = verifier(issuer.url)
    for given in (token(), token("x", key=OTHER)):
        heard = await told(one, given)
        assert heard.startswith(("NotServed: JWTs cannot be checked", "NotAuthenticated: the JWT"))
    assert issuer.asked == 1


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirects_of_the_issuer_are_not_followed(code: int, issuer: Issuer) -> None:
    """An impostor cannot send the server elsewhere for keys."""
    with issuing() as elsewhere:
        issuer.gives(b"", f"HTTP/1.1 {code} Moved\r\nlocation: {elsewhere.url}")
        assert "NotServed" in await told(verifier(issuer.url), token())
    assert elsewhere.asked == 0


def _drip(issuer: Issuer, wfile: Any) -> None:
    wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not issuer.ended.wait(0.01):
        wfile.write(b" ")


def _drip_headers(issuer: Issuer, wfile: Any) -> None:
    wfile.write(b"HTTP/1.1 200 OK\r\n")
    while not issuer.ended.wait(0.01):
        wfile.write(b"x")


def _flood(issuer: Issuer, wfile: Any) -> None:
    wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not issuer.ended.is_set():
        wfile.write(b" " * (1 << 16))


@pytest.mark.parametrize("answer", [_drip, _drip_headers, _flood], ids=lambda one: str(one.__name__))
async def test_endless_answer_of_the_issuer_is_abandoned(
    answer: Callable[[Issuer, Any], None], issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is limited in time and to a megabyte, while known keys keep working without delay."""
    one = verifier(issuer.url)
    assert await told(one, token()) == ""
    monkeypatch.setattr(jwks, "_TIMEOUT", 0.3)
    monkeypatch.setattr(jwks, "_APART", 0.0)
    issuer.answer = answer
    async with at_most(5):
        asking = asyncio.create_task(told(one, token("unknown")))
        while issuer.asked < 2:
            await asyncio.sleep(0.001)
        assert await told(one, token()) == ""
        assert "NotAuthenticated" in await asking
    for _ in range(5):
        await told(one, token("unknown"))
    assert threading.active_count() < 20


async def test_strangers_do_not_learn_the_cause(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    """The address of the keys and the error are in the log only, once a minute."""
    issuer.gives(b"secret of the issuer", "HTTP/1.1 418 internal-name")
    one = verifier(issuer.url)
    with caplog.at_level(logging.ERROR, "postbus"):
        heard = "".join([await told(one, token(kid)) for kid in ("k", "x", "127.0.0.1")])
    for word in ("127.0.0.1", "418", "internal-name", "jwks", "secret", "HTTP"):
        assert word not in heard
    assert ["418" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("path", ["/dev/zero", "/nowhere/jwks.json", "/tmp"])
async def test_file_without_keys_admits_nobody(path: str) -> None:
    """Neither an endless device nor a missing file blocks the server, and its name is not told."""
    async with at_most(5):
        heard = await told(verifier(path), token())
    assert "NotServed" in heard
    assert path not in heard


async def test_withdrawn_key_is_forgotten(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five minutes after the issuer withdrew a key, its signatures are refused."""
    one = verifier(issuer.url)
    assert await told(one, token()) == ""
    issuer.gives(published("next"))
    now = time.monotonic()
    monkeypatch.setattr(jwks, "_now", lambda: now + 301)
    with pytest.raises(NotAuthenticated, match="not known"):
        await one.caller(token())


@pytest.mark.parametrize("kid", ["", "x" * 4000, "../k", "k\x00", "\u202ek", "K", " k"])
async def test_only_the_exact_id_finds_a_key(kid: str, tmp_path: Path) -> None:
    """An unknown id is not repeated in the error."""
    (tmp_path / "jwks").write_bytes(published("k"))
    heard = await told(verifier(str(tmp_path / "jwks")), token(kid))
    assert heard == "NotAuthenticated: the JWT's key is not known (ask its issuer for another one)"
