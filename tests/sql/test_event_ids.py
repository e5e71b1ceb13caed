"""The identity of messages: Python and SQL compute the same one, and it survives every change."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postbus import Message
from postbus._content.identity import identity_of, is_event_id, own_identity
from sql.test_moving import create_queue, go_on, id_of, move
from support.fix_database import Connect
from support.log_sql import claim_deferred, create_topic, refused, settle_deferred, take
from support.queue_sql import claim, publish

EVENT_ID = "select postbus.event_id($1, $2, $3, $4, $5)"
GIVEN = [
    "x", "a" * 200, "a" * 201, "", " x", "x ", "a b", "ä",
    "x\n", "x\ty", "!~", "order-1/paid", str(uuid.UUID(int=7)), "\x7f",
]  # fmt: skip


async def test_python_and_sql_compute_the_same_identity(conn: Any) -> None:
    """They agree for all times, topics and headers."""
    chance = random.Random("identity")
    for given in (None, *GIVEN, *(None for _ in range(100))):
        source = uuid.UUID(int=chance.getrandbits(128))
        topic = chance.choice(["t", "a.b:c/d", "orders:7"])
        number = chance.choice([0, 1, 1024, chance.getrandbits(63)])
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(-(10**15), 10**17))
        headers = {} if given is None else {"event-id": given, "tenant": "acme"}
        message = Message(number, topic, b"", "text/plain", None, headers, None, 4, 1, moment, str(source))
        found = await conn.fetchval(EVENT_ID, topic, number, moment, json.dumps(headers), source)
        assert found == message.event_id
        if given is None or not is_event_id(given):
            assert uuid.UUID(found).version == 8
            assert uuid.UUID(found).variant == uuid.RFC_4122
            assert found == str(uuid.UUID(found))
        else:
            assert found == given


@pytest.mark.parametrize("given", GIVEN, ids=ascii)
async def test_python_and_sql_accept_the_same_event_ids(conn: Any, given: str) -> None:
    """An id that one side accepts is not refused by the other."""
    assert await conn.fetchval("select postbus.is_event_id($1)", given) is is_event_id(given)
    headers = json.dumps({"event-id": given})
    if is_event_id(given):
        assert await publish(conn, "x", headers=headers)
    else:
        assert await refused(publish(conn, "x", headers=headers), "PB402")
        many = "select postbus.publish_many('t', array['x'::bytea, 'y'], headers => array[null, $1::jsonb])"
        assert await refused(conn.fetchval(many, headers), "PB402")


def test_each_part_changes_the_identity() -> None:
    """Source, topic, id and time each enter the identity; the time zone does not."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    others = [
        own_identity("s", "t", 1, moment),
        own_identity("s2", "t", 1, moment),
        own_identity("s", "t2", 1, moment),
        own_identity("s", "t", 2, moment),
        own_identity("s", "t", 1, moment + timedelta(microseconds=1)),
    ]
    assert len(set(others)) == 5
    assert own_identity("s", "t", 1, moment.astimezone()) == others[0], "the same moment, told elsewhere"


async def test_reused_id_has_another_identity(conn: Any) -> None:
    """Ids are handed out again after a crash that lost the last commits, or after a restore."""
    [lost] = await publish(conn, "lost")
    [first] = await conn.fetch("select * from postbus.messages")
    await conn.execute("delete from postbus.queued")
    await conn.execute("select setval('postbus.message_id', $1, false)", lost)
    assert await publish(conn, "another") == [lost]
    [second] = await conn.fetch("select * from postbus.messages")
    assert first["event_id"] != second["event_id"]


