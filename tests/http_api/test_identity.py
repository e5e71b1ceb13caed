"""A message has one identity, in every interface, and keeps it whatever happens to it."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest

from cli.conftest import cli, end_what_was_started
from cli.helpers import Cli
from http_api.serving import problem
from http_api.test_follow import following
from postbus import Bus, DeadLetter, InvalidOption, Message, Retry, RetryPolicy, Start
from postbus.http_client import HttpBus
from postbus.inbox import Inbox
from postbus.relay.webhook import verify
from relay.receiver import receiving
from support.eventually import eventually
from support.grouping import create_log, has
from support.running import running

__all__ = ["cli", "end_what_was_started"]

AT_ONCE: dict[str, Any] = {"retry_initial": "0 s", "retry_max": "0 s"}


async def identity_in_sql(conn: Any, topic: str) -> str:
    """Return the event id that the view shows for the only message of a topic."""
    is_log = await conn.fetchval("select semantics = 'PUB_SUB' from postbus.topics where name = $1", topic)
    found = await conn.fetch(f"select event_id from postbus.{'log' if is_log else 'messages'} where topic = $1", topic)
    [row] = found
    return str(row["event_id"])


@pytest.mark.parametrize("brought", [None, "evt-1"])
@pytest.mark.parametrize("semantics", ["QUEUE", "PUB_SUB"])
async def test_every_interface_shows_the_same_identity(
    http: httpx.AsyncClient, bus: Bus, conn: Any, cli: Cli, semantics: Any, brought: str | None
) -> None:
    """These are Python, SQL, HTTP, its client, the command line and the stream of a topic."""
    await bus.admin.create_topic("t", semantics=semantics, retention="1 hour", lanes=1)
    group: dict[str, Any] = {"group": "g", "start": Start.BEGINNING} if semantics == "PUB_SUB" else {}
    over_http = {"group": "g", "mode": "all"} if semantics == "PUB_SUB" else {}
    async with following(http, "t") as events:
        number = await bus.send("t", {"n": 1}, headers={"event-id": brought} if brought else None)
        followed = (await events.next())["event_id"]
    expected = await identity_in_sql(conn, "t")
    assert expected == brought if brought else uuid.UUID(expected).version == 8
    told = {"follow": followed}

    [popped] = await bus.pop("t", **group)
    told["pop"] = popped.message.event_id
    await popped.release()
    answer = (await http.post("/v1/topics/t/pop", json=over_http)).json()["messages"][0]
    told["http pop"] = answer["event_id"]
    await http.post("/v1/release", json={"messages": [{"token": answer["token"], "id": answer["id"]}]})
    async with HttpBus(str(http.base_url)) as client:
        [popped] = await client.pop("t", **group)
        told["client"] = popped.message.event_id
        await popped.release()
    told["http"] = (await http.get("/v1/topics/t/messages")).json()["messages"][0]["event_id"]
    told["http story"] = (await http.get(f"/v1/topics/t/messages/{number}")).json()["event_id"]
    told["story"] = (await bus.admin.message("t", number)).event_id
    told["cli tail"] = (await cli.quick("tail", "t", "--once", "--json")).done().json["event_id"]
    shown = (await cli.quick("messages", "show", "t", str(number))).done().out
    told["cli show"] = dict(line.split(maxsplit=1) for line in shown.partition("\n\n")[0].splitlines())["event_id"]
    named = ["--group", "g"] if group else []
    told["cli pop"] = (await cli.quick("pop", "t", "--json", "--lease", "1s", *named)).done().json["event_id"]
    assert set(told.values()) == {expected}, told

    got: list[Message] = []

    @bus.subscribe("t", **group)
    async def handle(payload: Any, message: Message) -> None:
        got.append(message)

    async with running(bus):
        await has(got, 1)
    assert [one.event_id for one in got] == [expected]


@pytest.mark.parametrize("semantics", ["QUEUE", "PUB_SUB"])
async def test_command_of_consume_gets_the_identity(bus: Bus, conn: Any, cli: Cli, semantics: Any) -> None:
    """It is in its environment, and in the report."""
    await bus.admin.create_topic("t", semantics=semantics, retention="1 hour")
    await bus.send("t", 1)
    named = ["--group", "g", "--from", "beginning"] if semantics == "PUB_SUB" else []
    run = await cli("consume", "t", *named, "--max", "1", "--exec", "echo $POSTBUS_EVENT_ID", "--json")
    told = run.done().json
    assert told["stdout"].strip() == told["event_id"] == await identity_in_sql(conn, "t")


@pytest.mark.parametrize("semantics", ["QUEUE", "PUB_SUB"])
async def test_message_keeps_its_identity_through_everything(bus: Bus, conn: Any, semantics: Any) -> None:
    """This covers attempts, expired leases, retries, dead letters, redrive, and groups that seek back."""
    await bus.admin.create_topic("t", semantics=semantics, retention="1 hour", lanes=1, **AT_ONCE)
    group = "g" if semantics == "PUB_SUB" else None
    start: dict[str, Any] = {"group": group, "start": Start.BEGINNING} if group else {}
    await bus.send("t", 1)
    expected = await identity_in_sql(conn, "t")
    for settle in ("lease ends", "release", "retry", "dead letter"):
        [popped] = await bus.pop("t", lease="1s", wait=20, **start)
        assert popped.message.event_id == expected, settle
        match settle:
            case "release":
                await popped.release()
            case "retry":
                await popped.retry(delay=0)
            case "dead letter":
                await popped.dead_letter("no")
    [dead] = await bus.admin.dead_letters("t")
    assert dead.event_id == expected
    await bus.admin.redrive("t", group=group)

    got: list[Message] = []

    @bus.subscribe("t", retry=RetryPolicy(initial=0.001, factor=1, maximum=0.001, max_attempts=3), **start)
    async def handle(payload: Any, message: Message) -> Retry | DeadLetter | None:
        got.append(message)
        return [Retry(delay=0), DeadLetter(reason="no"), None, None][min(len(got) - 1, 3)]

    async with running(bus):
        await has(got, 2)

        async def is_dead() -> None:
            assert await bus.admin.dead_letters("t")

        await eventually(is_dead)
        await bus.admin.redrive("t", group=group)
        await has(got, 3)
        if group:
            await bus.admin.pause_group("t", group)
            await bus.admin.seek("t", group, Start.BEGINNING)
            await bus.admin.resume_group("t", group)
            await has(got, 4)
    assert {one.event_id for one in got} == {expected}


async def test_message_dropped_from_the_log_keeps_its_identity(http: httpx.AsyncClient, bus: Bus, conn: Any) -> None:
    """The copy that a group keeps has it."""
    await create_log(bus, "t")
    number = await bus.send("t", 1)
    expected = await identity_in_sql(conn, "t")
    [popped] = await bus.pop("t", group="g", start=Start.BEGINNING)
    await popped.dead_letter("no")
    await conn.execute("delete from postbus.segment")

    story = (await http.get(f"/v1/topics/t/messages/{number}")).json()
    [dead] = (await http.get("/v1/topics/t/dead-letters")).json()["dead_letters"]
    assert (story["retained"], story["event_id"], dead["event_id"]) == (False, expected, expected)


async def test_webhook_sends_the_identity(http: httpx.AsyncClient, bus: Bus, conn: Any) -> None:
    """Two webhooks of a topic send the same message, each under its own signed id."""
    await create_log(bus, "t")
    with receiving() as receiver:
        secrets = {}
        for name in ("one", "two.b"):
            body = {"name": name, "topic": "t", "group": name, "url": f"{receiver.url}/{name}"}
            secrets[f"/{name}"] = (await http.post("/v1/webhooks", json=body)).json()["secret"]
        await bus.send("t", 1)

        async def both() -> None:
            assert len(receiver.received) == 2

        await eventually(both, within=20)
    expected = await identity_in_sql(conn, "t")
    assert {one.headers["postbus-event-id"] for one in receiver.received} == {expected}
    assert {one.headers["webhook-id"] for one in receiver.received} == {f"{expected}:one", f"{expected}:two%2Eb"}
    assert all(verify(secrets[one.path], one.headers, one.body) for one in receiver.received)


async def test_inbox_knows_a_message_by_its_identity(bus: Bus, conn: Any) -> None:
    """A message that came another way, or was handled before an import, is known."""
    await bus.send("t", 1, headers={"event-id": "evt-1"})
    [one] = await bus.pop("t", lease=60)
    async with bus.transaction() as tx, Inbox().once(tx, "mail", one.message) as first:
        assert first
    assert await conn.fetchval("select message_id from postbus.inbox") == "evt-1"
    async with bus.transaction() as tx, Inbox().once(tx, "mail", "evt-1") as first:
        assert not first


@pytest.mark.parametrize("bad", ["", " ", "x" * 201, "a\nb", "ä"])
async def test_bad_event_id_is_refused(http: httpx.AsyncClient, bus: Bus, bad: str) -> None:
    """Python and HTTP refuse it, one by one and in a batch."""
    headers = {"event-id": bad}
    with pytest.raises(InvalidOption, match="event-id") as refused:
        await bus.send("t", 1, headers=headers)
    assert "UUID" in str(refused.value.remedy)
    answer = await http.post("/v1/topics/t/messages", json=[{"payload": 1}, {"payload": 2, "headers": headers}])
    problem(answer, 400, "PB402")
    assert await bus.admin.messages("t") == []


async def test_copy_beside_the_original_has_other_identities(bus: Bus, conn: Any) -> None:
    """A rebase keeps the source, because the database continues; a copy gets its own."""
    await bus.admin.create_topic("t", semantics="PUB_SUB")
    await bus.send("t", 1)
    before = await identity_in_sql(conn, "t")
    await bus.admin.rebase()
    assert await identity_in_sql(conn, "t") == before
    await bus.admin.rebase(as_copy=True)
    after = await identity_in_sql(conn, "t")
    [popped] = await bus.pop("t", group="g", start=Start.BEGINNING)
    assert popped.message.event_id == after != before
    assert popped.message.source == str(await conn.fetchval("select postbus.source()"))
