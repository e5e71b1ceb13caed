"""Webhooks: what is sent, how it is signed, and what answers mean."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from bench.ports import free_port
from postbus import Ack, DeadLetter, InvalidOption, Release, Retry, SinkUnavailable
from postbus.relay import WebhookSink
from postbus.relay.signatures import sign, signed, verify
from relay.parcels import event_id, opened, parcel
from relay.receiver import Answer, Receiver, receiving

SECRET = "a secret of a good length"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as started:
        yield started


async def test_message_is_posted_with_its_body_and_headers(receiver: Receiver) -> None:
    """The body is the published payload, and its id, type and headers are header fields."""
    headers = {"event-type": "placed", "traceparent": "00-1-2-01"}
    async with opened(WebhookSink(headers={"authorization": "Bearer x"})) as sink:
        told = await sink.send([parcel(f"{receiver.url}/hook", 7, headers=headers)])

    assert told == [Ack()]
    [got] = receiver.received
    assert (got.path, got.body, got.headers["content-type"]) == ("/hook", b'{"n": 1}', "application/json")
    assert got.headers["webhook-id"] == got.headers["event-id"] == event_id(7)
    assert got.headers["event-type"] == "placed"
    assert got.headers["traceparent"] == "00-1-2-01"
    assert got.headers["authorization"] == "Bearer x"


async def test_requests_are_signed_with_every_secret(receiver: Receiver) -> None:
    """While one secret replaces another, a receiver with either of them can verify the request."""
    new = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()
    async with opened(WebhookSink(secrets=[SECRET, new])) as sink:
        await sink.send([parcel(receiver.url)])

    [got] = receiver.received
    assert verify(SECRET, got.headers, got.body)
    assert verify(new, got.headers, got.body)
    assert not verify("another secret, just as long", got.headers, got.body)
    assert not verify(SECRET, got.headers, got.body + b" ")


def test_signatures_follow_standard_webhooks() -> None:
    """The example of the specification has the same signature."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signature = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def request(**more: str) -> dict[str, str]:
    """Return the headers of a request with the body x, sent in second 1000."""
    headers = {"content-type": "text/plain"} | {name.replace("_", "-"): value for name, value in more.items()}
    return headers | signed([SECRET], "1", 1000, headers, b"x")


@pytest.mark.parametrize("late", [-301, 301])
def test_request_of_another_time_is_not_genuine(late: int) -> None:
    """A signature is valid for five minutes, which prevents replays."""
    headers = {name.title(): value for name, value in request().items()}
    assert verify(SECRET, headers, b"x", now=1000)
    assert not verify(SECRET, headers, b"x", now=1000 + late)
    assert verify(SECRET, headers, b"x", now=1000 + late, tolerance=400)


@pytest.mark.parametrize(
    "missing", ["webhook-id", "webhook-timestamp", "content-type", "postbus-signed", "postbus-signature"]
)
def test_request_without_a_signature_header_is_not_genuine(missing: str) -> None:
    """Each of these headers is needed."""
    headers = request()
    del headers[missing]
    assert not verify(SECRET, headers, b"x", now=1000)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(204), Ack()),
        (Answer(422, b"no such order"), DeadLetter(reason="HTTP 422 Unprocessable Entity: no such order")),
        (Answer(500), Retry(error="HTTP 500 Internal Server Error")),
        (Answer(301, headers={"location": "/elsewhere"}), Retry(error="HTTP 301 Moved Permanently")),
        (
            Answer(429, headers={"retry-after": "7"}),
            Retry(error="HTTP 429 Too Many Requests", delay=timedelta(seconds=7)),
        ),
        (
            Answer(503, headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}),
            Retry(error="HTTP 503 Service Unavailable", delay=timedelta(0)),
        ),
        (Answer(503, headers={"retry-after": "soon"}), Retry(error="HTTP 503 Service Unavailable")),
    ],
)
async def test_answers_are_outcomes(receiver: Receiver, answer: Answer, outcome: object) -> None:
    """An answer that blames the message gives it up; all others retry, when the receiver wants it."""
    receiver.answers.append(answer)
    async with opened(WebhookSink()) as sink:
        assert await sink.send([parcel(receiver.url)]) == [outcome]


async def test_receiver_that_does_not_answer_is_retried() -> None:
    """The request may have succeeded, so the retry is one more attempt."""
    async with opened(WebhookSink(timeout="100ms")) as sink, _silence() as url:
        [told] = await sink.send([parcel(url)])
    assert isinstance(told, Retry)
    assert "Timeout" in str(told.error)


@asynccontextmanager
async def _silence() -> AsyncIterator[str]:
    """Run a server that accepts connections and never answers."""
    ended = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        ended.set()
        server.close()
        await server.wait_closed()


async def test_sink_without_a_listener_is_unavailable() -> None:
    """The message is released, and opening fails until somebody listens there again."""
    port = free_port()
    async with opened(WebhookSink()) as sink:
        assert await sink.send([parcel(f"http://127.0.0.1:{port}")]) == [Release()]
        with pytest.raises(SinkUnavailable, match=f"nobody listens at 127.0.0.1:{port}"):
            await sink.open()
        with receiving(port) as receiver:
            await sink.open()
            assert await sink.send([parcel(receiver.url)]) == [Ack()]


async def test_headers_are_encoded_for_http(receiver: Receiver) -> None:
    """Other characters are percent-encoded, and a line break cannot add another field."""
    async with opened(WebhookSink()) as sink:
        await sink.send([parcel(receiver.url, headers={"name": "Zoë\r\nx: y", "share": "10%"})])
    [got] = receiver.received
    assert (got.headers["name"], got.headers["share"]) == ("Zo%C3%AB%0D%0Ax:%20y", "10%25")
    assert "x" not in got.headers


@pytest.mark.parametrize(
    ("target", "headers", "why"),
    [
        ("ftp://example.com", {}, "not an address"),
        ("http://", {}, "not an address"),
        ("http://localhost:x1/", {}, "not an address"),
        ("http://localhost:1/", {"bad name": "x"}, "header 'bad name' has a name that the sink does not take"),
    ],
)
async def test_impossible_request_is_given_up(target: str, headers: dict[str, str], why: str) -> None:
    """The message is a dead letter at once, with the reason."""
    async with opened(WebhookSink()) as sink:
        [told] = await sink.send([parcel(target, headers=headers)])
    assert isinstance(told, DeadLetter)
    assert why in told.reason


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"secrets": ["short"]}, "shorter than 16 bytes"),
        ({"secrets": ["whsec_not base64"]}, "not base64"),
        ({"connections": 0}, "connections 0"),
        ({"connections": True}, "connections True"),
        ({"timeout": "soon"}, "timeout 'soon'"),
    ],
)
def test_bad_webhook_options_are_refused(options: dict[str, Any], why: str) -> None:
    """The error comes when the sink is made."""
    with pytest.raises(InvalidOption, match=why):
        WebhookSink(**options)