async def test_messages_moved_from_queue_to_log_keep_identity_and_time(conn: Any) -> None:
    """This holds for waiting, tried, scheduled and dead messages, and for those published after the queue had ended."""
    await create_queue(conn)
    await conn.execute("select postbus.publish('t', 'tried'::text)")
    leased = await claim(conn)
    await conn.execute("select postbus.retry($1, $2, '0 seconds', 'no')", leased["token"], leased["ids"])
    await conn.execute("select postbus.publish('t', 'dead'::text, priority => 9)")
    leased = await claim(conn)
    await conn.execute("select postbus.dead_letter($1, $2, 'no', 'no')", leased["token"], leased["ids"])
    for payload in ("one", "two"):
        await publish(conn, payload, key="k", headers='{"event-id": "came along"}' if payload == "two" else None)
    await conn.execute("select postbus.publish('t', 'later'::text, delay => '1 day')")
    before = await _told(conn)
    assert set(before) == {"tried", "dead", "one", "two", "later"}
    assert before["two"][0] == "came along"

    await move(conn, "g", hand_over=True)
    assert (await go_on(conn))["ended_at"] is not None
    await conn.execute("update postbus.delayed set due_at = due_at - interval '1 day'")
    await conn.execute("select postbus.sweep()")
    await conn.execute("select postbus.redrive('t', group_name => 'g')")

    assert await _retrying(conn) == before


async def test_message_renumbered_in_the_log_carries_its_identity(conn: Any, connect: Connect) -> None:
    """A transaction with an old snapshot publishes into the queue after the log began, so its id cannot be used
    there."""
    await create_queue(conn)
    old = await connect()
    transaction = old.transaction(isolation="repeatable_read")
    await transaction.start()
    await old.fetchval("select 1")
    await move(conn, "g")
    assert (await go_on(conn))["ended_at"] is not None
    first_of_log = await conn.fetchval("select first_id from postbus.moving")
    await conn.execute("select setval('postbus.message_id', $1)", first_of_log + 5000)
    [late] = await publish(old, "late", key="k", headers='{"tenant": "acme"}')
    await transaction.commit()
    before = await _told(conn)

    await go_on(conn)

    assert await _retrying(conn) == before
    [lane] = await take(conn, "w", await id_of(conn))
    [row] = await claim_deferred(conn, lane)
    assert row["id"] != late
    assert json.loads(row["headers"]) == {"tenant": "acme", "event-id": before["late"][0]}
    await settle_deferred(conn, lane, [row["id"]], "done")


async def _told(conn: Any) -> dict[str, tuple[str, datetime]]:
    """Return identity and time of the queue's messages, by payload."""
    rows = await conn.fetch(
        "select convert_from(payload, 'UTF8') as payload, event_id, published_at from postbus.messages"
    )
    return {row["payload"]: (row["event_id"], row["published_at"]) for row in rows}


async def _retrying(conn: Any) -> dict[str, tuple[str, datetime]]:
    """Return identity and time of a group's deferred messages, by payload."""
    rows = await conn.fetch(
        "select convert_from(payload, 'UTF8') as payload, published_at, "
        "postbus.event_id('t', id, published_at, headers) as event_id from postbus.deferred"
    )
    return {row["payload"]: (row["event_id"], row["published_at"]) for row in rows}


async def test_views_show_the_identity_of_every_message(conn: Any) -> None:
    """Logs, queues and dead letters show it, also those of undeclared topics."""
    await create_topic(conn, "log")
    await publish(conn, "x", topic="log")
    await publish(conn, "y", topic="unconfigured")
    source = str(await conn.fetchval("select postbus.source()"))
    for view, topic in (("log", "log"), ("messages", "unconfigured")):
        [row] = await conn.fetch(f"select * from postbus.{view}")
        assert row["topic"] == topic
        assert row["event_id"] == identity_of(source, topic, row["id"], row["published_at"], {})


@pytest.mark.parametrize("role", ["producer", "consumer", "observer"])
async def test_every_role_may_compute_event_ids(conn: Any, role: str, roles: Callable[[str], str]) -> None:
    """The roles see the source through the function, not the table that holds it."""
    await conn.execute(f"set role {roles(role)}")
    try:
        assert await conn.fetchval("select postbus.event_id('t', 1, now())")
    finally:
        await conn.execute("reset role")
