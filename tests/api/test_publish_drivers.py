"""Publishing in the caller's transaction, with every driver."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from api.drivers import Program
from postbus import Bus, Outgoing, PayloadTooLarge
from support.queue_sql import payloads_of

_STORED = """
    select payload, key, headers::text, priority, correlation_id, content_type, at
      from postbus.messages where id = $1
"""


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


async def test_commit_publishes_with_all_options(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """A message published in a committed transaction is stored as it was given."""
    at = datetime(2100, 1, 31, 18, 0, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    await program.begin()
    message_id = await program.publish(
        bus, topic, {"n": 1}, key="ключ %s :name", headers={"a": "ü", "b": '"\\'}, priority=9,
        deliver_at=at, dedup_key="d'1", correlation_id="$1", content_type="application/vnd.order+json",
    )  # fmt: skip
    await program.commit()

    stored = await conn.fetchrow(_STORED, message_id)

    assert dict(stored) == {
        "payload": b'{"n":1}',
        "key": "ключ %s :name",
        "headers": '{"a": "ü", "b": "\\"\\\\"}',
        "priority": 9,
        "correlation_id": "$1",
        "content_type": "application/vnd.order+json",
        "at": at,
    }
    assert await conn.fetchval("select dedup_key from postbus.dedup where message_id = $1", message_id) == "d'1"


async def test_commit_publishes_with_defaults(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """A message without options has the default priority, is due at once, and has nothing else."""
    await program.begin()
    message_id = await program.publish(bus, topic, b"\0\xff")
    await program.commit()

    stored = await conn.fetchrow(_STORED, message_id)

    assert dict(stored) == {
        "payload": b"\0\xff",
        "key": None,
        "headers": None,
        "priority": 4,
        "correlation_id": None,
        "content_type": "application/octet-stream",
        "at": None,
    }


async def test_delay_counts_from_now(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """A delayed message is due that much later than it was published."""
    await program.begin()
    message_id = await program.publish(bus, topic, "x", delay=timedelta(days=400, seconds=1.5))
    await program.commit()

    waits = await conn.fetchval("select at - published_at from postbus.messages where id = $1", message_id)

    assert waits == timedelta(days=400, seconds=1.5)


async def test_rollback_publishes_nothing(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """A message published in a transaction that rolled back does not exist."""
    await program.begin()
    await program.publish(bus, topic, "x")
    await program.rollback()

    assert await payloads_of(conn, topic) == []


async def test_rolled_back_savepoint_undoes_its_messages(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """Only messages published outside of the savepoint exist after the commit."""
    await program.begin()
    await program.publish(bus, topic, "before")
    await program.savepoint()
    await program.publish(bus, topic, "within")
    await program.roll_back_to_savepoint()
    await program.publish(bus, topic, "after")
    await program.commit()

    assert await payloads_of(conn, topic) == ["before", "after"]


async def test_many_messages_have_their_ids_in_order(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """Payloads and `Outgoing`s may be mixed, and the ids come back in the given order."""
    at = datetime(2100, 1, 1, tzinfo=UTC)
    await program.begin()
    ids = await program.publish_many(
        bus,
        topic,
        [
            {"n": 0},
            Outgoing(payload="one", key="k", priority=0, headers={"h": "1"}, correlation_id="c"),
            Outgoing(payload=b"two", delay=timedelta(hours=1)),
            Outgoing(payload="three", deliver_at=at, content_type="text/x"),
            ["four"],
        ],
    )
    await program.commit()

    rows = await conn.fetch(
        "select id, payload, key, priority, headers->>'h' as header, correlation_id, content_type, state, "
        "at = $2 as is_at from postbus.messages where topic = $1 order by id",
        topic,
        at,
    )

    assert ids == [row["id"] for row in rows]
    assert [tuple(row)[1:] for row in rows] == [
        (b'{"n":0}', None, 4, None, None, "application/json", "waiting", None),
        (b"one", "k", 0, "1", "c", "text/plain; charset=utf-8", "waiting", None),
        (b"two", None, 4, None, None, "application/octet-stream", "scheduled", False),
        (b"three", None, 4, None, None, "text/x", "scheduled", True),
        (b'["four"]', None, 4, None, None, "application/json", "waiting", None),
    ]


async def test_duplicates_have_the_id_of_the_first(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """A message may be a duplicate of an earlier one of the same call."""
    await program.begin()
    ids = await program.publish_many(
        bus, topic, [Outgoing(payload=name, dedup_key=name) for name in ("a", "b", "a")] + ["a"]
    )
    await program.commit()

    assert ids[2] == ids[0]
    assert await payloads_of(conn, topic) == ["a", "b", "a"]


async def test_empty_list_publishes_nothing(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """The result is an empty list."""
    await program.begin()
    assert await program.publish_many(bus, topic, []) == []
    await program.commit()

    assert await payloads_of(conn, topic) == []


async def test_refusal_of_the_database_is_one_of_our_errors(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """It has our class, message and remedy, and nothing of the driver."""
    await bus.admin.create_topic(topic, max_payload_bytes=5)
    await program.begin()
    await program.savepoint()
    with pytest.raises(PayloadTooLarge) as refused:
        await program.publish_many(bus, topic, ["12345", "123456"])
    await program.roll_back_to_savepoint()
    await program.publish(bus, topic, "12345")
    await program.commit()

    assert refused.value.code == "PB411"
    assert refused.value.message == "the payload has 6 bytes, the topic accepts 5"
    assert refused.value.remedy == "send a reference to the data, or raise max_payload_bytes of the topic"
    assert await payloads_of(conn, topic) == ["12345"]


async def test_failed_transaction_raises_the_drivers_error(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """An earlier mistake of the caller surfaces as the caller's driver reports it."""
    await conn.execute(
        "create table if not exists mine (id int primary key); insert into mine values (1) on conflict do nothing"
    )
    await program.begin()
    with pytest.raises(program.error):
        await program.execute("insert into mine values (1)")

    with pytest.raises(program.error):
        await program.publish(bus, topic, "x")
    await program.rollback()

    assert await payloads_of(conn, topic) == []


async def test_lost_connection_raises_the_drivers_error(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """When the server ends the connection, publishing raises what the driver raises."""
    await program.begin()
    await program.publish(bus, topic, "x")
    await conn.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and state = 'idle in transaction'"
    )

    with pytest.raises(program.error):
        await program.publish(bus, topic, "y")

    assert await payloads_of(conn, topic) == []
