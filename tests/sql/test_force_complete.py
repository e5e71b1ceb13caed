"""Force-complete moves groups past messages older than a given time, and past no others."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from support.log_sql import (
    advance,
    create_topic,
    cursor_of,
    let_die,
    publish_many,
    read,
    read_all,
    refused,
    rotate,
    subscribe,
    sweep,
    take,
)
from support.queue_sql import publish

HOUR = timedelta(hours=1)


async def now(conn: Any) -> datetime:
    moment: datetime = await conn.fetchval("select clock_timestamp()")
    return moment


async def force(conn: Any, before: datetime, group: str | None = None, *, dry_run: bool = False) -> dict[str, int]:
    """Move groups past messages published before a time. Returns how many messages each group skips."""
    rows = await conn.fetch(
        "select * from postbus.force_complete_as_of('t', $1, $2, $3, as_of => $4)", HOUR, group, dry_run, before + HOUR
    )
    return {row["name"]: row["messages"] for row in rows}


async def left(conn: Any, group: int, lanes: int = 1) -> list[str]:
    """Return the payloads that are left for a group."""
    found: list[str] = []
    for lane in range(lanes):
        messages, _ = await read_all(conn, await cursor_of(conn, group, lane), lanes=(lane,))
        found += messages
    return sorted(found)


async def lag(conn: Any, storage: int, name: str = "g") -> int:
    await sweep(conn, storage)
    return int(await conn.fetchval("select lag from postbus.groups where group_name = $1", name))


@pytest.mark.parametrize("lanes", [1, 4])
async def test_older_messages_are_skipped_and_younger_ones_stay(conn: Any, lanes: int) -> None:
    """A dry run only counts, and a second run finds nothing to skip."""
    storage = await create_topic(conn, lanes=lanes)
    group = await subscribe(conn)
    old = [id for n in range(8) for id in await publish(conn, f"old {n}", key=f"k{n}")]
    middle = await now(conn)
    young = [id for n in range(8) for id in await publish(conn, f"young {n}", key=f"k{n}")]

    assert await force(conn, middle, dry_run=True) == {"g": 8}
    assert await lag(conn, storage) == 16, "a dry run changes nothing"
    assert await force(conn, middle) == {"g": 8}

    assert await left(conn, group, lanes) == [f"young {n}" for n in range(8)]
    assert await lag(conn, storage) == 8
    status = "select status from postbus.deliveries_of('t', $1)"
    assert {await conn.fetchval(status, id) for id in old} == {"SKIPPED"}
    assert {await conn.fetchval(status, id) for id in young} == {"PENDING"}
    assert await force(conn, middle) == {}, "a second time there is nothing to do"


async def test_group_without_younger_messages_moves_to_the_end(conn: Any) -> None:
    """The group then receives messages that are published later."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, *"abc")
    assert await force(conn, await now(conn)) == {"g": 3}
    assert (await left(conn, group), await lag(conn, storage)) == ([], 0)
    await publish(conn, "later")
    assert (await left(conn, group), await lag(conn, storage)) == (["later"], 1)


async def test_force_complete_moves_every_live_group_or_a_named_one(conn: Any) -> None:
    """PAUSED groups are moved; DEAD groups and groups that have settled the messages are not."""
    storage = await create_topic(conn)
    await subscribe(conn, "dead")
    await let_die(conn, storage)
    done = await subscribe(conn, "done")
    for name in ("late", "other", "paused"):
        await subscribe(conn, name)
    await conn.execute("select postbus.set_group_state('t', 'paused', 'PAUSED')")
    await publish_many(conn, *"ab")
    [lane] = await take(conn, "w", done)
    await advance(conn, [lane], (await read(conn, lane.cursor)).next, 2)
    end = await now(conn)

    assert await force(conn, end, "late") == {"late": 2}
    assert await force(conn, end) == {"other": 2, "paused": 2}
    assert await conn.fetchval("select holder from postbus.lane where subscription_id = $1", done) == "w"


async def test_holder_of_the_lane_loses_it(conn: Any) -> None:
    """A settlement for messages that the holder read before is refused."""
    await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "old")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    await force(conn, await now(conn))
    assert await advance(conn, [lane], result.next, 1) == [1]


