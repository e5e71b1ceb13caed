"""Receivers of webhooks that attack by their answers, and makers of webhooks that want to read these."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

import pytest

from http_api.serving import client, serving
from postbus import Ack, Bus, DeadLetter, Outcome, Retry
from postbus.relay import WebhookSink
from postbus.relay.reach import Reach
from relay.parcels import opened, parcel
from relay.receiver import Answer, receiving
from support.eventually import eventually

pytestmark = pytest.mark.attack("answers to webhooks")

OK = b"HTTP/1.1 200 OK\r\n"
ERROR = b"HTTP/1.1 500 No\r\n"
Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Attacker:
    """A receiver that answers as it likes, and counts what it could send."""

    def __init__(self, answer: Answering) -> None:
        self._answer = answer
        self.tasks: list[asyncio.Task[None] | None] = []

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.current_task())
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                await self._answer(reader, writer)
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def attacked_by(answer: Answering) -> AsyncIterator[str]:
    attacker = Attacker(answer)
    server = await asyncio.start_server(attacker.take, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in attacker.tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*filter(None, attacker.tasks), return_exceptions=True)


def once(answer: bytes) -> Answering:
    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.write_eof()
        await reader.read()  # until the sink, which has read what it wanted, closes the connection

    return write


def without_end(head: bytes, part: bytes, pause: float = 0) -> Answering:
    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)

    return write


@cache
def bomb(kind: str) -> bytes:
    """Return 64 MB of zeros, in 64 KB."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31 if kind == "gzip" else 15)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()


def compressed(kind: str, status: bytes) -> bytes:
    body = bomb(kind)
    return status + f"content-encoding: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


