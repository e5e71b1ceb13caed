"""Webhook requests that are forged, changed or replayed, and producers whose headers steer a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postbus import Ack
from postbus.relay import Envelope, WebhookSink
from postbus.relay.envelope import Unfit
from postbus.relay.reach import Reach
from postbus.relay.signatures import sign, signed, verify
from postbus.server.webhook_runner import Webhook
from relay.parcels import message, opened, parcel
from relay.receiver import Received, Receiver, receiving

pytestmark = pytest.mark.attack("signatures of webhooks")

SECRET = "a secret of a good length"
PAGE = Path(__file__).parents[2] / "docs" / "http.md"
Headers = dict[str, str]


async def requested(receiver: Receiver, **options: Any) -> Received:
    """Return a request as the server sends it."""
    row = {"name": "w", "url": f"{receiver.url}/hook", "secret": SECRET, "timeout": 5, "concurrency": 1}
    webhook = Webhook(row, Reach(["127.0.0.1"]))
    async with opened(webhook.sink):
        given: dict[str, Any] = {"headers": {"a": "b"}, "key": "k", "correlation_id": "c"}
        assert await webhook.post(message(**given | options)) == Ack()
    return receiver.received[-1]


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as started:
        yield started


def changed(**more: str) -> Callable[[Headers], Headers]:
    return lambda headers: headers | {name.replace("_", "-"): value for name, value in more.items()}


def without(*names: str) -> Callable[[Headers], Headers]:
    return lambda headers: {name: value for name, value in headers.items() if name not in names}


def not_signed(*names: str) -> Callable[[Headers], Headers]:
    """Remove these from the list of signed headers."""

    def take_off(headers: Headers) -> Headers:
        left = [name for name in headers["postbus-signed"].split(" ") if name not in names]
        return headers | {"postbus-signed": " ".join(left)}

    return take_off


def moved(headers: Headers) -> Headers:
    """Move the value of one header into the next one, so that the signed text may stay the same."""
    return headers | {"postbus-attempt": "1\npostbus-correlation-id: c", "postbus-correlation-id": ""}


FORGERIES: dict[str, Callable[[Headers], Headers]] = {
    "another topic": changed(postbus_topic="refunds"),
    "another attempt": changed(postbus_attempt="2"),
    "another event": changed(postbus_event_id="x"),
    "another key": changed(postbus_key="other"),
    "another correlation": changed(postbus_correlation_id="other"),
    "other headers of the message": changed(postbus_headers='{"a": "admin"}'),
    "another time of publishing": changed(postbus_published_at="2000-01-01T00:00:00+00:00"),
    "another content type": changed(content_type="text/html"),
    "another id": changed(webhook_id="x"),
    "another time": lambda headers: headers | {"webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)},
    "a header more": changed(postbus_tenant="other"),
    "a header more, said to be signed": lambda headers: (
        headers | {"postbus-tenant": "x", "postbus-signed": headers["postbus-signed"] + " postbus-tenant"}
    ),
    "a header less": without("postbus-key"),
    "a header less, and less said to be signed": lambda headers: (
        not_signed("postbus-key")(without("postbus-key")(headers))
    ),
    "the topic not signed": not_signed("postbus-topic"),
    "the time not signed": not_signed("webhook-timestamp"),
    "nothing signed": changed(postbus_signed=""),
    "only the essentials signed": changed(postbus_signed="webhook-id webhook-timestamp content-type"),
    "a name twice": lambda headers: headers | {"postbus-signed": headers["postbus-signed"] + " postbus-topic"},
    "another order": lambda headers: (
        headers | {"postbus-signed": " ".join(reversed(headers["postbus-signed"].split(" ")))}
    ),
    "one value in another": moved,
    "no list": without("postbus-signed"),
    "no signature": without("postbus-signature"),
    "an empty signature": changed(postbus_signature=""),
    "a signature of nothing": changed(postbus_signature="v1,"),
    "another version": lambda headers: (
        headers | {"postbus-signature": headers["postbus-signature"].replace("v1", "v0")}
    ),
    "the standard signature as ours": lambda headers: headers | {"postbus-signature": headers["webhook-signature"]},
    "only the standard signature": without("postbus-signature", "postbus-signed"),
    "no id": without("webhook-id"),
    "no time": without("webhook-timestamp"),
    "a time that is none": changed(webhook_timestamp="now"),
    "a time of other digits": changed(webhook_timestamp="\u0661\u0662"),
    "a time with a sign": lambda headers: headers | {"webhook-timestamp": "+" + headers["webhook-timestamp"]},
    "a time without end": changed(webhook_timestamp="9" * 5000),
    "a signature that is no ASCII": changed(postbus_signature="v1,\u00e4"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
async def test_changed_request_is_not_genuine(name: str, receiver: Receiver) -> None:
    """Without the secret nobody can change or remove a header that describes the message."""
    one = await requested(receiver)
    assert verify(SECRET, one.headers, one.body)
    assert not verify(SECRET, FORGERIES[name](dict(one.headers)), one.body)


@pytest.mark.parametrize("body", [b"", b'{"n": 1} ', b'{"n": 2}', b"\n"])
async def test_changed_body_is_not_genuine(body: bytes, receiver: Receiver) -> None:
    """The signature covers the payload, and headers cannot be moved into it."""
    one = await requested(receiver)
    assert not verify(SECRET, one.headers, body)


@pytest.mark.parametrize("secret", ["another secret, as long", SECRET + " ", "", "whsec_"])
async def test_another_secret_signs_nothing(secret: str, receiver: Receiver) -> None:
    """Each webhook has a secret of its own."""
    one = await requested(receiver)
    assert not verify(secret, one.headers, one.body)


@pytest.mark.parametrize("late", [-301, 301, 10**6])
async def test_replayed_request_expires(late: int, receiver: Receiver) -> None:
    """After five minutes a recorded request is worthless."""
    one = await requested(receiver)
    assert not verify(SECRET, one.headers, one.body, now=int(one.headers["webhook-timestamp"]) + late)


async def test_body_and_headers_cannot_be_confused() -> None:
    """An empty line ends the signed headers, and no header value can contain one."""
    headers = {"content-type": "text/plain", "postbus-key": "a%0Ab"}
    one = signed([SECRET], "1", 1000, headers, b"x")
    other = {"content-type": "text/plain", "postbus-key": "a%0Ab\n\nx"}
    assert not verify(SECRET, other | one, b"", now=1000)


def verifier_of_the_page() -> Callable[..., bool]:
    """Return the function that docs/http.md shows to those who write receivers."""
    [code] = re.findall(r"```python\n(import base64.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    found: Callable[..., bool] = names["is_genuine"]
    return found


@pytest.mark.parametrize("name", [None, *FORGERIES])
async def test_example_of_the_page_detects_forgeries(name: str | None, receiver: Receiver) -> None:
    """It accepts genuine requests, and no forged ones."""
    one = await requested(receiver)
    headers = dict(one.headers) if name is None else FORGERIES[name](dict(one.headers))
    assert verifier_of_the_page()(SECRET, headers, one.body) is (name is None)


@pytest.mark.control
async def test_signed_string_is_the_one_on_the_page(receiver: Receiver) -> None:
    """The page's example lists the sent headers, in their order."""
    one = await requested(receiver)
    [shown] = re.findall(r"```text\n(webhook-id: .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert [line.partition(": ")[0] for line in shown.partition("\n\n")[0].splitlines()] == one.headers[
        "postbus-signed"
    ].split(" ")


