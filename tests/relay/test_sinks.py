"""Sinks one by one, each against a server: what arrives, and what refusals mean."""

from __future__ import annotations

import re
from typing import Any

import aio_pika
import pytest
from redis.asyncio import Redis

from bench.peers.servers import Server
from bench.ports import free_port
from postbus import Ack, Bus, DeadLetter, InvalidOption, Release, Retry, SinkUnavailable
from postbus.relay import (
    Envelope,
    Form,
    KafkaSink,
    NatsSink,
    NotNow,
    NullSink,
    PostbusSink,
    PubSubSink,
    RabbitSink,
    RedisSink,
    Sink,
    WebhookSink,
)
from postbus.relay.sinks import sink_of
from relay.kafka_cluster import kafka_cluster, records
from relay.parcels import event_id, message, opened, parcel
from relay.pubsub_server import grpc, pubsub_server

EVENT = {"event-type": "placed", "aggregate-type": "order", "aggregate-id": "7", "tenant": "acme"}


async def test_redis_stream_gets_the_messages(redis_server: Server) -> None:
    """They are entries of a stream, limited by `max_length`; a key of another type is an error."""
    redis: Any
    async with Redis.from_url(redis_server.address) as redis:
        async with opened(RedisSink(redis_server.address)) as sink:
            told = await sink.send([parcel("orders", n, key="k", headers=EVENT) for n in (1, 2)])
            assert told == [Ack(), Ack()]
            await redis.set("text", "x")
            [refused] = await sink.send([parcel("text", 3)])
            assert isinstance(refused, Retry)
            assert "WRONGTYPE" in str(refused.error)
        entries = [fields for _, fields in await redis.xrange("orders")]
        assert [one[b"event_id"].decode() for one in entries] == [event_id(1), event_id(2)]
        assert entries[0] == {
            b"event_id": event_id(1).encode(), b"event_type": b"placed", b"aggregate_type": b"order",
            b"aggregate_id": b"7", b"tenant": b"acme", b"created_at": b"2030-01-31T18:00:00Z", b"payload": b'{"n": 1}',
            b"key": b"k", b"content_type": b"application/json",
        }  # fmt: skip
        async with opened(RedisSink(redis_server.address, max_length=10)) as sink:
            await sink.send([parcel("short", n) for n in range(1000)])
        assert await redis.xlen("short") < 200


async def test_redis_unavailable_counts_nothing_as_sent(redis_server: Server) -> None:
    """Opening fails until it is back."""
    sink = RedisSink(redis_server.address, timeout="2s")
    await sink.open()
    await redis_server.kill()
    with pytest.raises(SinkUnavailable, match="did not take them"):
        await sink.send([parcel("orders")])
    with pytest.raises(SinkUnavailable, match="does not answer"):
        await sink.open()
    await redis_server.start()
    async with opened(sink):
        assert await sink.send([parcel("orders")]) == [Ack()]


async def test_full_redis_says_not_now(redis_server: Server) -> None:
    """Out of memory it refuses every write before EXEC: no message is to blame, and none is stored."""
    redis: Any
    async with Redis.from_url(redis_server.address) as redis, opened(RedisSink(redis_server.address)) as sink:
        await redis.config_set("maxmemory", 1)
        told = await sink.send([parcel("orders", n) for n in (1, 2)])
        assert [type(one) for one in told] == [NotNow, NotNow]
        await redis.config_set("maxmemory", 0)
        assert await sink.send([parcel("orders", n) for n in (1, 2)]) == [Ack(), Ack()]


async def test_redis_refuses_one_stream_and_accepts_the_others(redis_server: Server) -> None:
    """A forbidden command ends the whole transaction, so the messages are then sent one by one."""
    redis: Any
    async with Redis.from_url(redis_server.address) as redis:
        await redis.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~orders", "+@all")
        url = re.sub("redis://.*@", "redis://app:pw@", redis_server.address)
        async with opened(RedisSink(url)) as sink:
            told = await sink.send([parcel("orders", 1), parcel("others", 2), parcel("orders", 3)])
        assert [type(one) for one in told] == [Ack, Retry, Ack]
        assert await redis.xlen("orders") == 2


async def test_full_rabbitmq_queue_says_not_now(rabbit_server: Server) -> None:
    """A queue that rejects messages beyond its length refuses for the moment."""
    connection = await aio_pika.connect(rabbit_server.address)
    async with connection, connection.channel() as channel:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await channel.declare_queue("small", arguments=arguments)  # type: ignore[arg-type]
        async with opened(RabbitSink(rabbit_server.address)) as sink:
            told = [(await sink.send([parcel("small", n)]))[0] for n in range(4)]
    assert isinstance(told[0], Ack)
    assert isinstance(told[-1], NotNow)


