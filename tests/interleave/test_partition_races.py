"""A session looks up which partitions the log has at the moment when one is added.

PostgreSQL caches the partitions of a table in each session. A session that reads them from the catalogs while another
partition is attached may learn of the change before it stores what it read; then it does not know the new partition
until the next change. Here locks on the catalogs stop a session at just that point.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from postbus import Bus
from support.eventually import eventually
from support.fix_database import Connect
from support.log_sql import create_topic, cursor_of, partitions_of, publish_partitions, read, read_all, subscribe, sweep
from support.queue_sql import publish


async def _add_while(
    connect: Connect,
    add: Callable[[Any], Awaitable[Any]],
    looks: Any,
    act: Coroutine[Any, Any, Any],
    *,
    voids: tuple[str, ...],
) -> Any:
    """Let a session look up partitions, and add one when it has read them but not yet stored them.

    The sessions' caches of some tables are invalidated before: of the one whose partitions are looked up, and of one
    partition.
    """
    conn, reading, adding, watcher = [await connect() for _ in range(4)]
    for table in voids:
        await conn.execute(f"grant select on postbus.{table} to current_user")
    blocked = await watcher.prepare("select $1 = any (pg_blocking_pids($2))")

    async def waits_for(other: Any) -> None:
        assert await blocked.fetchval(other.get_server_pid(), looks.get_server_pid())

    async with reading.transaction():
        await reading.execute("lock table pg_inherits in access exclusive mode")
        acting = asyncio.create_task(act)
        await eventually(waits_for, reading)
        transaction = adding.transaction()
        await transaction.start()
        await adding.execute("lock table pg_class in access exclusive mode")
    await eventually(waits_for, adding)
    await add(adding)
    await transaction.commit()
    return await acting


async def _add_leaf_while(connect: Connect, storage: int, looks: Any, act: Coroutine[Any, Any, Any]) -> Any:
    async def add(conn: Any) -> None:  # as the sweep does
        await conn.execute("select postbus.add_partition($1, $2)", storage, await _count(conn, storage) + 1)

    return await _add_while(connect, add, looks, act, voids=(f"segment_{storage}", f"segment_{storage}_1"))


async def _count(conn: Any, storage: int) -> int:
    count: int = await conn.fetchval("select count(*) from postbus.log_partition where storage_id = $1", storage)
    return count


async def _write_to_all(conn: Any, storage: int, publisher: Any) -> list[str]:
    """Publish to one partition after the other, until all of them have been written to."""
    published = []
    last = await _count(conn, storage)
    await conn.execute("update postbus.log_storage set partition_bytes = 1")
    while len(there := await partitions_of(conn, storage)) < last:
        published.append(f"to {len(there)}")
        await publish(publisher, published[-1])
        for _ in range(3):
            await sweep(conn, storage)
    published.append("to the last")
    await publish(publisher, published[-1])
    return published


async def test_publisher_knows_a_partition_added_during_its_lookup(connect: Connect) -> None:
    """It knows the partition when it has to write to it."""
    conn, publisher = await connect(), await connect()
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish_partitions(conn, storage)
    await publish(publisher, "one")
    await _add_leaf_while(connect, storage, publisher, publish(publisher, "two"))

    published = await _write_to_all(conn, storage, publisher)
    assert (await read_all(conn, await cursor_of(conn, group)))[0] == ["one", "two", *published]


async def test_reader_knows_a_partition_added_during_its_lookup(connect: Connect) -> None:
    """It knows the partition when messages were written to it, and misses none."""
    conn, reader = await connect(), await connect()
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish_partitions(conn, storage)
    await publish(conn, "one")
    found, cursor = await read_all(reader, await cursor_of(conn, group))
    await publish(conn, "two")
    more, cursor = await _add_leaf_while(connect, storage, reader, read_all(reader, cursor))

    published = await _write_to_all(conn, storage, conn)
    rest, _ = await read_all(reader, cursor)
    assert found + more + rest == ["one", "two", *published]


async def _waits(conn: Any, session: Any) -> None:
    assert await conn.fetchval("select pg_blocking_pids($1) <> '{}'", session.get_server_pid())


async def _is_unknown(session: Any, storage: int) -> bool:
    """Return whether a session does not know a storage that has messages."""
    return not await session.fetchval("select exists (select from postbus.segment where storage_id = $1)", storage)


async def test_publisher_uses_a_storage_added_during_its_lookup(connect: Connect) -> None:
    """It publishes to the new storage all the same."""
    conn, publisher = await connect(), await connect()
    await publish_partitions(conn, await create_topic(conn))
    await publish(publisher, "one")

    async def add(conn: Any) -> None:
        await create_topic(conn, "own", storage="own")

    await _add_while(connect, add, publisher, publish(publisher, "two"), voids=("segment", "segment_shared"))

    group = await subscribe(conn, topic="own")
    await publish(publisher, "three", topic="own")
    assert await _is_unknown(publisher, 100), "else this test shows nothing"
    await sweep(conn, 100)
    await publish(publisher, "four", topic="own")
    await sweep(conn, 100)
    await publish(publisher, "five", topic="own")
    assert (await read_all(conn, await cursor_of(conn, group), topic="own"))[0] == ["three", "four", "five"]


async def test_reader_knows_a_storage_added_during_its_lookup(connect: Connect) -> None:
    """It misses no message there, also if it reads up to the position of another reader."""
    conn, reader = await connect(), await connect()
    await publish_partitions(conn, await create_topic(conn))
    group = await subscribe(conn)
    await publish(conn, "one")
    _, cursor = await read_all(reader, await cursor_of(conn, group))

    async def add(conn: Any) -> None:
        await create_topic(conn, "long", retention="3 days")

    await _add_while(connect, add, reader, read_all(reader, cursor), voids=("segment_shared", "segment_2"))

    group = await subscribe(conn, topic="long")
    await publish(conn, "two", topic="long")
    assert await _is_unknown(reader, 3), "else this test shows nothing"
    start = await cursor_of(conn, group)
    position = await conn.fetchval(
        "select read_target from postbus.read_log('long', '{0}', $1) where more is not null", start
    )
    result = await read(reader, start, topic="long", target=position)
    for number in range(3):
        await publish(conn, str(number), topic="long")
        await sweep(conn, 3)
    assert result.messages == ["two"]
    assert (await read_all(reader, result.next, topic="long"))[0] == ["0", "1", "2"]


async def test_storage_is_published_to_all_sessions_when_its_topic_is_created(bus: Bus, conn: Any) -> None:
    """No sweep is needed first."""
    await bus.admin.create_topic("t", semantics="PUB_SUB", storage="own")
    assert not await conn.fetchval("select postbus.publish_partitions(100)")
    assert await conn.fetchval("select pg_sequence_last_value('postbus.log_epoch_100')") == 1
    assert not await conn.fetchval("select postbus.publish_partitions(101)"), "no such storage"


async def test_storage_stays_new_while_topics_are_created(connect: Connect) -> None:
    """Nobody waits for that, and it is published to all sessions later, in two steps."""
    conn, other = await connect(), await connect()
    storage = await create_topic(conn)
    transaction = other.transaction()
    await transaction.start()
    await create_topic(other, "own", storage="own")
    assert not await conn.fetchval("select postbus.publish_partitions($1)", storage)
    assert await _count(conn, storage) == 1
    await transaction.commit()

    async with conn.transaction():
        assert [await conn.fetchval("select postbus.publish_partitions($1)", storage) for _ in range(2)] == [True, True]
    assert [await conn.fetchval("select postbus.publish_partitions($1)", storage) for _ in range(2)] == [False, False]
    assert await _count(conn, storage) == 2


async def test_sessions_that_may_be_looking_up_storages_are_waited_for(connect: Connect) -> None:
    """A slow lookup would otherwise not be repeated. Idle sessions are not waited for, and no session for long."""
    conn, looking, idle, blocking = [await connect() for _ in range(4)]
    storages = [
        await create_topic(conn, "short", retention="1 hour"),
        await create_topic(conn, "long", retention="3 days"),
    ]
    await conn.execute("create table stone ()")
    async with idle.transaction(), looking.transaction():
        await publish(idle, "one", topic="short")
        await idle.execute("lock table postbus.segment, postbus.segment_shared in access share mode")
        await looking.execute("lock table postbus.segment_shared in access share mode")
        async with blocking.transaction():
            await blocking.execute("lock table stone")
            waiting = asyncio.create_task(looking.execute("select from stone"))
            await eventually(_waits, conn, looking)
            for storage in storages:
                assert not await conn.fetchval("select postbus.publish_partitions($1)", storage)
                assert await _count(conn, storage) == 1
            await conn.execute("update postbus.log_partition set opened_at = opened_at - interval '6 seconds'")
            assert (await sweep(conn, storages[0]))["more"]
        await waiting
        assert await conn.fetchval("select postbus.publish_partitions($1)", storages[1])
    for storage in storages:
        assert await _count(conn, storage) == 2


async def test_two_sessions_can_publish_a_storage_to_all(connect: Connect) -> None:
    """The second one, which began before the first had ended, continues from its result."""
    conn, first, second = [await connect() for _ in range(3)]
    storage = await create_topic(conn)
    async with first.transaction():
        await first.execute(f"alter sequence postbus.log_epoch_{storage} cache 1")  # which the second one waits for
        making = asyncio.create_task(second.fetchval("select postbus.publish_partitions($1)", storage))
        await eventually(_waits, conn, second)
        assert await first.fetchval("select postbus.publish_partitions($1)", storage)
    assert not await making
    assert not await conn.fetchval(
        "select postbus.publish_partitions($1)", storage
    )  # if it still met the other session's lock
    assert await _count(conn, storage) == 2
    assert await conn.fetchval("select pg_sequence_last_value(postbus.epoch_sequence($1))", storage) == 1
