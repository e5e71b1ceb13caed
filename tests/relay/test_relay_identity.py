"""No message is taken for a copy of another: a stream stores everything that was published."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from bench.peers.servers import Server
from postbus import Ack, Bus
from postbus._db.migrator import migrate
from postbus.embedded import EmbeddedPostgres
from postbus.relay import Envelope, NatsSink, PostbusSink
from relay.parcels import event_id, message, opened
from support.eventually import eventually
from support.grouping import create_log
from support.running import running

Stored = Callable[[int], Awaitable[list[Any]]]


@pytest.fixture
async def stored(nats_server: Server) -> AsyncIterator[Stored]:
    """Return a function that waits until a stream of all subjects has this many messages, and returns them."""
    client = await nats.connect(nats_server.address)
    stream = client.jetstream()
    await stream.add_stream(name="ALL", subjects=["one.>", "two.>"])

    async def all_of(count: int) -> list[Any]:
        async def are_there() -> None:
            assert (await stream.stream_info("ALL")).state.messages == count

        await eventually(are_there)
        pulled = await stream.pull_subscribe("", stream="ALL", config=ConsumerConfig(ack_policy=AckPolicy.NONE))
        got = await pulled.fetch(count, timeout=5)
        await pulled.unsubscribe()
        return list(got)

    yield all_of
    await client.close()


@asynccontextmanager
async def relaying(address: str, *routes: tuple[Bus, str, str, str]) -> AsyncIterator[None]:
    """Relay topics of buses to subjects, each by a route of that name."""
    buses = list(dict.fromkeys(bus for bus, *_ in routes))
    for bus, topic, target, name in routes:
        await bus.relay(topic, NatsSink(address), target=target, name=name)
    async with AsyncExitStack() as stack:
        for bus in buses:
            await stack.enter_async_context(running(bus))
        yield


async def everything_is_sent(bus: Bus) -> None:
    """Wait until no route has anything before it."""

    async def is_so() -> None:
        topics = {one.name: one for one in await bus.admin.topics()}
        assert not any(one.waiting or one.leased or one.delayed or one.dead for one in topics.values())
        assert not any(one.pending or one.dead for one in await bus.admin.groups())

    await eventually(is_so)


def identities(messages: list[Any]) -> set[str]:
    return {one.headers["event_id"] for one in messages}


async def test_queue_and_log_with_the_same_ids_are_both_stored(
    bus: Bus, conn: Any, nats_server: Server, stored: Stored
) -> None:
    """They number their messages independently, and share one stream."""
    await bus.admin.create_topic("queue")
    await create_log(bus, "log")
    first = await bus.send("log", 0)
    await conn.execute("select setval('postbus.message_id', $1, false)", first)
    for n in range(5):
        log_id = await bus.send("log", n)
        await conn.execute("select setval('postbus.message_id', $1, false)", log_id)
        assert await bus.send("queue", n) == log_id, "the same id, twice in this database"
    await bus.send("queue", 5)

    async with relaying(
        nats_server.address, (bus, "queue", "one.queue", "relay-nats"), (bus, "log", "one.log", "relay-nats")
    ):
        got = await stored(12)
        await everything_is_sent(bus)

    assert len(identities(got)) == 12


@pytest.fixture
async def other_dsn(server: EmbeddedPostgres) -> AsyncIterator[str]:
    """Create another database that is as new as the first."""
    root: Any = await asyncpg.connect(server.dsn())
    await root.execute("create database another_one template template0")
    try:
        conn: Any = await asyncpg.connect(server.dsn("another_one"))
        await migrate(conn)
        await conn.close()
        yield server.dsn("another_one")
    finally:
        await root.execute("drop database if exists another_one with (force)")
        await root.close()


@pytest.mark.parametrize("semantics", ["QUEUE", "PUB_SUB"])
async def test_messages_of_two_new_databases_are_all_stored(
    bus: Bus, other_dsn: str, nats_server: Server, stored: Stored, semantics: Any
) -> None:
    """Two databases assign the same ids to topics of the same name."""
    async with Bus.open(other_dsn) as other:
        for one in (bus, other):
            await one.admin.create_topic("orders", semantics=semantics)
            for n in range(4):
                await one.send("orders", n)
        async with relaying(
            nats_server.address,
            (bus, "orders", "one.orders", "relay-nats"),
            (other, "orders", "one.orders", "relay-nats"),
        ):
            got = await stored(8)
    assert len(identities(got)) == 8


async def test_messages_of_two_routes_into_one_stream_are_all_stored(
    bus: Bus, nats_server: Server, stored: Stored
) -> None:
    """Each route sends all messages of the topic, and the stream keeps both copies."""
    await create_log(bus, "orders")
    for n in range(5):
        await bus.send("orders", n)

    async with relaying(
        nats_server.address, (bus, "orders", "one.orders", "relay-one"), (bus, "orders", "two.orders", "relay-two")
    ):
        got = await stored(10)

    assert sorted(one.subject for one in got) == ["one.orders"] * 5 + ["two.orders"] * 5
    assert len(identities(got)) == 5, "an event is the same one, whichever route it came by"


async def test_chain_of_databases_keeps_one_identity(
    bus: Bus, other_dsn: str, nats_server: Server, stored: Stored
) -> None:
    """The second database and the stream behind it know the event by its first id."""
    async with Bus.open(other_dsn) as other:
        for one in (bus, other):
            await create_log(one, "orders")
        for n in range(3):
            await bus.send("orders", n)
        first = [row.event_id for row in await bus.admin.log("orders")]
        await bus.relay("orders", PostbusSink(other_dsn), name="onwards")
        async with (
            relaying(
                nats_server.address,
                (bus, "orders", "one.orders", "relay-nats"),
                (other, "orders", "two.orders", "relay-nats"),
            ),
        ):
            got = await stored(6)
        second = [row.event_id for row in await other.admin.log("orders")]
    assert first == second
    assert sorted(one.headers["event_id"] for one in got) == sorted(first * 2)
    assert json.loads(got[0].data) in range(3)


async def test_message_sent_to_another_postbus_twice_is_stored_once(bus: Bus, other_dsn: str) -> None:
    """This holds per route; another route of the same topic sends a copy of its own."""
    async with Bus.open(other_dsn) as other:
        await create_log(other, "orders")
        for route in ("a", "a", "b"):
            async with opened(PostbusSink(other_dsn)) as sink:
                envelope = Envelope("orders", source="/tests", route=route)
                assert await sink.send([envelope.parcel(message(n)) for n in range(3)]) == [Ack()] * 3
        found = [row.event_id for row in await other.admin.log("orders")]
    assert found == [event_id(n) for n in range(3)] * 2
