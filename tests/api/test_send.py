"""bus.send(): concurrent calls share commits, and each learns the outcome of its own message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.ear import Ear
from postbus import Bus, DatabaseUnavailable, InvalidOption, Outgoing, PayloadTooLarge
from postbus._publish import group_commit as sender
from support.eventually import eventually
from support.queue_sql import count_of, is_waiting


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


@pytest.fixture
async def held(connect: Any, topic: str) -> AsyncIterator[Any]:
    """Return another session's open transaction that has published under the deduplication key "held"."""
    other = await connect()
    await other.execute("begin")
    await other.execute("select postbus.publish($1, 'x'::text, dedup_key => 'held')", topic)
    yield other
    await other.execute("rollback")


async def test_send_returns_the_id_of_a_committed_message(bus: Bus, conn: Any, topic: str, ear: Ear) -> None:
    """When `send()` returns, others see the message with its options, and consumers are woken."""
    message_id = await bus.send(topic, {"n": 1}, key="k", headers={"a": "b"}, priority=2, correlation_id="c")

    row = await conn.fetchrow("select * from postbus.messages where id = $1", message_id)

    await ear.hears(topic)
    assert (row["topic"], row["payload"], row["key"], row["priority"]) == (topic, b'{"n":1}', "k", 2)
    assert (row["headers"], row["correlation_id"]) == ('{"a": "b"}', "c")
    assert row["content_type"] == "application/json"


async def test_concurrent_sends_share_commits(bus: Bus, conn: Any, topic: str) -> None:
    """500 calls at once need a few transactions, and each gets its own id."""
    await bus.connect()
    count = "select xmin::text::bigint from postbus.queued where id = any ($1::bigint[])"

    ids = await asyncio.gather(*(bus.send(topic, number) for number in range(500)))

    assert len(set(ids)) == 500
    rows = await conn.fetch("select payload from postbus.messages where topic = $1 order by id", topic)
    assert [int(row["payload"]) for row in rows] == list(range(500))
    assert len({row[0] for row in await conn.fetch(count, ids)}) <= 3


async def test_sends_to_several_topics_share_a_commit(bus: Bus, conn: Any, topic: str) -> None:
    """The ids are not mixed up."""
    topics = [f"{topic}.{number % 3}" for number in range(30)]

    ids = await asyncio.gather(*(bus.send(name, number) for number, name in enumerate(topics)))

    for number, (message_id, name) in enumerate(zip(ids, topics, strict=True)):
        row = await conn.fetchrow("select topic, payload from postbus.messages where id = $1", message_id)
        assert (row["topic"], int(row["payload"])) == (name, number)


async def test_refused_send_fails_alone(bus: Bus, conn: Any, topic: str) -> None:
    """Its sender gets the database's refusal, and the others of the same commit are published."""
    await bus.admin.create_topic(topic, max_payload_bytes=10)

    answers = await asyncio.gather(
        *(bus.send(topic, "x" * (11 if number in (3, 40) else 10)) for number in range(50)),
        return_exceptions=True,
    )

    refused = [number for number, answer in enumerate(answers) if isinstance(answer, BaseException)]
    assert refused == [3, 40]
    assert isinstance(answers[3], PayloadTooLarge)
    assert await count_of(conn, topic) == 48


async def test_bad_send_options_are_refused_before_sending(bus: Bus, conn: Any, topic: str) -> None:
    """A mistake that is visible without the database affects no other send."""
    answers = await asyncio.gather(
        bus.send(topic, "x"), bus.send(topic, "x", priority=10), bus.send(topic, "x"), return_exceptions=True
    )

    assert isinstance(answers[1], InvalidOption)
    assert await count_of(conn, topic) == 2


async def test_duplicate_send_gets_the_first_id(bus: Bus, conn: Any, topic: str) -> None:
    """The same deduplication key, in one commit or in several, publishes once."""
    ids = await asyncio.gather(*(bus.send(topic, "x", dedup_key="d") for _ in range(3)))

    assert {*ids, await bus.send(topic, "x", dedup_key="d")} == {ids[0]}
    assert await count_of(conn, topic) == 1


async def test_outgoing_is_sent_as_it_is(bus: Bus, conn: Any, topic: str) -> None:
    """An `Outgoing` has its own options, and no others may be given."""
    message_id = await bus.send(topic, Outgoing(payload="x", key="k"))
    with pytest.raises(InvalidOption, match="beside an Outgoing"):
        await bus.send(topic, Outgoing(payload="x", key="k"), priority=1)

    assert await conn.fetchval("select key from postbus.messages where id = $1", message_id) == "k"
    assert await count_of(conn, topic) == 1


