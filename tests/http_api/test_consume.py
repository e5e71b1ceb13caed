"""Popping messages over HTTP, and settling them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from http_api.serving import problem, serving
from postbus import Bus
from postbus.server.app import new_context
from postbus.server.callers import EVERYBODY
from postbus.server.context import Call
from postbus.server.long_polls import LongPolls
from postbus.server.settings import ServerSettings
from support.eventually import eventually


async def push(http: httpx.AsyncClient, topic: str, *payloads: Any, **options: Any) -> list[str]:
    answer = await http.post(f"/v1/topics/{topic}/messages", json=[{"payload": one, **options} for one in payloads])
    assert answer.status_code == 201, answer.text
    ids: list[str] = answer.json()["ids"]
    return ids


async def pop(http: httpx.AsyncClient, topic: str, **asked: Any) -> list[dict[str, Any]]:
    answer = await http.post(f"/v1/topics/{topic}/pop", json=asked)
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


async def state_of(bus: Bus, topic: str) -> list[str]:
    return [row.state for row in await bus.admin.messages(topic)]


async def test_popped_messages_can_be_sent_back_to_ack(http: httpx.AsyncClient, bus: Bus) -> None:
    """The objects of a pop settle the messages as they are."""
    ids = await push(http, "jobs", {"n": 1}, {"n": 2}, key="k", headers={"a": "b"})
    messages = await pop(http, "jobs", count=10)

    answer = await http.post("/v1/ack", json={"messages": messages})

    assert [one["id"] for one in messages] == ids
    assert [one["payload"] for one in messages] == [{"n": 1}, {"n": 2}]
    assert messages[0] | {"attempt": 1, "key": "k", "headers": {"a": "b"}, "topic": "jobs"} == messages[0]
    assert answer.json() == {"settled": 2, "lost": []}
    assert await state_of(bus, "jobs") == []


async def test_poll_waits_for_a_message(http: httpx.AsyncClient) -> None:
    """A pop with wait returns as soon as there is a message."""
    polling = asyncio.create_task(pop(http, "jobs", wait=30))
    await asyncio.sleep(0)
    await push(http, "jobs", "now")

    [message] = await asyncio.wait_for(polling, 10)

    assert message["payload"] == "now"


async def test_poll_returns_empty_when_its_time_is_over(http: httpx.AsyncClient) -> None:
    """An empty list is no error."""
    assert await pop(http, "jobs", wait=0.05) == []
    assert await pop(http, "jobs") == []


def polls() -> int:
    """Return how many pops wait in this process."""
    return [task.get_name() for task in asyncio.all_tasks()].count("postbus-poll")


async def test_disconnected_caller_ends_its_poll(http: httpx.AsyncClient) -> None:
    """A client that disconnects while it polls gets nothing, and no message is held for it."""
    polling = asyncio.create_task(pop(http, "jobs", wait=30, lease=60))

    async def is_waiting() -> None:
        assert polls() == 1

    async def is_over() -> None:
        assert polls() == 0

    await eventually(is_waiting)
    polling.cancel()
    await eventually(is_over)
    await push(http, "jobs", 1)

    [message] = await pop(http, "jobs", wait=10)  # its last claim may be under way: the message is then released

    assert message["attempt"] == 1


def call_of(bus: Bus) -> Call:
    """Return a call of a server without authentication."""
    return Call(new_context(bus, ServerSettings()), EVERYBODY)


async def test_message_for_a_disconnected_caller_is_released(bus: Bus) -> None:
    """A message popped in the moment when the client disconnects is released at once."""
    await bus.send("jobs", 1)
    gone = asyncio.Event()

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def take() -> Any:
        popped = await bus.pop("jobs", lease=60)
        gone.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return popped

    request: Any = SimpleNamespace(receive=receive)
    taken: Any = take()
    assert await LongPolls().wait(request, taken, call_of(bus)) == ()

    [row] = await bus.admin.messages("jobs")
    assert (row.state, row.attempts) == ("waiting", 0)


async def test_cancelled_request_takes_no_message(bus: Bus) -> None:
    """A server that does not wait for a poll to end cancels the pop as well."""
    request: Any = SimpleNamespace(receive=asyncio.Event().wait)
    waiting = asyncio.create_task(LongPolls().wait(request, bus.pop("jobs", wait=30), call_of(bus)))

    async def is_waiting() -> None:
        assert polls() == 1

    async def is_over() -> None:
        assert polls() == 0

    await eventually(is_waiting)
    waiting.cancel()
    await eventually(is_over)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await bus.send("jobs", 1)
    assert len(await bus.pop("jobs")) == 1


async def test_messages_are_retried_given_up_and_released(http: httpx.AsyncClient, bus: Bus) -> None:
    """Each settlement leads to its state."""
    await push(http, "jobs", 1, 2, 3)
    first, second, third = await pop(http, "jobs", count=3)

    retried = await http.post("/v1/retry", json={"messages": [first], "delay": "1h", "error": "no paper"})
    dead = await http.post("/v1/dead-letter", json={"messages": [second], "reason": "bad", "error": "worse"})
    released = await http.post("/v1/release", json={"messages": [third]})

    assert retried.json() == {"settled": 1, "lost": [], "dead": []}
    assert dead.json() == released.json() == {"settled": 1, "lost": []}
    rows = {str(row.id): row for row in await bus.admin.messages("jobs")}
    assert (rows[first["id"]].state, rows[first["id"]].last_error) == ("retrying", "no paper")
    assert (rows[second["id"]].state, rows[second["id"]].last_error) == ("dead", "bad: worse")
    assert (rows[third["id"]].state, rows[third["id"]].attempts) == ("waiting", 0)


async def test_retry_beyond_the_last_attempt_is_reported(http: httpx.AsyncClient, bus: Bus) -> None:
    """A message with no attempts left is named as dead."""
    await bus.admin.create_topic("jobs", max_attempts=1)
    [message_id] = await push(http, "jobs", 1)

    answer = await http.post("/v1/retry", json={"messages": await pop(http, "jobs")})

    assert answer.json() == {"settled": 1, "lost": [], "dead": [message_id]}


async def test_lease_can_be_extended(http: httpx.AsyncClient, bus: Bus) -> None:
    """Extending moves the end of the lease."""
    await push(http, "jobs", 1)
    [message] = await pop(http, "jobs", lease=5)

    answer = await http.post("/v1/extend", json={"messages": [message], "lease": "1 hour"})

    assert answer.json() == {"settled": 1, "lost": []}
    [row] = await bus.admin.messages("jobs")
    assert row.at is not None
    assert row.at.isoformat() > message["lease_ends_at"].replace("Z", "+00:00")


@pytest.mark.parametrize(
    ("route", "more"),
    [("extend", {"lease": 0.1}), ("extend", {"lease": "-1 minute"}), ("retry", {"delay": -1}),
     ("retry", {"delay": "200000 days"})],
)  # fmt: skip
async def test_durations_that_python_refuses_are_refused(
    http: httpx.AsyncClient, bus: Bus, route: str, more: dict[str, Any]
) -> None:
    """A lease shorter than a second, or a delay of centuries, is refused. The lease stays as it is."""
    await push(http, "jobs", 1)
    messages = await pop(http, "jobs")
    [before] = await bus.admin.messages("jobs")

    problem(await http.post(f"/v1/{route}", json={"messages": messages, **more}), 400, "PB402")

    assert await bus.admin.messages("jobs") == [before]


@pytest.mark.parametrize(
    ("route", "more"),
    [
        ("ack", {}),
        ("retry", {}),
        ("release", {}),
        ("dead-letter", {"reason": "no"}),
        ("extend", {"lease": 5}),
    ],
)
async def test_settled_message_is_lost(http: httpx.AsyncClient, route: str, more: dict[str, Any]) -> None:
    """A second settlement changes nothing and says so."""
    await push(http, "jobs", 1)
    messages = await pop(http, "jobs")
    await http.post("/v1/ack", json={"messages": messages})

    problem(await http.post(f"/v1/{route}", json={"messages": messages, **more}), 409, "PB423")


async def test_messages_of_several_leases_are_settled_separately(http: httpx.AsyncClient, bus: Bus) -> None:
    """The lost messages are named, and the others are settled."""
    await push(http, "jobs", 1, 2)
    held = [*await pop(http, "jobs"), *await pop(http, "jobs")]
    await http.post("/v1/ack", json={"messages": held[:1]})

    answer = await http.post("/v1/ack", json={"messages": held})

    assert answer.json() == {"settled": 1, "lost": [held[0]["id"]]}
    assert await state_of(bus, "jobs") == []


async def test_auto_ack_settles_at_once(http: httpx.AsyncClient, bus: Bus) -> None:
    """There is no token, and nothing is left to settle."""
    await push(http, "jobs", 1)

    [message] = await pop(http, "jobs", auto_ack=True)

    assert message["token"] is None
    assert await state_of(bus, "jobs") == []


async def test_transaction_acks_and_pushes_together(http: httpx.AsyncClient, bus: Bus) -> None:
    """The acknowledged messages are gone and the pushed ones are there, in several topics."""
    await push(http, "jobs", 1)

    answer = await http.post(
        "/v1/transaction",
        json={
            "ack": await pop(http, "jobs"),
            "push": [
                {"topic": "mails", "messages": [{"payload": "a"}, {"text": "b"}]},
                {"topic": "bills", "messages": [{"base64": "AA=="}]},
            ],
        },
    )

    assert answer.status_code == 200, answer.text
    assert answer.json()["acked"] == 1
    assert [len(one["ids"]) for one in answer.json()["pushed"]] == [2, 1]
    assert [await state_of(bus, topic) for topic in ("jobs", "mails", "bills")] == [[], ["waiting"] * 2, ["waiting"]]


async def test_transaction_with_a_lost_message_does_nothing(http: httpx.AsyncClient, bus: Bus) -> None:
    """If one message is no longer held, nothing is pushed or acknowledged."""
    await push(http, "jobs", 1, 2)
    lost, held = await pop(http, "jobs", count=1), await pop(http, "jobs", count=1)
    await http.post("/v1/ack", json={"messages": lost})

    answer = await http.post(
        "/v1/transaction",
        json={"ack": [*held, *lost], "push": [{"topic": "mails", "messages": [{"payload": 1}]}]},
    )

    problem(answer, 409, "PB423")
    assert await state_of(bus, "jobs") == ["leased"]
    assert await state_of(bus, "mails") == []


async def test_transaction_with_a_bad_message_does_nothing(http: httpx.AsyncClient, bus: Bus) -> None:
    """A refused push undoes the ack."""
    await bus.admin.create_topic("small", max_payload_bytes=10)
    await push(http, "jobs", 1)

    answer = await http.post(
        "/v1/transaction",
        json={"ack": await pop(http, "jobs"), "push": [{"topic": "small", "messages": [{"text": "x" * 100}]}]},
    )

    problem(answer, 413, "PB411")
    assert await state_of(bus, "jobs") == ["leased"]


async def test_group_pops_in_order_per_key(http: httpx.AsyncClient, bus: Bus) -> None:
    """A key's next message comes when the one before is settled, and every group gets all messages."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    for group in ("mail", "stock"):
        assert (await http.put(f"/v1/topics/events/groups/{group}", json={})).json()["is_new"]
    await push(http, "events", 1, 2, key="k")

    seen = []
    for _ in range(2):
        messages = await pop(http, "events", group="mail", wait=10)
        seen += [one["payload"] for one in messages]
        await http.post("/v1/ack", json={"messages": messages})
    others = await pop(http, "events", group="stock", count=10, wait=10)

    assert seen == [1, 2]
    assert others[0]["payload"] == 1


