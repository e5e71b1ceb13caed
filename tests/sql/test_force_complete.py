"""Force-complete: groups are moved past messages that are older than a time, and past no others."""

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
    """Move groups past what was published before a time. Returns how much of it each skips."""
    rows = await conn.fetch(
        "select * from postbus.force_complete_as_of('t', $1, $2, $3, as_of => $4)", HOUR, group, dry_run, before + HOUR
    )
    return {row["name"]: row["messages"] for row in rows}


async def left(conn: Any, group: int, lanes: int = 1) -> list[str]:
    """What a group still has before it."""
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


async def test_all_of_it(conn: Any) -> None:
    """Without anything younger a group stands at the end, and gets what comes later."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, *"abc")
    assert await force(conn, await now(conn)) == {"g": 3}
    assert (await left(conn, group), await lag(conn, storage)) == ([], 0)
    await publish(conn, "later")
    assert (await left(conn, group), await lag(conn, storage)) == (["later"], 1)


async def test_each_live_group_or_one_of_them(conn: Any) -> None:
    """Those that are done with the messages are not among them, nor are DEAD ones; PAUSED ones are."""
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


async def test_who_holds_the_lane_loses_it(conn: Any) -> None:
    """What it has read counts no more: the group has been moved past that."""
    await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "old")
    [lane] = await take(conn, "w", group)
    piece = await read(conn, lane.cursor)
    await force(conn, await now(conn))
    assert await advance(conn, [lane], piece.next, 1) == [1]


async def test_a_cursor_on_its_way_keeps_what_it_has_done(conn: Any) -> None:
    """In the middle of a segment, with younger messages behind it."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, *"abc")
    await publish_many(conn, *"de")
    [lane] = await take(conn, "w", group)
    piece = await read(conn, lane.cursor)
    assert piece.during is not None
    await advance(conn, [lane], piece.during, 2, done=piece.places[1])
    middle = await now(conn)
    await publish(conn, "young")

    assert await force(conn, middle) == {"g": 3}
    assert (await left(conn, group), await lag(conn, storage)) == (["young"], 1)


async def test_a_half_done_segment_that_is_young_stays_half_done(conn: Any) -> None:
    await create_topic(conn)
    group = await subscribe(conn)
    before = await now(conn)
    await publish_many(conn, *"abc")
    [lane] = await take(conn, "w", group)
    piece = await read(conn, lane.cursor)
    assert piece.during is not None
    await advance(conn, [lane], piece.during, 2, done=piece.places[1])
    assert await force(conn, before) == {}
    assert await left(conn, group) == ["c"]


async def test_what_is_still_uncommitted_is_not_lost(conn: Any, connect: Any) -> None:
    """A transaction that was open when the group was moved: its messages are delivered, however old they are."""
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


async def test_what_committed_late_waits_until_the_cursor_has_arrived(conn: Any, connect: Any) -> None:
    """A cursor on its way knows what it has done on that way only: nothing of it is delivered twice."""
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
    piece = await read(conn, lane.cursor)
    assert piece.during is not None
    await advance(conn, [lane], piece.during, 1, done=piece.places[0])
    for one in transactions:
        await one.commit()

    assert await force(conn, middle) == {}
    assert await left(conn, group) == ["late and old", "late and young", "not done"]
    await advance(conn, [lane], piece.next, 1)
    assert await force(conn, middle) == {"g": 1}
    assert await left(conn, group) == ["late and young"]


async def test_what_committed_late_is_skipped_and_counted_too(conn: Any, connect: Any) -> None:
    """It lies behind the place up to which the cursor has come on its way, and is not done nevertheless."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    writer = await connect()
    open_transaction = writer.transaction()
    await open_transaction.start()
    await publish(writer, "late")
    for payload in ("done", "old", "old too"):
        await publish(conn, payload)
    [lane] = await take(conn, "w", group)
    piece = await read(conn, lane.cursor)
    assert piece.during is not None
    await advance(conn, [lane], piece.during, 1, done=piece.places[0])
    await open_transaction.commit()
    middle = await now(conn)
    await publish(conn, "young")

    assert await force(conn, middle) == {"g": 3}
    assert (await left(conn, group), await lag(conn, storage)) == (["young"], 1)


async def test_over_several_leaves(conn: Any) -> None:
    storage = await create_topic(conn)
    group = await subscribe(conn)
    for leaf in range(3):
        await publish_many(conn, f"{leaf}a", f"{leaf}b")
        await rotate(conn, storage)
    middle = await now(conn)
    await publish(conn, "young")
    assert await force(conn, middle) == {"g": 6}
    assert (await left(conn, group), await lag(conn, storage)) == (["young"], 1)


async def test_the_history_of_a_group_is_skipped_too(conn: Any) -> None:
    """A catch-up that has nothing left ends, and tells what was skipped."""
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


async def test_what_is_wrong_is_refused(conn: Any) -> None:
    await create_topic(conn)
    await conn.execute("select postbus.create_topic('queue')")
    call = "select * from postbus.force_complete($1, $2, $3)"
    assert "such as" in await refused(conn.fetch(call, "t", timedelta(-1), None), "PB402")
    assert "topics purge" in await refused(conn.fetch(call, "queue", HOUR, None), "PB432")
    assert "groups list" in await refused(conn.fetch(call, "t", HOUR, "nobody"), "PB406")