async def test_cursor_within_a_segment_keeps_its_settled_messages(conn: Any) -> None:
    """Only the unsettled messages are counted as skipped, with younger messages behind them."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, *"abc")
    await publish_many(conn, *"de")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    assert result.during is not None
    await advance(conn, [lane], result.during, 2, done=result.at[1])
    middle = await now(conn)
    await publish(conn, "young")

    assert await force(conn, middle) == {"g": 3}
    assert (await left(conn, group), await lag(conn, storage)) == (["young"], 1)


async def test_half_settled_younger_segment_stays_half_settled(conn: Any) -> None:
    """Force-complete leaves a cursor alone that is past all older messages."""
    await create_topic(conn)
    group = await subscribe(conn)
    before = await now(conn)
    await publish_many(conn, *"abc")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    assert result.during is not None
    await advance(conn, [lane], result.during, 2, done=result.at[1])
    assert await force(conn, before) == {}
    assert await left(conn, group) == ["c"]


async def test_uncommitted_messages_are_not_skipped(conn: Any, connect: Any) -> None:
    """Messages of a transaction that was open when the group was moved are delivered, however old they are."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    writer = await connect()
    open_transaction = writer.transaction()
    await open_transaction.start()
    await publish(writer, "uncommitted")
    await publish(conn, "old")
    middle = await now(conn)
    await publish(conn, "young")

    assert await force(conn, middle) == {"g": 1}
    await open_transaction.commit()

    assert await left(conn, group) == ["uncommitted", "young"]
    assert await lag(conn, storage) == 2


async def test_late_commits_wait_until_the_cursor_reaches_them(conn: Any, connect: Any) -> None:
    """A group within a read result is not moved: no message is delivered twice."""
    await create_topic(conn)
    group = await subscribe(conn)
    older, younger = await connect(), await connect()
    transactions = [older.transaction(), younger.transaction()]
    await transactions[0].start()
    await publish(older, "late and old")
    middle = await now(conn)
    await transactions[1].start()
    await publish(younger, "late and young")
    for payload in ("done", "not done"):
        await publish(conn, payload)
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    assert result.during is not None
    await advance(conn, [lane], result.during, 1, done=result.at[0])
    for one in transactions:
        await one.commit()

    assert await force(conn, middle) == {}
    assert await left(conn, group) == ["late and old", "late and young", "not done"]
    await advance(conn, [lane], result.next, 1)
    assert await force(conn, middle) == {"g": 1}
    assert await left(conn, group) == ["late and young"]


async def test_late_commits_behind_the_cursor_are_skipped_and_counted(conn: Any, connect: Any) -> None:
    """They lie behind the position that the cursor has reached, but are not settled."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    writer = await connect()
    open_transaction = writer.transaction()
    await open_transaction.start()
    await publish(writer, "late")
    for payload in ("done", "old", "old too"):
        await publish(conn, payload)
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    assert result.during is not None
    await advance(conn, [lane], result.during, 1, done=result.at[0])
    await open_transaction.commit()
    middle = await now(conn)
    await publish(conn, "young")

    assert await force(conn, middle) == {"g": 3}
    assert (await left(conn, group), await lag(conn, storage)) == (["young"], 1)


async def test_force_complete_spans_several_partitions(conn: Any) -> None:
    """Messages in closed partitions are skipped and counted."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    for partition in range(3):
        await publish_many(conn, f"{partition}a", f"{partition}b")
        await rotate(conn, storage)
    middle = await now(conn)
    await publish(conn, "young")
    assert await force(conn, middle) == {"g": 6}
    assert (await left(conn, group), await lag(conn, storage)) == (["young"], 1)


async def test_history_of_a_group_is_skipped_too(conn: Any) -> None:
    """A catch-up that has nothing left ends, and reports how many messages were skipped."""
    storage = await create_topic(conn)
    await publish_many(conn, *(str(n) for n in range(10)))
    middle = await now(conn)
    await publish_many(conn, *(str(n) for n in range(10, 15)))
    await subscribe(conn, "g", "FROM_BEGINNING", catch_up=json.dumps({"beside_from": 2}))

    assert await force(conn, middle) == {"g": 10}
    row = await conn.fetchrow("select status, total, skipped, processed from postbus.catch_ups")
    assert tuple(row) == ("IN_PROGRESS", 5, 10, 0)
    assert await force(conn, await now(conn)) == {"g": 5}
    await sweep(conn, storage)
    assert await conn.fetchval("select status from postbus.catch_ups") == "COMPLETED"


async def test_bad_force_complete_arguments_are_refused(conn: Any) -> None:
    """The hint says what to give or which command to use instead."""
    await create_topic(conn)
    await conn.execute("select postbus.create_topic('queue')")
    call = "select * from postbus.force_complete($1, $2, $3)"
    assert "such as" in await refused(conn.fetch(call, "t", timedelta(-1), None), "PB402")
    assert "topics purge" in await refused(conn.fetch(call, "queue", HOUR, None), "PB432")
    assert "groups list" in await refused(conn.fetch(call, "t", HOUR, "nobody"), "PB406")
