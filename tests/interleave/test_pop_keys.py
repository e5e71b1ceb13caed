"""Losing the first message of a key loses the key; messages behind it neither wait forever nor pass it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

from interleave.test_lease_races import waits
from support.fix_database import Connect
from support.log_sql import advance, beat, create_topic, defer, publish_many, read, refused, subscribe, take, vanish
from support.pop_sql import ack, pop, retry

LATER = timedelta(minutes=1)


async def _now(conn: Any, later: timedelta = timedelta(0)) -> datetime:
    now: datetime = await conn.fetchval("select clock_timestamp() + $1::interval", later)
    return now


async def _group(conn: Any, **options: Any) -> int:
    await create_topic(conn, **options)
    return await subscribe(conn)


async def test_losing_a_keys_first_message_loses_those_behind_it(conn: Any) -> None:
    """The lease has expired and another consumer has begun with the key: a late settlement would be out of order."""
    await _group(conn)
    await publish_many(conn, "a1", "a2", keys=["a", "a"])
    first = await pop(conn, 2)
    second = await pop(conn, 1, as_of=await _now(conn, LATER))
    assert second.messages == ["a1"]

    assert await ack(conn, first, first.ids[1]) == [first.ids[1]]
    assert await conn.fetchval("select postbus.extend(array[$1::uuid], '1 minute')", first.token) == [first.token]

    assert await ack(conn, second) == []
    assert (await pop(conn, 5)).messages == ["a2"]


async def test_key_waiting_behind_a_message_in_hand_does_not_block_others(conn: Any) -> None:
    """A message is released while the one before it is still in hand: pops continue with other keys."""
    await _group(conn)
    await publish_many(conn, "a1", "a2", keys=["a", "a"])
    first = await pop(conn, 2)
    await conn.fetchval("select postbus.release($1, $2)", first.token, first.ids[1:])
    await publish_many(conn, "b1", keys=["b"])

    second = await pop(conn, 1)
    third = await pop(conn, 1)

    assert second.messages == ["b1"]
    assert (third.messages, third.more) == ([], False)


async def test_message_that_kills_takes_no_other_along(conn: Any) -> None:
    """Unanswered messages come alone, so neither those behind it nor those beside it are given up with it."""
    await _group(conn, max_attempts=4, retry_initial="1s", retry_max="1s", retry_jitter=0)
    await publish_many(conn, "a1", "a2", "b1", keys=["a", "a", "b"])
    popped = []
    for hours in range(8):
        one = await pop(conn, 5, as_of=await _now(conn, timedelta(hours=hours)))
        popped.append(one.messages)
        if "a1" not in one.messages:
            await ack(conn, one)

    assert popped[0] == ["a1", "a2", "b1"]
    assert sorted(popped[1:]) == [[], ["a1"], ["a1"], ["a1"], ["a1"], ["a2"], ["b1"]]
    assert await conn.fetchval("select array_agg(convert_from(payload, 'utf8')) from postbus.dead_letter") == ["a1"]


async def test_skipped_buffered_message_frees_those_behind_it(conn: Any) -> None:
    """The first message of a key is old and skipped; the second is younger, and was waiting behind it."""
    await _group(conn)
    await publish_many(conn, "b1", keys=["b"])
    await publish_many(conn, "a1", keys=["a"])
    between = await _now(conn)
    await publish_many(conn, "a2", keys=["a"])
    assert (await pop(conn, 1)).messages == ["b1"]

    skipped = await conn.fetchval(
        "select messages from postbus.force_complete('t', clock_timestamp() - $1::timestamptz, 'g')", between
    )

    assert skipped == 1
    assert (await pop(conn, 5)).messages == ["a2"]


async def test_settlement_needs_a_snapshot_of_its_own(conn: Any, connect: Connect) -> None:
    """With the transaction's snapshot it would not see the messages that came to wait behind it."""
    other = await connect()
    await _group(conn)
    await publish_many(conn, "a1", keys=["a"])
    first = await pop(conn, 1)

    settling = other.transaction(isolation="repeatable_read")
    await settling.start()
    await other.fetchval("select count(*) from postbus.topic")
    await publish_many(conn, "a2", keys=["a"])
    assert (await pop(conn, 1)).messages == []
    hint = await refused(ack(other, first), "PB402")
    await settling.rollback()

    assert "READ COMMITTED" in hint
    assert await ack(conn, first) == []
    assert (await pop(conn, 1)).messages == ["a2"]


async def test_message_deferred_by_a_worker_and_popped_does_not_come_again(conn: Any) -> None:
    """The worker died before its cursor passed the message; the log still returns it, and it is skipped."""
    group = await _group(conn)
    await publish_many(conn, "one", "two")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    assert await defer(conn, lane, result.after(1), "retry") == ["retried"]
    await vanish(conn, "w")

    first = await pop(conn, 1)
    assert first.messages == ["two"]
    assert await ack(conn, first) == []

    assert (await pop(conn, 5)).messages == ["one"]
    assert (await pop(conn, 5)).messages == []


async def test_pop_of_one_key_does_not_pass_over_its_first_message(connect: Connect) -> None:
    """Another session is taking the first message, so the second one cannot be popped yet."""
    a, b = await connect(), await connect()
    await _group(a)
    await publish_many(a, "a1", "a2", keys=["a", "a"])
    await pop(a, 2)
    later = await _now(a, LATER)

    async with a.transaction():
        assert (await pop(a, 1, as_of=later)).messages == ["a1"]
        assert (await pop(b, 1, key="a", as_of=later)).messages == []