async def test_rabbitmq_queue_gets_the_messages(rabbit_server: Server) -> None:
    """They are persistent and confirmed; an unroutable one is an error, and an exchange routes by target."""
    connection = await aio_pika.connect(rabbit_server.address)
    async with connection, connection.channel() as channel:
        queue = await channel.declare_queue("orders", durable=True)
        exchange = await channel.declare_exchange("events", "topic", durable=True)
        await queue.bind(exchange, "orders.*")
        async with opened(RabbitSink(rabbit_server.address)) as sink:
            told = await sink.send([parcel("orders", 7, headers=EVENT), parcel("nowhere", 8)])
            assert told[0] == Ack()
            assert isinstance(told[1], Retry)
            assert "no queue got it" in str(told[1].error)
            [too_long] = await sink.send([parcel("x" * 300, 9)])
            assert isinstance(too_long, DeadLetter)
        async with opened(RabbitSink(rabbit_server.address, exchange="events")) as sink:
            form = Envelope("orders.placed", form=Form.CLOUDEVENTS, source="/tests")
            assert await sink.send([form.parcel(message(10))]) == [Ack()]
        with pytest.raises(SinkUnavailable, match="no exchange 'nothing'"):
            await RabbitSink(rabbit_server.address, exchange="nothing").open()
        first, second = await queue.get(no_ack=True), await queue.get(no_ack=True)
    assert (first.message_id, first.type, first.body) == (event_id(7), "placed", b'{"n": 1}')
    assert first.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert first.headers["tenant"] == "acme"
    assert second.headers["cloudEvents_id"] == event_id(10)

    sink = RabbitSink(rabbit_server.address, timeout="5s")
    await sink.open()
    await rabbit_server.kill()
    assert await sink.send([parcel("orders")]) == [Release()]
    with pytest.raises(SinkUnavailable, match="does not answer"):
        await sink.open()


async def test_kafka_topic_gets_the_messages() -> None:
    """The key selects the partition, headers are headers, and a too large message is given up."""
    with kafka_cluster() as address:
        async with opened(KafkaSink(address, config={"message.max.bytes": 2000}, timeout="10s")) as sink:
            form = Envelope("orders", form=Form.CLOUDEVENTS, source="/tests")
            parcels = [parcel("orders", n, key=f"k{n % 5}", headers=EVENT) for n in range(20)]
            assert await sink.send([*parcels, form.parcel(message(20))]) == [Ack()] * 21
            [told] = await sink.send([parcel("orders", 21, payload=b"x" * 3000)])
            assert isinstance(told, DeadLetter)
        got = records(address, "orders", 21)
    partitions = {one.key(): one.partition() for one in got if one.key()}
    assert all(one.partition() == partitions[one.key()] for one in got if one.key())
    ids = [
        (one["event_id"] if "event_id" in one else one["ce_id"]).decode()
        for one in (dict(one.headers()) for one in got)
    ]
    assert sorted(ids) == sorted(event_id(n) for n in range(21))
    keyed = next(dict(one.headers()) for one in got if one.key())
    assert keyed["event_type"] == b"placed"
    assert keyed["content-type"] == b"application/json"
    assert next(dict(one.headers())["ce_id"] for one in got if not one.key()) == event_id(20).encode()


async def test_kafka_unavailable_fails_opening() -> None:
    """The relay waits for a broker that does not answer."""
    sink = KafkaSink(f"kafka://127.0.0.1:{free_port()}", timeout="500ms")
    with pytest.raises(SinkUnavailable, match="Kafka does not answer"):
        await sink.open()
    await sink.close()


async def test_pubsub_topic_gets_the_messages() -> None:
    """Headers are attributes, the key is the ordering key, and temporary and permanent refusals differ."""
    with pubsub_server() as server:
        async with opened(PubSubSink("pubsub://shop", emulator=server.address, timeout="5s")) as sink:
            assert await sink.send([parcel("orders", n, key="k", headers=EVENT) for n in range(5)]) == [Ack()] * 5
            server.refusals = [grpc.StatusCode.NOT_FOUND]
            [told] = await sink.send([parcel("nothing", 5, key="k")])
            assert isinstance(told, Retry)
            server.refusals = [grpc.StatusCode.INVALID_ARGUMENT]
            [told] = await sink.send([parcel("orders", 6, key="k")])
            assert isinstance(told, DeadLetter)
            assert await sink.send([parcel("orders", 7, key="k", headers={"timeout": "0"})]) == [Ack()]
            [told] = await sink.send([parcel("orders", 8, payload=b"x" * 11_000_000)])
            assert isinstance(told, DeadLetter)
    assert {topic for topic, _ in server.published} == {"projects/shop/topics/orders"}
    got = [one for _, one in server.published]
    assert [one.attributes["event_id"] for one in got] == [event_id(n) for n in (0, 1, 2, 3, 4, 7)]
    assert {one.ordering_key for one in got} == {"k"}
    assert got[0].attributes["aggregate_type"] == "order"
    assert got[0].data == b'{"n": 1}'
    assert got[5].attributes["header_timeout"] == "0"