@pytest.mark.control
async def test_same_message_has_the_same_webhook_id(receiver: Receiver) -> None:
    """A receiver recognises a repeated message at any attempt."""
    first, second = await requested(receiver), await requested(receiver, attempt=2)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert (first.headers["postbus-attempt"], second.headers["postbus-attempt"]) == ("1", "2")


STEERING = [
    "host", "Host", "content-length", "Content-Length", "transfer-encoding", "connection", "keep-alive", "te",
    "trailer", "upgrade", "expect", "proxy-authorization", "proxy_connection", "authorization", "Authorization",
    "cookie",
    "content-encoding", "webhook-id", "Webhook-Id", "webhook_id", "webhook-timestamp", "webhook-signature",
    "postbus-signature", "postbus-signed", "Postbus_Signed", "forwarded", "via", "accept-encoding", "x-of-operator",
    "X-Of-Operator", "content_type",
]  # fmt: skip


@pytest.mark.parametrize("name", STEERING)
async def test_producer_cannot_steer_the_request(name: str, receiver: Receiver) -> None:
    """A message's headers replace none that frame or sign the request, or belong to the operator."""
    operator = {"authorization": "Bearer of the operator", "x-of-operator": "yes"}
    async with opened(WebhookSink(secrets=[SECRET], headers=operator, timeout=2)) as sink:
        told = await sink.send([parcel(receiver.url, headers={name: "7", "other": "8"})])
    assert told == [Ack()]
    one = receiver.received[-1]
    assert one.headers.get(name.lower().replace("_", "-")) != "7"
    assert (one.headers["other"], one.body) == ("8", b'{"n": 1}')
    assert (one.headers["authorization"], one.headers["x-of-operator"]) == tuple(operator.values())
    assert verify(SECRET, one.headers, one.body)


@pytest.mark.parametrize(
    "evil", ["x\r\nhost: evil", "x\nx: y", "text/\u00e9", "\x00", "a\x0bb", "x: y\r\n\r\nGET / HTTP/1.1"]
)
async def test_content_type_cannot_add_headers(evil: str, receiver: Receiver) -> None:
    """An invalid content type is not sent."""
    async with opened(WebhookSink(secrets=[SECRET])) as sink:
        assert await sink.send([parcel(receiver.url, content_type=evil)]) == [Ack()]
    one = receiver.received[-1]
    assert one.headers["content-type"] == "application/octet-stream"
    assert one.headers["host"] in receiver.url
    assert verify(SECRET, one.headers, one.body)


@pytest.mark.parametrize("key", ["..", ".", "...", ""])
def test_key_cannot_lead_to_another_path(key: str) -> None:
    """A key in an address is one segment of the path, and never the folder above."""
    with pytest.raises(Unfit):
        Envelope("http://h/tenants/{key}/hook", source="/s", quote=WebhookSink.quote).parcel(message(key=key))


@pytest.mark.parametrize("key", ["../x", "a/../../b", "@evil.org/", "x#", "x?y=z", "%2e%2e", "\\..\\x", "//evil.org"])
async def test_key_cannot_lead_to_another_host(key: str, receiver: Receiver) -> None:
    """The rest of the address stays as the operator wrote it."""
    sink = WebhookSink()
    made = Envelope(f"{receiver.url}/tenants/{{key}}/hook", source="/s", quote=sink.quote).parcel(message(key=key))
    async with opened(sink):
        assert await sink.send([made]) == [Ack()]
    parts = receiver.received[-1].path.split("/")
    assert (len(parts), parts[1], parts[3]) == (4, "tenants", "hook")


@pytest.mark.control
def test_standard_signature_is_sent_too() -> None:
    """Receivers with Standard Webhooks keep working, although that signature covers less."""
    told = signed([SECRET], "1", 1000, {"content-type": "text/plain"}, b"x")
    assert told["webhook-signature"] == sign(SECRET, "1", 1000, b"x")
    assert told["webhook-signature"] != told["postbus-signature"]