async def test_settlement_and_extension_of_one_lease_do_not_deadlock(connect: Connect) -> None:
    """Both lock the messages in the order of the log, however they lie in the table."""
    a, b, c, observer = await connect(), await connect(), await connect(), await connect()
    await _group(a)
    await publish_many(a, "one", "two", "three")
    popped = await pop(a, 3)
    # The first one now lies behind the others in the table.
    await a.execute("update postbus.deferred set due_at = due_at + interval '1 s' where id = $1", popped.ids[0])

    blocking = a.transaction()
    await blocking.start()
    await a.execute("select from postbus.deferred where id = $1 for update", popped.ids[1])
    acking = asyncio.create_task(ack(b, popped))
    await waits(observer, b.get_server_pid())
    extending = asyncio.create_task(c.fetchval("select postbus.extend(array[$1::uuid], '1 minute')", popped.token))
    await waits(observer, c.get_server_pid())
    await blocking.rollback()

    assert await acking == []
    assert await extending == [popped.token]


async def test_retry_during_an_extension_returns_the_messages_behind_it(
    connect: Connect,
) -> None:
    """The retry waits for the extension, and then takes the messages behind it along."""
    a, b, observer = await connect(), await connect(), await connect()
    await _group(a)
    await publish_many(a, "a1", "a2", keys=["a", "a"])
    popped = await pop(a, 2)

    extending = a.transaction()
    await extending.start()
    await a.execute("update postbus.deferred set due_at = due_at + interval '1 s' where id = $1", popped.ids[1])
    failing = asyncio.create_task(retry(b, popped, popped.ids[0]))
    await waits(observer, b.get_server_pid())
    await extending.commit()
    await failing

    assert await ack(b, popped, popped.ids[1]) == [popped.ids[1]]
    assert (await pop(b, 5)).messages == ["a1", "a2"]


async def test_nothing_is_buffered_for_a_group_that_is_being_cancelled(connect: Connect) -> None:
    """A pop after the cancellation finds no group, and leaves nothing behind."""
    a, b = await connect(), await connect()
    group = await _group(a)
    await publish_many(a, "one")

    async with a.transaction():
        await a.execute("select postbus.set_group_state('t', 'g', 'CANCELLED')")
        assert (await pop(b, 1)).messages == []

    assert await a.fetchval("select count(*) from postbus.deferred where subscription_id = $1", group) == 0
    assert await a.fetchval("select count(*) from postbus.cursor where subscription_id = $1", group) == 0


async def test_lanes_at_different_positions_are_read_separately(conn: Any) -> None:
    """One lane is half-way to a position that another one has passed, and the latter does not go back."""
    group = await _group(conn, lanes=2)
    keys = await _keys_of_lanes(conn)
    await publish_many(conn, *(f"x{n}" for n in range(1500)), keys=[keys[0]] * 1500)
    first = await pop(conn, 1)  # 1000 of them are buffered, and the lanes half-way
    await publish_many(conn, "y1", keys=[keys[1]])
    lanes = await take(conn, "w", group)
    lane = next(one for one in lanes if one.lane == 1)
    result = await read(conn, lane.cursor, lanes=(1,))
    await advance(conn, [lane], result.next)
    result = await read(conn, lane.cursor, lanes=(1,))
    assert result.messages == ["y1"]
    await advance(conn, [lane], result.next, 1)
    await vanish(conn, "w")

    got = list(first.messages)
    popped = first
    while popped.messages:
        assert await ack(conn, popped) == []
        popped = await pop(conn, 1000)
        got += popped.messages
    assert got == [f"x{n}" for n in range(1500)]


async def _keys_of_lanes(conn: Any) -> list[str]:
    """Return a key for each of two lanes."""
    sql = "select min('k' || n) from generate_series(1, 50) as n where postbus.lane_of('k' || n, 2) = $1"
    return [await conn.fetchval(sql, lane) for lane in (0, 1)]


async def test_worker_takes_messages_of_a_key_one_after_the_other(conn: Any) -> None:
    """A pop had two messages of a key in hand and its lease expired: the worker with the lane gets the first alone."""
    group = await _group(conn)
    await publish_many(conn, "a1", "a2", keys=["a", "a"])
    await pop(conn, 2)
    await beat(conn, "w")
    [lane] = await take(conn, "w", group)

    claimed = await conn.fetch(
        "select * from postbus.claim_deferred_as_of(array[$1::uuid], 10, clock_timestamp() + $2)", lane.token, LATER
    )

    assert [row["payload"].decode() for row in claimed] == ["a1"]


async def test_other_messages_pass_a_failed_one_with_on_failure_pass(conn: Any) -> None:
    """Buffered and later messages of the key pass it; when it is due it is first again."""
    await create_topic(conn)
    await subscribe(conn, on_failure="pass")
    await publish_many(conn, "a1", "a2", keys=["a", "a"])
    first = await pop(conn, 1)
    await retry(conn, first, delay=timedelta(hours=1))
    second = await pop(conn, 1)
    await publish_many(conn, "a3", keys=["a"])
    assert (await pop(conn, 1)).messages == []  # a2 is in hand
    assert await ack(conn, second) == []
    third = await pop(conn, 1)
    await publish_many(conn, "a4", keys=["a"])

    assert (second.messages, third.messages) == (["a2"], ["a3"])
    assert await ack(conn, third) == []
    assert (await pop(conn, 5, as_of=await _now(conn, timedelta(hours=2)))).messages == ["a1", "a4"]
