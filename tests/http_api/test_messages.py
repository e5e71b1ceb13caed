"""Pushing messages, and reading them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from http_api.serving import problem
from postbus import Bus


async def push(http: httpx.AsyncClient, body: str, topic: str = "orders") -> httpx.Response:
    return await http.post(
        f"/v1/topics/{topic}/messages", content=body.encode(), headers={"content-type": "application/json"}
    )


async def test_message_is_pushed_with_all_its_options(http: httpx.AsyncClient, bus: Bus) -> None:
    """They are stored with the message, and its id is a text."""
    answer = await http.post(
        "/v1/topics/orders/messages",
        json={
            "payload": {"n": 1}, "key": "k", "headers": {"a": "b"}, "priority": 7, "delay": "1 hour",
            "dedup_key": "once", "correlation_id": "c", "content_type": "application/vnd.order+json",
        },
    )  # fmt: skip

    assert answer.status_code == 201
    [message_id] = answer.json()["ids"]
    [row] = await bus.admin.messages("orders")
    assert str(row.id) == message_id
    assert (row.key, row.headers, row.priority) == ("k", {"a": "b"}, 7)
    assert (row.state, row.correlation_id) == ("scheduled", "c")
    assert row.content_type == "application/vnd.order+json"
    assert row.at is not None
    assert row.at > datetime.now(UTC) + timedelta(minutes=50)


async def test_deliver_at_schedules_a_message(http: httpx.AsyncClient, bus: Bus) -> None:
    """The time needs a zone."""
    at = datetime.now(UTC) + timedelta(hours=3)
    await push(http, f'{{"payload": 1, "deliver_at": "{at.isoformat()}"}}')
    [row] = await bus.admin.messages("orders")
    assert row.at == at
    problem(await push(http, '{"payload": 1, "deliver_at": "2030-01-31T18:00:00"}'), 400, "PB400")


async def test_pushing_again_with_a_dedup_key_returns_the_first_id(http: httpx.AsyncClient) -> None:
    """A client that does not know the outcome of a push may repeat it."""
    first, second = [await push(http, '{"payload": 1, "dedup_key": "d"}') for _ in range(2)]
    assert first.json() == second.json()


async def test_list_is_pushed_together_or_not_at_all(http: httpx.AsyncClient, bus: Bus) -> None:
    """One refused message refuses the others of its request."""
    await bus.admin.create_topic("orders", max_payload_bytes=100)
    answer = await push(http, '[{"payload": 1}, {"text": "' + "x" * 200 + '"}]')
    problem(answer, 413, "PB411")
    assert await bus.admin.messages("orders") == []
    assert len((await push(http, '[{"payload": 1}, {"text": "two"}]')).json()["ids"]) == 2
    assert (await push(http, "[]")).json() == {"ids": []}


@pytest.mark.parametrize(
    "payload", ['{"a": 1, "a": 2}', "123456789012345678901234567890", '{"x":1.0,\n "y":1e400}', "null", '"\\u0000"']
)
async def test_json_is_preserved_byte_for_byte(http: httpx.AsyncClient, bus: Bus, payload: str) -> None:
    """Big numbers, duplicate keys and spaces survive the way in and out."""
    await push(http, f'{{"payload": {payload}}}')
    [row] = await bus.admin.messages("orders")

    popped = await http.post("/v1/topics/orders/pop", json={})

    assert row.payload == payload.encode()
    assert f'"payload":{payload}' in popped.text


@pytest.mark.parametrize(
    ("body", "stored", "content_type"),
    [
        ({"text": "grüße\0"}, "grüße\0".encode(), "text/plain; charset=utf-8"),
        ({"text": "a;b", "content_type": "text/csv"}, b"a;b", "text/csv"),
        ({"text": "<a/>", "content_type": "application/xml"}, b"<a/>", "application/xml"),
        ({"text": "<a/>", "content_type": "image/svg+xml"}, b"<a/>", "image/svg+xml"),
        ({"base64": "AAH/"}, b"\0\1\xff", "application/octet-stream"),
        ({"base64": "AAH/", "content_type": "image/png"}, b"\0\1\xff", "image/png"),
        ({"base64": "/w==", "content_type": "text/plain"}, b"\xff", "text/plain"),
        ({"base64": "YQ==", "content_type": "text/plain; charset=ISO-8859-1"}, b"a", "text/plain; charset=ISO-8859-1"),
    ],
)
async def test_text_and_bytes_come_back_in_the_same_field(
    http: httpx.AsyncClient, bus: Bus, body: dict[str, str], stored: bytes, content_type: str
) -> None:
    """Text comes back as text if it is UTF-8, and other bytes as base64, wherever a message is shown."""
    [pushed] = (await http.post("/v1/topics/orders/messages", json=body)).json()["ids"]
    [row] = await bus.admin.messages("orders")
    [browsed] = (await http.get("/v1/topics/orders/messages")).json()["messages"]
    story = (await http.get(f"/v1/topics/orders/messages/{pushed}")).json()

    [message] = (await http.post("/v1/topics/orders/pop", json={})).json()["messages"]

    assert (row.payload, row.content_type) == (stored, content_type)
    for shown in (message, browsed, story):
        expected = {name: value for name, value in body.items() if name in ("text", "base64")}
        assert {name: shown[name] for name in ("payload", "text", "base64") if name in shown} == expected


async def test_invalid_json_comes_back_as_base64(http: httpx.AsyncClient, bus: Bus) -> None:
    """A payload that somebody else published as JSON, and that is none, does not break the answer."""
    await bus.send("orders", b"{not json", content_type="application/json")

    [message] = (await http.post("/v1/topics/orders/pop", json={})).json()["messages"]

    assert base64.b64decode(message["base64"]) == b"{not json"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("{}", 400, "PB410"),
        ('{"payload": 1, "text": "x"}', 400, "PB410"),
        ('{"base64": "?"}', 400, "PB410"),
        ('{"payload": 1, "content_type": "text/plain"}', 400, "PB410"),
        ('{"payload": "\xff"}', 400, "PB410"),
        ('{"payload": ' + "[" * 200 + "]" * 200 + "}", 400, "PB412"),
        ('{"payload": ' + "[" * 100_000 + "]" * 100_000 + "}", 400, "PB400"),
        ('{"payload": 1, "priorty": 1}', 400, "PB400"),
        ('{"payload": 1, "priority": 10}', 400, "PB400"),
        ('{"payload": 1, "delay": -1}', 400, "PB402"),
        ('{"payload": 1, "delay": "soon"}', 400, "PB402"),
        ('{"payload": 1, "delay": 1e300}', 400, "PB402"),
        ('{"payload": 1, "delay": 1, "deliver_at": "2030-01-31T18:00:00Z"}', 400, "PB402"),
        ('{"payload": 1, "key": "\\u0000"}', 400, "PB402"),
        ('{"payload": 1, "headers": {"a": 1}}', 400, "PB400"),
        ("{", 400, "PB400"),
        ("", 400, "PB400"),
        ("7", 400, "PB400"),
    ],
)
async def test_bad_message_is_refused(http: httpx.AsyncClient, bus: Bus, body: str, status: int, code: str) -> None:
    """The error has a remedy, and nothing is published."""
    raw = body.encode("latin-1")
    answer = await http.post("/v1/topics/orders/messages", content=raw, headers={"content-type": "application/json"})
    problem(answer, status, code)
    assert await bus.admin.messages("orders") == []


async def test_slashes_in_names_are_encoded(http: httpx.AsyncClient, bus: Bus) -> None:
    """A topic's name may contain slashes, as %2F in a path."""
    assert (await push(http, '{"payload": 1}', "eu%2forders%2Fnew")).status_code == 201
    assert len(await bus.admin.messages("eu/orders/new")) == 1
    assert (await http.get("/v1/topics/eu%2Forders%2Fnew")).json()["waiting"] == 1


