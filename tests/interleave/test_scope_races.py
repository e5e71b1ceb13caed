"""Scopes while transactions are open: no topic is overlooked, and no message."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from support.eventually import eventually
from support.fix_database import Connect
from support.log_sql import create_topic, cursor_of, publish_many, read_all, refused, rotate, subscribe_scope
from support.queue_sql import is_waiting
from support.scoping import age


async def _waits(conn: Any, pid: int) -> None:
    async def waits() -> None:
        assert await is_waiting(conn, pid)

    await eventually(waits)


async def _subscribed(conn: Any, group: str = "g") -> list[str]:
    rows = await conn.fetch("select topic from postbus.groups where group_name = $1 order by topic", group)
    return [row["topic"] for row in rows]


async def _before(conn: Any, topic: str = "t", group: str = "g") -> list[str]:
    """Return everything that a group has before it in a topic with one lane."""
    id = await conn.fetchval(
        "select subscription_id from postbus.groups where topic = $1 and group_name = $2", topic, group
    )
    return (await read_all(conn, await cursor_of(conn, id), topic=topic))[0]


async def test_topic_created_while_a_scope_is_recorded_joins(connect: Connect) -> None:
    """The creator waits for the record, and then the topic joins the group."""
    recorder, creator, watcher = await connect(), await connect(), await connect()
    recording = recorder.transaction()
    await recording.start()
    await subscribe_scope(recorder, namespace="ns", mode="new")
    creating = asyncio.create_task(create_topic(creator, namespace="ns"))
    await _waits(watcher, creator.get_server_pid())
    await recording.commit()
    await creating

    assert await _subscribed(watcher) == ["t"]


async def test_scope_recorded_while_a_topic_is_created_includes_it(connect: Connect) -> None:
    """The recorder waits for the topic, and gets the messages of its transaction."""
    recorder, creator, watcher = await connect(), await connect(), await connect()
    creating = creator.transaction()
    await creating.start()
    await create_topic(creator, namespace="ns")
    await publish_many(creator, "first")
    recording = asyncio.create_task(subscribe_scope(recorder, namespace="ns", mode="new"))
    await _waits(watcher, recorder.get_server_pid())
    await creating.commit()

    assert list(await recording) == ["t"]
    assert await _before(watcher) == ["first"]


async def test_rolled_back_topic_joins_nobody(connect: Connect) -> None:
    """A topic whose transaction is rolled back leaves nothing."""
    recorder, creator = await connect(), await connect()
    await subscribe_scope(recorder, namespace="ns")
    creating = creator.transaction()
    await creating.start()
    await create_topic(creator, namespace="ns")
    await creating.rollback()
    assert await _subscribed(recorder) == []
    assert await recorder.fetch("select * from postbus.inconsistencies()") == []


async def test_two_sessions_record_the_same_scope_once(connect: Connect) -> None:
    """The second one waits, and uses what the first has recorded."""
    first, second, watcher = await connect(), await connect(), await connect()
    await create_topic(watcher, namespace="ns")
    await publish_many(watcher, "old")
    await age(watcher, 60)
    recording = first.transaction()
    await recording.start()
    await subscribe_scope(first, namespace="ns", mode="new")
    again = asyncio.create_task(subscribe_scope(second, namespace="ns", mode="all"))
    await _waits(watcher, second.get_server_pid())
    await recording.commit()
    await again

    assert [row["mode"] for row in await watcher.fetch("select mode from postbus.scopes")] == ["new"]
    assert await _subscribed(watcher) == ["t"]
    assert await _before(watcher) == []


@pytest.mark.parametrize("storage", ["shared", "own"])
@pytest.mark.parametrize("joins", ["at once", "later"])
async def test_message_open_while_a_scope_is_recorded_comes(connect: Connect, storage: str, joins: str) -> None:
    """It commits after the record, although it is older than the look-back and in a partition closed before."""
    writer, other = await connect(), await connect()
    labels = {"namespace": "ns"} if joins == "at once" else {}
    kept = await create_topic(other, storage=storage, **labels)
    await publish_many(other, "old")
    open_one = writer.transaction()
    await open_one.start()
    await publish_many(writer, "late")
    await writer.execute(
        "update postbus.segment set published_at = published_at - interval '1 hour' where txid = pg_current_xact_id()"
    )
    await rotate(other, kept)
    await other.execute("update postbus.log_partition set closed_at = closed_at - interval '1 hour'")
    await age(other, 60)
    await subscribe_scope(other, namespace="ns", mode="new")
    await publish_many(other, "new")
    if joins == "later":
        await other.execute("""select postbus.set_topic('t', '{"namespace": "ns"}')""")

    assert await _before(other) == ["new"]
    await open_one.commit()
    assert await _before(other) == ["late", "new"]


async def test_key_added_while_a_worker_settles_gets_its_messages(connect: Connect) -> None:
    """Messages that the worker has just skipped, because it did not want the key, are deferred for the group."""
    worker, admin, watcher = await connect(), await connect(), await connect()
    await create_topic(watcher)
    group = (await subscribe_scope(watcher, topic="t", key="a"))["t"]
    await publish_many(watcher, "a1", "b1", keys=["a", "b"])
    [lane] = await _taken(watcher, group)
    cursor = (await read_all(watcher, lane["cursor"]))[1]
    settling = worker.transaction()
    await settling.start()
    await worker.execute(
        "select postbus.advance(array[$1::bigint], '{0}', array[$2::uuid], array[$3::bigint], array[$4], "
        "'{null}', '{null}', '{2}')",
        group,
        lane["token"],
        lane["number"],
        cursor,
    )
    adding = asyncio.create_task(subscribe_scope(admin, topic="t", key="b"))
    await _waits(watcher, admin.get_server_pid())
    await settling.commit()
    await adding

    rows = await watcher.fetch("select payload from postbus.deferred")
    assert [row["payload"] for row in rows] == [b"b1"]


async def _taken(conn: Any, group: int) -> list[Any]:
    await conn.execute("select postbus.heartbeat('w', 'host', 1, '{}')")
    rows: list[Any] = await conn.fetch("select * from postbus.lease_lanes('w', array[$1::bigint], '{}')", group)
    return rows


async def test_scope_cannot_be_recorded_with_an_older_snapshot(connect: Connect) -> None:
    """A transaction that has read and written before has no position of now, in any isolation level."""
    conn = await connect()
    await create_topic(conn)
    async with conn.transaction(isolation="repeatable_read"):
        await publish_many(conn, "x")
        async with conn.transaction():
            pass
        assert await refused(_record(conn), "PB431")


async def _record(conn: Any) -> None:
    async with conn.transaction():
        await subscribe_scope(conn, pattern="#")


async def _publish_in(conn: Any, topic: str, payload: str, pauses: tuple[float, float]) -> tuple[float, float]:
    """Publish in a transaction that stays open for a while. Returns when its COMMIT was sent, and when it was over."""
    async with conn.transaction():
        await asyncio.sleep(pauses[0])
        if not await conn.fetchval("select exists (select from postbus.topic where name = $1)", topic):
            with suppress(asyncpg.PostgresError):  # another session was faster
                async with conn.transaction():
                    await create_topic(conn, topic, namespace="ns")
        await publish_many(conn, payload, topic=topic)
        await asyncio.sleep(pauses[1])
        began = time.monotonic()
    return began, time.monotonic()


async def _lost_by_a_record_in_the_middle(connect: Connect, seed: int) -> set[str]:
    """Create topics and publish, in transactions of all lengths, while a group records its scope.

    Returns what committed after the record and did not come. A message that came twice, or was committed before, is an
    error.
    """
    dice = random.Random(seed)
    conns = [await connect() for _ in range(12)]
    recorder, holder = await connect(), await connect()
    commits: dict[str, tuple[float, float]] = {}
    when = dice.randrange(10, 50)
    """Of the 72 messages so many are committed before it is recorded."""
    for n in range(6):
        await create_topic(recorder, f"t{n}", namespace="ns")

    async def publish(conn: Any, writer: int) -> None:
        for n in range(6):
            topic, payload = f"t{dice.randrange(6 if n < 3 else 8)}", f"{writer}.{n}"
            commits[payload] = await _publish_in(conn, topic, payload, (dice.random() / 50, dice.random()))

    async def record() -> tuple[float, float]:
        while len(commits) < when:
            await asyncio.sleep(0.001)
        # However slowly the others go, one has published before the record and commits after it.
        async with holder.transaction():
            await publish_many(holder, "held", topic="t0")
            began = time.monotonic()
            await subscribe_scope(recorder, namespace="ns", mode="new", look_back=timedelta(0))
            ended = sent = time.monotonic()
        commits["held"] = sent, time.monotonic()
        return began, ended

    recording = asyncio.create_task(record())
    await asyncio.gather(*(publish(conn, n) for n, conn in enumerate(conns)))
    began, ended = await recording
    names = [row["name"] for row in await recorder.fetch("select name from postbus.topic where namespace = 'ns'")]
    assert await _subscribed(recorder) == sorted(names)
    got = [payload for topic in names for payload in await _before(recorder, topic)]
    assert len(got) == len(set(got))
    assert not {payload for payload, (_, over) in commits.items() if over < began} & set(got)
    return {payload for payload, (sent, _) in commits.items() if sent >= ended} - set(got)


@pytest.mark.parametrize("seed", range(3))
async def test_scope_recorded_amid_transactions_gets_each_later_commit(connect: Connect, seed: int) -> None:
    """Every commit after the record comes, once, and none from before it."""
    assert await _lost_by_a_record_in_the_middle(connect, seed) == set()


async def test_record_of_the_time_alone_loses_messages(connect: Connect) -> None:
    """This is a control: without its snapshot, a record would miss messages published before it and committed after
    it."""
    conn = await connect()
    source: str = await conn.fetchval("select pg_get_functiondef('postbus.scope_cursor'::regproc)")
    without = source.replace("then scope.snapshot end", "then null::pg_snapshot end")
    assert without != source
    await conn.execute(without)
    assert await _lost_by_a_record_in_the_middle(connect, 0)