async def test_group_can_pop_one_key(http: httpx.AsyncClient, bus: Bus) -> None:
    """With `key` only messages of that key come."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await http.put("/v1/topics/events/groups/mail", json={})
    for key in ("a", "b"):
        await push(http, "events", key, key=key)

    messages = await pop(http, "events", group="mail", key="b", count=10, wait=10)

    assert [one["payload"] for one in messages] == ["b"]


async def test_holder_of_a_message_is_shown(http: httpx.AsyncClient, bus: Bus) -> None:
    """A lookup shows the caller that holds the message, and until when."""
    [message_id] = await push(http, "jobs", 1)
    [message] = await pop(http, "jobs", lease="10 minutes")

    story = (await http.get(f"/v1/topics/jobs/messages/{message_id}")).json()

    assert (story["state"], story["member"]) == ("leased", "everybody")
    assert story["at"] == message["lease_ends_at"]


@pytest.mark.parametrize(
    ("place", "seen"),
    [
        ({}, ["before", "after"]),
        ({"mode": "all"}, ["before", "after"]),
        ({"mode": "timestamp", "timestamp": "2100-01-01T00:00:00Z"}, []),
        ({"mode": "timestamp", "timestamp": "2001-01-01T00:00:00Z"}, ["before", "after"]),
    ],
)
async def test_first_pop_of_a_group_sets_its_start(
    http: httpx.AsyncClient, bus: Bus, place: dict[str, Any], seen: list[str]
) -> None:
    """A new group is subscribed by its first pop, at the start that its mode names."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await push(http, "events", "before", key="k")
    messages = await pop(http, "events", group="new", count=10, wait=1, **place)
    if messages:
        await http.post("/v1/ack", json={"messages": messages})
    await push(http, "events", "after", key="k")

    messages += await pop(http, "events", group="new", count=10, wait=1, **place)

    assert [one["payload"] for one in messages] == seen