MB = b"x" * (1 << 16)
HEAVY: dict[str, tuple[Answering, type[Outcome]]] = {
    "a gzip bomb": (once(compressed("gzip", OK)), Ack),
    "a gzip bomb as an error": (once(compressed("gzip", ERROR)), Retry),
    "a deflate bomb": (once(compressed("deflate", ERROR)), Retry),
    "gzip that is none": (once(ERROR + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\nnone"), Retry),
    "an unknown encoding": (once(OK + b"content-encoding: evil\r\ncontent-length: 4\r\n\r\nnone"), Ack),
    "a body without end": (without_end(OK + b"\r\n", MB), Ack),
    "an error without end": (without_end(ERROR + b"\r\n", MB), Retry),
    "chunks without end": (without_end(OK + b"transfer-encoding: chunked\r\n\r\n", b"4\r\nevil\r\n"), Ack),
    "a slow body": (without_end(OK + b"\r\n", b"x", 0.01), Ack),
    "a slow error": (without_end(ERROR + b"\r\n", b"x", 0.01), Retry),
    "a body that does not come": (once(OK + b"content-length: 99999999999\r\n\r\nx"), Ack),
    "slow headers": (without_end(OK, b"x", 0.01), Retry),
    "headers without end": (without_end(OK, b"x: y\r\n"), Retry),
    "a header without end": (without_end(OK + b"x: ", MB), Retry),
    "a huge header": (once(OK + b"x: " + bytes(b"y" * (1 << 20)) + b"\r\n\r\n"), Retry),
    "a hundred thousand headers": (once(OK + b"x: y\r\n" * 100_000 + b"\r\n"), Retry),
    "a status line without end": (without_end(b"HTTP/1.1 200 ", MB), Retry),
    "to be continued without end": (without_end(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001), Retry),
    "early hints without end": (without_end(b"", b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n", 0.001), Retry),
    "a chunk that is announced as endless": (
        once(OK + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 16 + b"\r\nx"), Ack,
    ),
    "a chunk whose extension has no end": (without_end(OK + b"transfer-encoding: chunked\r\n\r\n4;", MB), Ack),
    "trailers without end": (without_end(OK + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"), Ack),
    "no HTTP": (once(b"SSH-2.0-OpenSSH_9.9\r\n\r\n"), Retry),
    "two lengths": (once(OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nxx"), Retry),
    "a length below zero": (once(OK + b"content-length: -1\r\n\r\n"), Retry),
    "another protocol": (once(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"), Retry),
}  # fmt: skip


@pytest.mark.parametrize("name", HEAVY)
async def test_answer_costs_little_and_ends(name: str) -> None:
    """Only a few KiB of an answer are read, undecoded and for a short time; its status decides."""
    answer, kind = HEAVY[name]
    async with attacked_by(answer) as url, opened(WebhookSink(timeout="150ms", reach=["127.0.0.1"])) as sink:
        began = time.monotonic()
        tracemalloc.start()
        try:
            [told] = await sink.send([parcel(url)])
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert isinstance(told, kind), told
    assert time.monotonic() - began < 2
    assert most < 8 << 20


async def test_rest_of_an_answer_does_not_answer_the_next_request() -> None:
    """A connection with an unread rest is closed."""
    smuggled = b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"
    left = [OK + b"content-length: 100000\r\n\r\n" + b"x" * 4096, OK + b"content-length: 0\r\n\r\n"]

    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) + (smuggled * 10 if left else b""))
        await writer.drain()
        await reader.read()

    async with attacked_by(write) as url, opened(WebhookSink(timeout="2s", connections=1)) as sink:
        assert [await sink.send([parcel(url)]), await sink.send([parcel(url)])] == [[Ack()], [Ack()]]
    assert left == []


async def test_receiver_is_not_offered_compression() -> None:
    """The sink asks for no encoding that it would not decode."""
    with receiving() as receiver:
        async with opened(WebhookSink()) as sink:
            await sink.send([parcel(receiver.url)])
        assert receiver.received[0].headers["accept-encoding"] == "identity"


EVIL = ["\x00", "\x1b]0;x\x07", "\x9b2J", "\r\nforged: yes", "\u202e", "\u2028", "\x7f", "\ud7ff\ue000"]


@pytest.mark.parametrize("evil", EVIL)
async def test_answer_is_kept_as_visible_text(evil: str) -> None:
    """A relay's error repeats it for the operator on one short line, without anything that a terminal obeys."""
    body = f"before {evil} after".encode("utf-8", "surrogatepass") + b"x" * 10_000
    with receiving() as receiver:
        receiver.answers.append(Answer(422, body))
        async with opened(WebhookSink()) as sink:
            [told] = await sink.send([parcel(receiver.url)])
    assert isinstance(told, DeadLetter)
    assert told.reason.startswith("HTTP 422 Unprocessable Entity: before \\")
    assert told.reason.isprintable()
    assert len(told.reason) < 600


SECRET = "the-token-of-the-metadata-service"
TELLING = {
    "body": f"HTTP/1.1 %d No\r\ncontent-length: {len(SECRET)}\r\n\r\n{SECRET}",
    "phrase": f"HTTP/1.1 %d {SECRET}\r\ncontent-length: 0\r\n\r\n",
    "header": f"HTTP/1.1 %d No\r\nlocation: http://x/{SECRET}\r\nx: {SECRET}\r\ncontent-length: 0\r\n\r\n",
    "no HTTP": f"{SECRET}\r\n\r\n%d",
    "bad header": f"HTTP/1.1 %d No\r\n{SECRET} : {SECRET}\r\n\r\n",
    "bad length": f"HTTP/1.1 %d No\r\ncontent-length: {SECRET}\r\n\r\n",
}


@pytest.mark.parametrize("status", [302, 422, 500])
@pytest.mark.parametrize("place", TELLING)
async def test_outcome_has_only_the_status(place: str, status: int) -> None:
    """Of a webhook's answer only the number of the status is kept."""
    answer = once((TELLING[place] % status).encode())
    sink = WebhookSink(reach=Reach(["127.0.0.1"]), tells_answers=False, timeout=2)
    async with attacked_by(answer) as url, opened(sink):
        [told] = await sink.send([parcel(url)])
    assert isinstance(told, DeadLetter | Retry)
    assert SECRET not in repr(told)


async def test_maker_of_a_webhook_cannot_read_the_answer(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """Neither dead letters nor the message, the webhook or the log contain any of it."""
    await bus.admin.create_topic("jobs", retry_initial="10ms", max_attempts=2)
    async with (
        attacked_by(once((TELLING["body"] % 500).encode())) as receiver,
        serving(bus, webhook_allow=("127.0.0.1",)) as url,
        client(url) as http,
    ):
        await http.post("/v1/webhooks", json={"name": "w", "topic": "jobs", "url": receiver})
        await bus.send("jobs", 1)

        async def is_dead() -> None:
            assert len((await http.get("/v1/topics/jobs/dead-letters")).json()["dead_letters"]) == 1

        await eventually(is_dead, within=20)
        paths = ("topics/jobs/dead-letters", "webhooks/w", "topics/jobs", "topics/jobs/messages")
        told = [(await http.get(f"/v1/{path}")).text for path in paths]
    assert SECRET not in "".join(told) + caplog.text
    assert "HTTP 500 Internal Server Error" in told[0]


@pytest.mark.control
def test_bombs_are_bombs() -> None:
    """The attacks are real: they are small when sent, and large when unpacked."""
    body = bomb("gzip")
    assert len(body) < 1 << 18
    unpacked: Any = zlib.decompressobj(31).decompress(body, 64 << 20)
    assert len(unpacked) == 64 << 20
    assert gzip.compress(b"")[:2] == body[:2]
