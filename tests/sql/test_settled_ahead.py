"""Messages settled before their group's cursor is past them, by workers that vanish."""

from __future__ import annotations

from typing import Any

import pytest

from support.log_sql import (
    Lane,
    advance,
    claim_deferred,
    create_topic,
    cursor_of,
    defer,
    publish_many,
    read,
    settle_deferred,
    subscribe,
    sweep,
    take,
    vanish,
)


async def known_to(conn: Any, lane: Lane) -> list[tuple[int, bool, bool]]:
    rows = await conn.fetch("select * from postbus.deferred_of(array[$1::uuid]) order by id", lane.token)
    return [(row["id"], row["is_done"], row["ahead"]) for row in rows]


async def followed(conn: Any, subscription: int, worker: str, before: str | None = None) -> Lane:
    """Return the lane, taken over from a worker that has vanished."""
    if before is not None:
        await vanish(conn, before)
    (lane,) = await take(conn, worker, subscription)
    return lane


async def test_message_retried_ahead_of_the_cursor_is_known_as_done(conn: Any) -> None:
    """One worker defers it and dies, the next handles it and dies, and the third reads it as a settled one."""
    await create_topic(conn)
    group = await subscribe(conn)
    ids = await publish_many(conn, "slow", "failing")
    first = await followed(conn, group, "first")
    result = await read(conn, first.cursor)
    assert await defer(conn, first, result.after(1), "retry") == ["retried"]

    second = await followed(conn, group, "second", before="first")
    assert await known_to(conn, second) == [(ids[1], False, True)]
    assert [row["id"] for row in await claim_deferred(conn, second)] == [ids[1]]
    assert await settle_deferred(conn, second, [ids[1]], "done") == ["done"]

    third = await followed(conn, group, "third", before="second")
    assert (await read(conn, third.cursor)).messages == ["slow", "failing"]
    assert await known_to(conn, third) == [(ids[1], True, True)]


async def test_settled_message_is_remembered_until_the_cursor_passes_it(conn: Any) -> None:
    """A sweep before that keeps the record, and one afterwards removes it."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, "given up", "other")
    lane = await followed(conn, group, "worker")
    result = await read(conn, lane.cursor)
    assert await defer(conn, lane, result, "dead") == ["dead"]
    await sweep(conn, storage)
    assert await known_to(conn, lane) == [(result.ids[0], True, True)]

    assert await advance(conn, [lane], result.next, 2) == []
    assert await known_to(conn, lane) == []
    await sweep(conn, storage)
    assert await conn.fetchval("select count(*) from postbus.settled_ahead") == 0


async def test_message_behind_the_cursor_needs_no_record(conn: Any) -> None:
    """The log does not deliver it again."""
    await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, "failing")
    lane = await followed(conn, group, "worker")
    result = await read(conn, lane.cursor)
    await defer(conn, lane, result, "retry")
    await advance(conn, [lane], result.next, 1)
    assert await known_to(conn, lane) == [(result.ids[0], False, False)]
    await claim_deferred(conn, lane)
    await settle_deferred(conn, lane, result.ids, "done")
    assert await conn.fetchval("select count(*) from postbus.settled_ahead") == 0


async def test_seek_forgets_what_was_settled_ahead(conn: Any) -> None:
    """A group that seeks back gets its settled messages once more."""
    await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, "given up")
    lane = await followed(conn, group, "worker")
    await defer(conn, lane, await read(conn, lane.cursor), "dead")
    await conn.execute("select postbus.seek('t', 'g', 'FROM_BEGINNING')")
    again = await followed(conn, group, "worker")
    assert await known_to(conn, again) == []
    assert (await read(conn, again.cursor)).messages == ["given up"]


@pytest.mark.parametrize("is_done", [False, True], ids=["waits", "is done"])
async def test_catch_up_knows_what_was_settled_ahead(conn: Any, *, is_done: bool) -> None:
    """The catch-up is a subscription of its own, which reads the message once more."""
    await create_topic(conn)
    group = await subscribe(conn, catch_up='{"beside_from": 1}')
    ids = await publish_many(conn, "failing", "one", "two")
    lane = await followed(conn, group, "worker")
    await defer(conn, lane, await read(conn, lane.cursor), "retry")
    if is_done:
        await claim_deferred(conn, lane)
        await settle_deferred(conn, lane, [ids[0]], "done")
    await vanish(conn, "worker")
    await conn.execute("update postbus.subscription set state = 'DEAD'")
    await conn.execute("select * from postbus.resurrect(array[$1::bigint])", group)

    history = await conn.fetchval("select id from postbus.subscription where catch_up_of = $1", group)
    move_deferred_to_stretch = await read(conn, await cursor_of(conn, history))
    assert move_deferred_to_stretch.messages == ["failing", "one", "two"]
    assert await known_to(conn, await followed(conn, history, "historian")) == [(ids[0], is_done, True)]
    assert await known_to(conn, await followed(conn, group, "present")) == []


async def test_deferred_message_is_not_done_when_its_lane_is_released(conn: Any) -> None:
    """A process leaves with all messages out of its hands; the one that failed is not completed."""
    await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, "slow", "failing", "done")
    lane = await followed(conn, group, "worker")
    result = await read(conn, lane.cursor)
    assert await defer(conn, lane, result.after(1), "retry") == ["retried"]
    position, _ = result.at[0]
    await conn.execute(
        "select postbus.note_done(array[$1::uuid], '{0}', array[$2::bigint], '{1}', '{3}')", lane.token, position
    )
    assert await known_to(conn, lane) == [(result.ids[1], False, True), (result.ids[2], True, True)]

    await conn.execute("select postbus.set_group_state('t', 'g', 'CANCELLED')")
    told = "select status from postbus.message_states order by id"
    assert [row["status"] for row in await conn.fetch(told)] == ["PENDING", "PENDING", "COMPLETED"]