async def test_messages_are_listed_and_shown(http: httpx.AsyncClient, bus: Bus) -> None:
    """A QUEUE's messages are listed by id, from any id on, and each shows its state."""
    ids = [await bus.send("jobs", n) for n in range(3)]

    first = (await http.get("/v1/topics/jobs/messages", params={"limit": 2})).json()["messages"]
    rest = (await http.get("/v1/topics/jobs/messages", params={"after_id": first[-1]["id"]})).json()["messages"]
    newest = (await http.get("/v1/topics/jobs/messages", params={"newest": True, "limit": 1})).json()["messages"]
    story = (await http.get(f"/v1/topics/jobs/messages/{ids[0]}")).json()

    assert [one["id"] for one in first + rest] == [str(one) for one in ids]
    assert newest[0]["id"] == str(ids[-1])
    assert (story["state"], story["payload"], story["attempts"]) == ("waiting", 0, 0)
    problem(await http.get("/v1/topics/jobs/messages/999999"), 404, "PB405")
    problem(await http.get("/v1/topics/none/messages"), 404, "PB404")
    problem(await http.get("/v1/topics/jobs/messages", params={"limit": 0}), 400, "PB400")


async def test_message_of_the_log_shows_its_deliveries(http: httpx.AsyncClient, bus: Bus) -> None:
    """It shows the required groups, and the delivery to each."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await http.put("/v1/topics/events/groups/mail", json={})
    message_id = await bus.send("events", {"n": 1}, key="k")
    popped = (await http.post("/v1/topics/events/pop", json={"group": "mail", "wait": 5})).json()["messages"]
    await http.post("/v1/ack", json={"messages": popped})

    story: dict[str, Any] = (await http.get(f"/v1/topics/events/messages/{message_id}")).json()

    assert (story["required"], story["retained"], story["key"]) == (["mail"], True, "k")
    assert [one["group_name"] for one in story["deliveries"]] == ["mail"]
    [listed] = (await http.get("/v1/topics/events/messages")).json()["messages"]
    assert listed["id"] == str(message_id)