@pytest.mark.parametrize("scope", [{"pattern": "orders.*"}, {"namespace": "shop"}, {"task": "work"}])
async def test_group_can_pop_from_many_topics(http: httpx.AsyncClient, bus: Bus, scope: dict[str, str]) -> None:
    """They are selected by pattern, namespace or task, and include topics created later."""
    asked = {"group": "g", "count": 10, **scope}
    assert (await http.post("/v1/pop", json=asked)).json() == {"messages": []}
    await bus.admin.create_topic("orders.new", semantics="PUB_SUB", namespace="shop", task="work")
    await push(http, "orders.new", 1)

    answer = await http.post("/v1/pop", json={**asked, "wait": 20})

    assert [(one["topic"], one["payload"]) for one in answer.json()["messages"]] == [("orders.new", 1)]
    assert (await http.post("/v1/ack", json=answer.json())).json() == {"settled": 1, "lost": []}


async def test_pop_without_a_scope_is_refused(http: httpx.AsyncClient) -> None:
    """It needs one of pattern, namespace and task, and a group; a queue has no mode."""
    problem(await http.post("/v1/pop", json={"group": "g"}), 400, "PB402")
    problem(await http.post("/v1/pop", json={"pattern": "a.*", "task": "b", "group": "g"}), 400, "PB402")
    problem(await http.post("/v1/pop", json={"namespace": "a"}), 400, "PB400")
    problem(await http.post("/v1/topics/t/pop", json={"mode": "new"}), 400, "PB402")