async def test_pubsub_unavailable_fails_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment may name the emulator."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{free_port()}")
    sink = PubSubSink("pubsub://shop", timeout="500ms")
    with pytest.raises(SinkUnavailable, match="Pub/Sub does not answer"):
        await sink.open()
    await sink.close()


async def test_another_postbus_stores_each_message_once(bus: Bus, dsn: str, conn: Any) -> None:
    """A message sent twice is published once, and a refused one holds up only its key."""
    await bus.admin.create_topic("orders", semantics="PUB_SUB", lanes=1, max_payload_bytes=100)
    async with opened(PostbusSink(dsn)) as sink:
        for _ in range(2):
            told = await sink.send([parcel("orders", n, key="k", headers=EVENT) for n in range(3)])
            assert told == [Ack()] * 3
        told = await sink.send(
            [
                parcel("orders", 3, key="k"),
                parcel("orders", 4, key="k", payload=b"x" * 200),
                parcel("orders", 5, key="k"),
                parcel("bad name", 6, key="j"),
                parcel("orders", 7, key="j"),
            ]
        )
    assert [type(one) for one in told] == [Ack, DeadLetter, Ack, Retry, Release]
    rows = await bus.admin.log("orders")
    assert len(rows) == 5
    assert (rows[0].key, rows[0].payload) == ("k", b'{"n": 1}')
    assert "aggregate-type" in rows[0].headers


async def test_read_only_postbus_says_not_now(bus: Bus, dsn: str, conn: Any) -> None:
    """The database itself reports a standby, a full disk or a lock, and no message is to blame."""
    await bus.admin.create_topic("orders", semantics="PUB_SUB", lanes=1)
    database = await conn.fetchval("select current_database()")
    await conn.execute(f"alter database {database} set default_transaction_read_only = on")
    async with opened(PostbusSink(dsn)) as sink:
        [told] = await sink.send([parcel("orders", 1)])
        assert isinstance(told, NotNow)
        assert "read-only" in told.error
    await conn.execute(f"alter database {database} reset default_transaction_read_only")
    async with opened(PostbusSink(dsn)) as sink:
        assert await sink.send([parcel("orders", 1)]) == [Ack()]


async def test_postbus_closed_by_another_call_is_unavailable(dsn: str) -> None:
    """A call that finds the connection closed under it raises SinkUnavailable."""
    async with opened(PostbusSink(dsn)) as sink:
        await sink.close()
        with pytest.raises(SinkUnavailable, match="another call closed"):
            await sink.send([parcel("orders", 1)])


async def test_postbus_unavailable_fails_opening() -> None:
    """The relay waits for a database that does not answer."""
    with pytest.raises(SinkUnavailable, match="the other Postbus does not answer"):
        await PostbusSink(f"postgresql://127.0.0.1:{free_port()}/x").open()


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("nats://localhost:4222", NatsSink),
        ("tls://localhost:4222", NatsSink),
        ("kafka://localhost:9092", KafkaSink),
        ("amqp://localhost/", RabbitSink),
        ("amqps://localhost/", RabbitSink),
        ("redis://localhost:6379/0", RedisSink),
        ("rediss://localhost:6379/0", RedisSink),
        ("pubsub://project", PubSubSink),
        ("https://example.com/hook", WebhookSink),
        ("postgresql:///x", PostbusSink),
        ("null:", NullSink),
    ],
)
def test_scheme_of_the_address_selects_the_sink(url: str, kind: type) -> None:
    """Every sink keeps the protocol."""
    sink = sink_of(url, {}, load=lambda name: None)
    assert isinstance(sink, kind)
    assert isinstance(sink, Sink)


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("ftp://example.com", {}, "of no known kind"),
        ("nats://user:secret@host", {"speed": 1}, "nats://host has no option 'speed'"),
        ("redis://localhost", {"max_length": 0}, "max_length 0"),
        ("redis://localhost", {"max_length": True}, "max_length True"),
        ("redis://localhost:port/0", {}, "the address of Redis is wrong"),
        ("amqp://localhost", {"exchange": 1}, "exchange 1"),
        ("kafka://localhost", {"config": {"acks": 1}}, "'acks', which the sink sets itself"),
        ("kafka://localhost", {"config": {"no.such": 1}}, "the configuration of Kafka is wrong"),
        ("kafka://", {}, "names no broker"),
        ("pubsub://", {}, "names no project"),
        ("some.module:name", {}, "is not a sink but of type int"),
    ],
)
def test_bad_sinks_are_refused(url: str, options: dict[str, Any], why: str) -> None:
    """The error says what is wrong, without the password."""
    with pytest.raises(InvalidOption) as failed:
        sink_of(url, options, load=lambda name: 7)
    assert why in str(failed.value)
    assert "secret" not in str(failed.value)


def test_missing_client_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what to install."""
    import sys

    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(InvalidOption, match=r"pip install 'postbus\[nats\]'"):
        NatsSink()