async def test_large_messages_do_not_share_a_commit(
    bus: Bus, conn: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is limited in bytes, unless one message alone has more."""
    monkeypatch.setattr(sender, "_MAX_BATCH_BYTES", 2500)

    ids = await asyncio.gather(*(bus.send(topic, b"x" * size) for size in (1000, 1000, 1000, 5000, 10)))

    rows = await conn.fetch("select xmin::text from postbus.queued where id = any ($1) order by id", list(ids))
    commits = [row["xmin"] for row in rows]
    assert [commits.index(one) for one in commits] == [0, 0, 2, 3, 4]


async def test_send_waiting_for_a_dedup_key_holds_up_no_other(bus: Bus, conn: Any, topic: str, held: Any) -> None:
    """It waits for the open transaction that has its key, and others are sent meanwhile."""
    waiting = asyncio.create_task(bus.send(topic, "x", dedup_key="held"))

    async def it_waits() -> None:
        assert await conn.fetchval(
            "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))",
            held.get_server_pid(),
        )

    await eventually(it_waits)
    await asyncio.wait_for(bus.send(topic, "y"), 5)

    assert not waiting.done()
    await held.execute("rollback")
    await waiting
    assert await count_of(conn, topic) == 2
    await held.execute("begin")


async def test_cancelled_send_affects_no_other(bus: Bus, conn: Any, topic: str, held: Any) -> None:
    """A send cancelled before its turn is not published, and those around it are."""
    first = asyncio.create_task(bus.send(topic, "first", dedup_key="held"))

    async def it_waits() -> None:
        assert await conn.fetchval(
            "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))",
            held.get_server_pid(),
        )

    await eventually(it_waits)
    second = asyncio.create_task(bus.send(topic, "second", dedup_key="2"))
    third = asyncio.create_task(bus.send(topic, "third", dedup_key="3"))
    await asyncio.sleep(0)
    second.cancel()
    await held.execute("commit")

    await asyncio.gather(first, third)
    with pytest.raises(asyncio.CancelledError):
        await second
    rows = await conn.fetch("select payload from postbus.messages where topic = $1 order by id", topic)
    assert [row["payload"] for row in rows] == [b"x", b"third"]
    await held.execute("begin")


async def test_deadlock_with_another_session_fails_no_send(bus: Bus, conn: Any, connect: Any, topic: str) -> None:
    """Two messages whose keys another transaction uses in the reverse order are sent one after the other."""
    other = await connect()
    await other.execute("set deadlock_timeout = '1min'")  # so that the server does not end this one
    await other.execute("begin")
    publish = "select postbus.publish($1, 'x'::text, dedup_key => $2)"
    await other.execute(publish, topic, "b")

    both = asyncio.gather(bus.send(topic, "x", dedup_key="a"), bus.send(topic, "x", dedup_key="b"))
    sender_pid = await eventually(_blocked_by, conn, other.get_server_pid())
    theirs = asyncio.create_task(other.fetchval(publish, topic, "a"))

    async def they_wait_too() -> None:
        assert theirs.done() or await is_waiting(conn, other.get_server_pid())

    await eventually(they_wait_too)
    their_a = await asyncio.wait_for(theirs, 10)
    await other.execute("commit")
    ids = await asyncio.wait_for(both, 10)

    assert sender_pid
    assert ids[0] == their_a
    assert await count_of(conn, topic) == 2


async def _blocked_by(conn: Any, pid: int) -> int:
    blocked = await conn.fetchval("select pid from pg_stat_activity where $1 = any (pg_blocking_pids(pid))", pid)
    assert blocked is not None
    return int(blocked)


async def test_closing_the_bus_completes_sends_under_way(dsn: str, conn: Any, topic: str) -> None:
    """`close()` returns when everything sent before is committed."""
    bus = Bus(dsn)
    await bus.connect()
    sending = [asyncio.create_task(bus.send(topic, number)) for number in range(10)]
    await asyncio.sleep(0)
    await bus.close()

    assert await count_of(conn, topic) == 10
    await asyncio.gather(*sending)


async def test_send_to_an_unreachable_server_raises(topic: str) -> None:
    """The error is DatabaseUnavailable, with a remedy."""
    bus = Bus("postgresql://postgres@127.0.0.1:1/nowhere")

    with pytest.raises(DatabaseUnavailable) as away:
        await bus.send(topic, "x")

    assert away.value.code == "PB504"
    assert "check that the server runs" in away.value.remedy
    await bus.close()
