"""The inbox's functions: new and known messages, concurrent callers, and forgetting."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from interleave.test_lease_races import waits
from support.fix_database import Connect
from support.log_sql import refused

_WINDOW = timedelta(hours=720)


async def once(conn: Any, message_id: str = "m", consumer: str = "c") -> bool:
    return bool(await conn.fetchval("select postbus.inbox_once($1, $2)", consumer, message_id))


async def age(conn: Any, by: timedelta) -> None:
    """Make all records older by this interval."""
    await conn.execute("update postbus.inbox set done_at = done_at - $1::interval, expires_at = expires_at - $1", by)


async def test_message_is_new_once_for_each_consumer(conn: Any) -> None:
    """The second time it is known; for another consumer, or under another id, it is new."""
    assert [await once(conn), await once(conn)] == [True, False]
    assert await once(conn, consumer="d")
    assert await once(conn, "n")


async def test_rolled_back_record_is_not_known(conn: Any) -> None:
    """The record is rolled back with the effect in the same transaction."""
    with pytest.raises(ZeroDivisionError):
        async with conn.transaction():
            assert await once(conn)
            raise ZeroDivisionError

    assert await once(conn)


@pytest.mark.parametrize("commits", [True, False])
async def test_concurrent_caller_waits_for_the_first_to_end(connect: Connect, commits: bool) -> None:
    """If the first commits, the message is known to the second; if it rolls back, the message is new to it."""
    a, b, observer = await connect(), await connect(), await connect()
    first = a.transaction()
    await first.start()
    assert await once(a)
    second = asyncio.create_task(once(b))
    await waits(observer, b.get_server_pid())
    await (first.commit() if commits else first.rollback())

    assert await second is not commits


async def test_too_old_snapshot_gets_a_serialization_error(connect: Connect) -> None:
    """In REPEATABLE READ an answer would contradict the snapshot, so it is an error and nothing is recorded."""
    a, b = await connect(), await connect()
    async with b.transaction(isolation="repeatable_read"):
        await b.fetchval("select 1")
        assert await once(a)
        with pytest.raises(asyncpg.SerializationError):
            async with b.transaction():
                await once(b)
    assert not await once(b)


async def test_message_is_new_again_after_its_window(conn: Any) -> None:
    """The default window is a month; a record's own window counts from when it was given."""
    assert await once(conn)
    await age(conn, _WINDOW - timedelta(minutes=1))
    assert not await once(conn)
    await age(conn, timedelta(minutes=2))
    assert await once(conn)
    assert not await once(conn), "and is known again since"
    await conn.execute("select postbus.inbox_once('c', 'short', '1 hour')")
    await age(conn, timedelta(minutes=59))
    assert not await once(conn, "short")
    await age(conn, timedelta(minutes=2))
    assert await once(conn, "short")


@pytest.mark.parametrize("commits", [True, False])
async def test_expired_record_is_reused_by_one_caller(connect: Connect, commits: bool) -> None:
    """The second caller waits for the first here too."""
    a, b, observer = await connect(), await connect(), await connect()
    assert await once(a)
    await age(a, _WINDOW + timedelta(days=1))
    first = a.transaction()
    await first.start()
    assert await once(a)
    second = asyncio.create_task(once(b))
    await waits(observer, b.get_server_pid())
    await (first.commit() if commits else first.rollback())

    assert await second is not commits


async def test_known_message_locks_and_writes_nothing(connect: Connect) -> None:
    """Any number of transactions can learn at the same time that a message is known."""
    a, b = await connect(), await connect()
    assert await once(a)
    async with a.transaction(), b.transaction():
        assert not await once(a)
        assert not await once(b)
        assert await a.fetchval("select pg_current_xact_id_if_assigned() is null")


async def test_message_is_forgotten_on_request(conn: Any) -> None:
    """The next delivery has its effect again, and the caller learns whether the message was known."""
    assert await once(conn)
    forget = "select postbus.inbox_forget('c', 'm')"
    assert [await conn.fetchval(forget), await conn.fetchval(forget)] == [True, False]
    assert await once(conn)


async def many(conn: Any, *message_ids: str) -> list[bool]:
    return list(await conn.fetchval("select postbus.inbox_once_many('c', $1)", message_ids))


async def test_many_messages_have_one_answer_each(conn: Any) -> None:
    """Answers come in the given order, and of a repeated id the first one counts."""
    await once(conn, "b")

    assert await many(conn, "c", "b", "a", "c") == [True, False, True, False]
    assert await many(conn, "a", "d") == [False, True]
    assert await many(conn) == []


async def test_batches_in_different_orders_do_not_deadlock(connect: Connect) -> None:
    """Ids are locked in one order, so that only the second batch waits for the first."""
    a, b, observer = await connect(), await connect(), await connect()
    first = a.transaction()
    await first.start()
    assert await many(a, "1") == [True]
    second = asyncio.create_task(many(b, "2", "1"))
    await waits(observer, b.get_server_pid())
    assert await many(a, "2") == [True], "which the other one does not have yet"
    await first.commit()

    assert await second == [False, False]


async def test_sweep_removes_expired_records(conn: Any) -> None:
    """It works in batches and removes no record before its time."""
    for n in range(3):
        await once(conn, str(n))
    await conn.execute("select postbus.inbox_once('c', 'long', '900 hours')")
    sweep = "select inbox_records, more from postbus.sweep_as_of($1, clock_timestamp() + $2)"
    early = await conn.fetchrow(sweep, 2, _WINDOW - timedelta(minutes=1))
    runs = [tuple(await conn.fetchrow(sweep, 2, _WINDOW + timedelta(minutes=1))) for _ in range(2)]

    assert tuple(early) == (0, False)
    assert runs == [(2, True), (1, False)]
    assert await conn.fetchval("select array_agg(message_id) from postbus.inbox") == ["long"]
    assert await conn.fetchval("select removed_total from postbus.sweep_jobs where job = 'sweep'") == 3


async def test_sweep_skips_a_record_in_reuse(connect: Connect) -> None:
    """The sweep neither waits for the record nor removes it."""
    a, sweeper = await connect(), await connect()
    assert await once(a)
    await age(a, _WINDOW + timedelta(minutes=1))
    async with a.transaction():
        assert await once(a)
        swept = await sweeper.fetchval("select inbox_records from postbus.sweep()")
    assert swept == 0
    assert not await once(a)


@pytest.mark.parametrize(
    "args", ["'', 'm'", "null, 'm'", "repeat('c', 201), 'm'", "'c', ''", "'c', null", "'c', repeat('m', 501)",
             "'c', 'm', '0'", "'c', 'm', null", "'c', 'm', '200 years'"],
)  # fmt: skip
async def test_bad_inbox_input_is_refused(conn: Any, args: str) -> None:
    """The hint says what is allowed, and nothing is recorded."""
    assert await refused(conn.execute(f"select postbus.inbox_once({args})"), "PB402")
    assert await refused(conn.execute("select postbus.inbox_once_many('c', array['good', ''])"), "PB402")
    assert await conn.fetchval("select count(*) from postbus.inbox") == 0
