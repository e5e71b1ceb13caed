"""The inbox's functions: what is first, what is known, who waits for whom, and when it is forgotten."""

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
    """Let everything have been noted earlier by this."""
    await conn.execute("update postbus.inbox set done_at = done_at - $1::interval, expires_at = expires_at - $1", by)


async def test_a_message_is_new_once_for_each_consumer(conn: Any) -> None:
    """The second time it is known; to another consumer, and under another id, it is new."""
    assert [await once(conn), await once(conn)] == [True, False]
    assert await once(conn, consumer="d")
    assert await once(conn, "n")


async def test_what_is_rolled_back_is_not_known(conn: Any) -> None:
    """The note goes with the effect that was in the same transaction."""
    with pytest.raises(ZeroDivisionError):
        async with conn.transaction():
            assert await once(conn)
            raise ZeroDivisionError

    assert await once(conn)


@pytest.mark.parametrize("commits", [True, False])
async def test_a_second_one_waits_for_the_end_of_the_first(connect: Connect, commits: bool) -> None:
    """If the first commits, the message is known to the second; if it rolls back, it is new to it."""
    a, b, observer = await connect(), await connect(), await connect()
    first = a.transaction()
    await first.start()
    assert await once(a)
    second = asyncio.create_task(once(b))
    await waits(observer, b.get_server_pid())
    await (first.commit() if commits else first.rollback())

    assert await second is not commits


async def test_a_snapshot_that_is_too_old_is_told_to_try_again(connect: Connect) -> None:
    """In REPEATABLE READ the answer would contradict the snapshot: it is an error, and nothing is noted."""
    a, b = await connect(), await connect()
    async with b.transaction(isolation="repeatable_read"):
        await b.fetchval("select 1")
        assert await once(a)
        with pytest.raises(asyncpg.SerializationError):
            async with b.transaction():
                await once(b)
    assert not await once(b)


async def test_after_its_window_a_message_is_new_again(conn: Any) -> None:
    """A month is remembered by default; a window of its own counts from when it was given."""
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
async def test_only_one_uses_an_expired_record_again(connect: Connect, commits: bool) -> None:
    """The second waits for the first here too."""
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


async def test_a_known_message_locks_and_writes_nothing(connect: Connect) -> None:
    """Any number of transactions may learn at the same time that a message is known."""
    a, b = await connect(), await connect()
    assert await once(a)
    async with a.transaction(), b.transaction():
        assert not await once(a)
        assert not await once(b)
        assert await a.fetchval("select pg_current_xact_id_if_assigned() is null")


async def test_a_message_is_forgotten_on_request(conn: Any) -> None:
    """Its next delivery has its effect again; who asks learns whether it was known."""
    assert await once(conn)
    forget = "select postbus.inbox_forget('c', 'm')"
    assert [await conn.fetchval(forget), await conn.fetchval(forget)] == [True, False]
    assert await once(conn)


async def many(conn: Any, *message_ids: str) -> list[bool]:
    return list(await conn.fetchval("select postbus.inbox_once_many('c', $1)", message_ids))


async def test_many_messages_have_an_answer_each(conn: Any) -> None:
    """In the order in which they are given; of one that is given twice the first counts."""
    await once(conn, "b")

    assert await many(conn, "c", "b", "a", "c") == [True, False, True, False]
    assert await many(conn, "a", "d") == [False, True]
    assert await many(conn) == []


async def test_batches_in_different_orders_do_not_wait_for_each_other(connect: Connect) -> None:
    """The second waits for the first, and never the other way round as well."""
    a, b, observer = await connect(), await connect(), await connect()
    first = a.transaction()
    await first.start()
    assert await many(a, "1") == [True]
    second = asyncio.create_task(many(b, "2", "1"))
    await waits(observer, b.get_server_pid())
    assert await many(a, "2") == [True], "which the other one does not have yet"
    await first.commit()

    assert await second == [False, False]


async def test_the_sweep_forgets_what_is_past_its_window(conn: Any) -> None:
    """In batches, and nothing before its time."""
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


async def test_the_sweep_passes_by_a_record_that_is_used_again(connect: Connect) -> None:
    """It neither waits for it nor removes it."""
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
async def test_bad_input_is_refused(conn: Any, args: str) -> None:
    """With what is allowed instead; and nothing is noted."""
    assert await refused(conn.execute(f"select postbus.inbox_once({args})"), "PB402")
    assert await refused(conn.execute("select postbus.inbox_once_many('c', array['good', ''])"), "PB402")
    assert await conn.fetchval("select count(*) from postbus.inbox") == 0