async def test_polls_end_with_the_server(bus: Bus) -> None:
    """A waiting caller gets an empty answer at once, and no error."""
    async with serving(bus) as url:
        opened = httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)
        polling = asyncio.create_task(opened.post("/v1/topics/jobs/pop", json={"wait": 60}))

        async def is_waiting() -> None:
            assert polls() == 1

        await eventually(is_waiting)

    assert (await asyncio.wait_for(polling, 5)).json() == {"messages": []}
    await opened.aclose()


async def test_pop_over_http_revives_a_dead_group(http: httpx.AsyncClient, bus: Bus, conn: Any) -> None:
    """Each poll of a client that is too rare for heartbeats returns messages, of a topic and of a pattern."""
    await bus.admin.create_topic("o.a", semantics="PUB_SUB")
    await pop(http, "o.a", group="g")
    await http.post("/v1/pop", json={"group": "g", "pattern": "o.*"})
    await push(http, "o.a", 1, 2)
    await conn.execute("update postbus.subscription set state = 'DEAD'")
    assert [one["payload"] for one in await pop(http, "o.a", group="g")] == [1]
    await conn.execute("update postbus.subscription set state = 'DEAD'")

    answer = await http.post("/v1/pop", json={"group": "g", "pattern": "o.*"})

    assert [one["payload"] for one in answer.json()["messages"]] == [2]


async def test_heartbeat_over_http_revives_a_group(http: httpx.AsyncClient, bus: Bus, conn: Any) -> None:
    """It works for a topic, and for all topics of a pattern."""
    await bus.admin.create_topic("o.a", semantics="PUB_SUB")
    await http.post("/v1/pop", json={"group": "g", "pattern": "o.*"})
    await push(http, "o.a", 1)
    await conn.execute("update postbus.subscription set state = 'DEAD'")

    answer = await http.post("/v1/topics/o.a/groups/g/heartbeat")
    again = await http.post("/v1/heartbeat", json={"group": "g", "pattern": "o.*"})

    assert answer.json() == {"topics": [{"topic": "o.a", "state": "ACTIVE", "missed": 1, "skipped": 0}]}
    assert again.json() == {"topics": [{"topic": "o.a", "state": "ACTIVE", "missed": None, "skipped": None}]}
    assert (await http.post("/v1/topics/o.a/groups/other/heartbeat")).status_code == 404
