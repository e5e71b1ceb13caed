"""Webhooks: messages are pushed by HTTP, signed, and retried."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from http_api.serving import problem
from postbus import Bus
from postbus.relay.webhook import verify
from relay.receiver import Answer, Receiver, receiving
from support.eventually import eventually


async def create(http: httpx.AsyncClient, receiver: Receiver, **more: Any) -> dict[str, Any]:
    body = {"name": "w", "topic": "jobs", "url": f"{receiver.url}/hook", **more}
    answer = await http.post("/v1/webhooks", json=body)
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


async def received(receiver: Receiver, count: int) -> None:
    async def so_many() -> None:
        assert len(receiver.received) >= count

    await eventually(so_many, within=15)


async def test_queue_is_pushed_to_a_webhook(http: httpx.AsyncClient, bus: Bus) -> None:
    """Each message is a signed POST with its payload and describing headers, and 200 acknowledges it."""
    with receiving() as receiver:
        created = await create(http, receiver)
        await bus.send("jobs", {"n": 1}, key="ö", headers={"a": "b"}, correlation_id="c")
        await received(receiver, 1)

        async def is_acked() -> None:
            assert await bus.admin.messages("jobs") == []

        await eventually(is_acked)
    [one] = receiver.received
    assert (one.path, one.body, one.headers["content-type"]) == ("/hook", b'{"n":1}', "application/json")
    assert one.headers["webhook-id"] == f"{one.headers['postbus-event-id']}:w"
    assert one.headers["postbus-topic"] == "jobs"
    assert one.headers["postbus-key"] == "%C3%B6"
    assert one.headers["postbus-headers"] == '{"a": "b"}'
    assert verify(created["secret"], one.headers, one.body)
    assert not verify(created["secret"], one.headers, one.body + b" ")


async def test_group_is_pushed_to_a_webhook(http: httpx.AsyncClient, bus: Bus) -> None:
    """A webhook with a group gets messages published from its creation on, in order per key."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await bus.send("events", "before")
    with receiving() as receiver:
        await create(http, receiver, topic="events", group="hook")
        for number in range(5):
            await bus.send("events", number, key="k")
        await received(receiver, 5)
    assert [one.body for one in receiver.received] == [b"0", b"1", b"2", b"3", b"4"]


async def test_refused_message_is_sent_again(http: httpx.AsyncClient, bus: Bus) -> None:
    """An answer other than 2xx is an attempt, and the next one follows the topic's policy."""
    await bus.admin.create_topic("jobs", retry_initial="10ms", max_attempts=3)
    with receiving() as receiver:
        receiver.answers += [Answer(500, b"broken"), Answer(503, headers={"retry-after": "0"})]
        await create(http, receiver)
        await bus.send("jobs", 1)
        await received(receiver, 3)
    assert [one.headers["postbus-attempt"] for one in receiver.received] == ["1", "2", "3"]


async def test_message_that_nobody_accepts_becomes_a_dead_letter(http: httpx.AsyncClient, bus: Bus) -> None:
    """After its last attempt it is given up, with the error."""
    await bus.admin.create_topic("jobs", retry_initial="10ms", max_attempts=2)
    with receiving() as receiver:
        pass
    await create(http, receiver)
    await bus.send("jobs", 1)

    async def is_dead() -> None:
        errors = [letter.last_error or "" for letter in await bus.admin.dead_letters("jobs")]
        assert len(errors) == 1
        assert "nobody listens at" in errors[0]

    await eventually(is_dead, within=15)


async def test_webhook_can_be_changed_while_the_server_runs(http: httpx.AsyncClient, bus: Bus) -> None:
    """Disabled it gets nothing; enabled at another address it gets the messages meanwhile; deleted, no more."""
    with receiving() as first, receiving() as second:
        await create(http, first)
        await bus.send("jobs", 1)
        await received(first, 1)
        assert (await http.patch("/v1/webhooks/w", json={"enabled": False})).json()["enabled"] is False
        await bus.send("jobs", 2)
        await http.patch("/v1/webhooks/w", json={"url": second.url, "enabled": True, "concurrency": 1, "timeout": 5})
        await received(second, 1)
        shown = (await http.get("/v1/webhooks/w")).json()
        assert (await http.delete("/v1/webhooks/w")).status_code == 204
        problem(await http.get("/v1/webhooks/w"), 404, "PB445")
    assert len(first.received) == 1
    assert shown | {"url": second.url, "concurrency": 1, "timeout": 5.0} == shown
    assert "secret" not in shown


async def test_receiver_that_does_not_answer_is_not_waited_for(http: httpx.AsyncClient, bus: Bus) -> None:
    """A request ends at the timeout, and at most `concurrency` of them are under way."""
    await bus.admin.create_topic("jobs", retry_initial="10ms", max_attempts=2)
    now = most = 0

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await reader.read()
        now -= 1
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    body = {"name": "w", "topic": "jobs", "url": url, "timeout": "200ms", "concurrency": 2}
    assert (await http.post("/v1/webhooks", json=body)).status_code == 201
    await bus.send_many("jobs", range(5))

    async def are_dead() -> None:
        assert len(await bus.admin.dead_letters("jobs")) == 5

    await eventually(are_dead, within=30)
    server.close()
    assert most == 2


@pytest.mark.parametrize("name", ["w", "v"])
async def test_consumer_has_only_one_webhook(http: httpx.AsyncClient, name: str) -> None:
    """Neither a name nor a queue or group can be used twice."""
    with receiving() as receiver:
        await create(http, receiver, enabled=False)
        body = {"name": name, "topic": "jobs", "url": receiver.url}
        problem(await http.post("/v1/webhooks", json=body), 409, "PB446")


async def test_given_secret_signs(http: httpx.AsyncClient, bus: Bus) -> None:
    """The secret may be given, and changed."""
    with receiving() as receiver:
        created = await create(http, receiver, secret="0123456789abcdef")
        await http.patch("/v1/webhooks/w", json={"secret": "fedcba9876543210"})
        await bus.send("jobs", 1)
        await received(receiver, 1)
    [one] = receiver.received
    assert created["secret"] == "0123456789abcdef"
    assert verify("fedcba9876543210", one.headers, one.body)


async def test_webhook_whose_topic_has_changed_does_not_stop_others(http: httpx.AsyncClient, bus: Bus) -> None:
    """A webhook that cannot work any more is skipped."""
    with receiving() as receiver:
        await create(http, receiver, name="unfit", topic="other", enabled=False)
        await bus.admin.create_topic("other", semantics="PUB_SUB")
        store = await bus.connect()
        async with store.connection() as conn:
            await conn.execute("update postbus.webhook set enabled = true")
        await create(http, receiver)
        await bus.send("jobs", 1)
        await received(receiver, 1)
