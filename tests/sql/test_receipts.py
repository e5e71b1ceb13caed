"""Receipts: what each group did with a message, who settled it, when, and in how many attempts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.eventually import eventually
from support.log_sql import (
    Lane,
    ReadResult,
    advance,
    claim_deferred,
    create_topic,
    cursor_of,
    defer,
    let_die,
    publish_many,
    read,
    rotate,
    settle_deferred,
    subscribe,
    sweep,
    take,
)
from support.queue_sql import publish


async def deliveries(conn: Any, id: int) -> dict[str, Any]:
    """Return each group's delivery of a message, checked against the view of all messages."""
    rows = await conn.fetch("select * from postbus.deliveries_of('t', $1)", id)
    listed = await conn.fetch("select * from postbus.deliveries where topic = 't' and id = $1 order by group_name", id)
    assert [tuple(row.values()) for row in rows] == [tuple(row.values())[4:] for row in listed]
    return {row["group_name"]: row for row in rows}


async def statuses(conn: Any, id: int) -> dict[str, str]:
    return {name: row["status"] for name, row in (await deliveries(conn, id)).items()}


async def state(conn: Any, id: int) -> tuple[set[str], set[str], str]:
    """Return the required groups, the completed groups and the status of a message."""
    row = await conn.fetchrow("select * from postbus.message_state('t', $1)", id)
    listed = await conn.fetchrow(
        "select required, completed, status, settled_at from postbus.message_states where topic = 't' and id = $1", id
    )
    assert row == listed
    return set(row["required"]), set(row["completed"]), row["status"]


async def read_one(conn: Any) -> tuple[Lane, ReadResult, int]:
    """Return a lane of group g, a worker's read result in it, and the id of the only message."""
    await create_topic(conn)
    group = await subscribe(conn)
    [id] = await publish(conn, "one")
    [lane] = await take(conn, "w", group)
    return lane, await read(conn, lane.cursor), id


async def given_up(conn: Any) -> tuple[Lane, int]:
    """Return a lane of group g and the id of the message in it that became a dead letter."""
    lane, result, id = await read_one(conn)
    await defer(conn, lane, result, "dead")
    await advance(conn, [lane], result.next, 1)
    return lane, id


async def settle_all(conn: Any, group: int, worker: str = "w") -> None:
    """Let a worker join, read and settle everything before a group, and leave."""
    lanes = await take(conn, worker, group)
    assert lanes
    for lane in lanes:
        result = await read(conn, lane.cursor, lanes=(lane.lane,))
        assert await advance(conn, [lane], result.next, len(result.messages)) == []
    await conn.execute("select postbus.leave_groups($1, array[$2::bigint])", worker, group)


async def test_reference_counting_is_the_default_of_pub_sub(conn: Any) -> None:
    """A topic without an explicit `tracking` has receipts."""
    await create_topic(conn)
    assert await conn.fetchval("select tracking from postbus.topics") == "REFERENCE_COUNTING"


async def test_message_is_completed_when_every_required_group_has_a_receipt(conn: Any) -> None:
    """It is completed at the time of the last receipt; each one has worker, time and attempts."""
    await create_topic(conn)
    a, b = await subscribe(conn, "a"), await subscribe(conn, "b")
    [id] = await publish(conn, "one")
    assert await state(conn, id) == ({"a", "b"}, set(), "PENDING")

    await settle_all(conn, a, "worker-a")
    assert await state(conn, id) == ({"a", "b"}, {"a"}, "PROCESSING")
    await settle_all(conn, b, "worker-b")

    assert await state(conn, id) == ({"a", "b"}, {"a", "b"}, "COMPLETED")
    found = await deliveries(conn, id)
    assert {name: (row["worker"], row["attempts"]) for name, row in found.items()} == {
        "a": ("worker-a", 1),
        "b": ("worker-b", 1),
    }
    assert found["a"]["settled_at"] < found["b"]["settled_at"]
    completed_at = await conn.fetchval("select settled_at from postbus.message_state('t', $1)", id)
    assert completed_at == found["b"]["settled_at"]


async def test_completion_depends_on_which_groups_not_how_many(conn: Any) -> None:
    """A message that needs A, B and C is not completed by A and C alone."""
    await create_topic(conn)
    a = await subscribe(conn, "a")
    b = await subscribe(conn, "b")
    [id] = await publish(conn, "one")
    c = await subscribe(conn, "c", "FROM_BEGINNING")
    await settle_all(conn, a)
    await settle_all(conn, c)

    assert await state(conn, id) == ({"a", "b", "c"}, {"a", "c"}, "PROCESSING")
    await settle_all(conn, b)
    assert await state(conn, id) == ({"a", "b", "c"}, {"a", "b", "c"}, "COMPLETED")


async def test_completed_message_stays_completed_when_a_group_joins(conn: Any) -> None:
    """The groups a message requires are those of its commit time."""
    await create_topic(conn)
    a = await subscribe(conn, "a")
    [id] = await publish(conn, "one")
    await settle_all(conn, a)
    late = await subscribe(conn, "late", "FROM_BEGINNING")

    assert await state(conn, id) == ({"a"}, {"a"}, "COMPLETED")
    assert (await read(conn, await cursor_of(conn, late))).messages == ["one"], "which it gets nevertheless"


async def test_group_is_required_for_transactions_open_when_it_subscribed(conn: Any, connect: Any) -> None:
    """Their messages were not visible yet."""
    await create_topic(conn)
    writer = await connect()
    open_transaction = writer.transaction()
    await open_transaction.start()
    [id] = await publish(writer, "begun before")
    await subscribe(conn, "a")
    await open_transaction.commit()
    assert await state(conn, id) == ({"a"}, set(), "PENDING")


async def test_more_than_64_groups_can_be_required(conn: Any) -> None:
    """The set of groups has no largest size."""
    await create_topic(conn)
    groups = [await subscribe(conn, f"g{n}") for n in range(70)]
    [id] = await publish(conn, "one")
    for group in groups[:69]:
        await settle_all(conn, group)
    required, completed, status = await state(conn, id)
    assert (len(required), len(completed), status) == (70, 69, "PROCESSING")
    await settle_all(conn, groups[69])
    assert (await state(conn, id))[2] == "COMPLETED"


async def test_each_message_of_a_segment_has_its_own_time(conn: Any) -> None:
    """The segment is settled in two steps."""
    await create_topic(conn)
    group = await subscribe(conn)
    ids = await publish_many(conn, *"abc")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    assert result.during is not None
    await advance(conn, [lane], result.during, 2, done=result.at[1])
    assert [(await statuses(conn, id))["g"] for id in ids] == ["COMPLETED", "COMPLETED", "PENDING"]
    await advance(conn, [lane], result.next, 1)

    a, b, c = [(await deliveries(conn, id))["g"]["settled_at"] for id in ids]
    assert a == b < c


async def test_unsettled_message_names_the_reader_of_its_lane(conn: Any) -> None:
    """The `holder` is the process that holds the lane."""
    await create_topic(conn)
    group = await subscribe(conn)
    [id] = await publish(conn, "one")
    assert (await deliveries(conn, id))["g"]["holder"] is None
    await take(conn, "reader", group)
    assert (await deliveries(conn, id))["g"]["holder"] == "reader"


async def test_attempts_and_errors_are_kept(conn: Any) -> None:
    """A retried message, one parked behind it and one that was given up keep their attempts and errors."""
    await create_topic(conn)
    group = await subscribe(conn)
    ids = await publish_many(conn, *"abc", keys=["k", "k", None])
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    assert await defer(conn, lane, result, "retry", "park", "dead") == ["retried", "parked", "dead"]
    await advance(conn, [lane], result.next, 3)
    assert [(await statuses(conn, id))["g"] for id in ids] == ["RETRYING", "WAITING", "DEAD"]
    assert await state(conn, ids[0]) == ({"g"}, set(), "PROCESSING")
    assert await state(conn, ids[2]) == ({"g"}, set(), "FAILED")
    assert (await deliveries(conn, ids[0]))["g"]["last_error"] == "it failed"

    for id in ids[:2]:
        assert [row["id"] for row in await claim_deferred(conn, lane)] == [id]
        assert await settle_deferred(conn, lane, [id], "done") == ["done"]
    found = [(await deliveries(conn, id))["g"] for id in ids]
    assert [(row["status"], row["attempts"], row["worker"]) for row in found] == [
        ("COMPLETED", 2, "w"),
        ("COMPLETED", 1, "w"),
        ("DEAD", 1, "w"),
    ]


async def test_redriven_message_is_completed_after_all(conn: Any) -> None:
    """Having been given up once is not final."""
    lane, id = await given_up(conn)
    await conn.execute("select postbus.redrive('t', group_name => 'g')")
    assert (await statuses(conn, id))["g"] == "RETRYING"
    await claim_deferred(conn, lane)
    await settle_deferred(conn, lane, [id], "done")
    assert await state(conn, id) == ({"g"}, {"g"}, "COMPLETED")


async def test_purged_dead_letter_stays_given_up(conn: Any) -> None:
    """The receipt remains after the dead letter is gone."""
    _, id = await given_up(conn)
    await conn.execute("select postbus.purge_dead_letters('t', group_name => 'g')")
    assert (await statuses(conn, id))["g"] == "DEAD"


async def test_messages_a_group_was_moved_past_are_skipped(conn: Any) -> None:
    """After a seek back the unsettled ones are before the group again, and settled ones stay settled."""
    await create_topic(conn)
    a = await subscribe(conn, "a")
    [one] = await publish(conn, "one")
    await settle_all(conn, a)
    [two] = await publish(conn, "two")
    await conn.execute("select postbus.seek('t', 'a', 'FROM_NOW')")
    assert [(await statuses(conn, id))["a"] for id in (one, two)] == ["COMPLETED", "SKIPPED"]
    assert await state(conn, two) == (set(), set(), "PENDING")

    first = (await deliveries(conn, one))["a"]["settled_at"]
    await conn.execute("select postbus.seek('t', 'a', 'FROM_BEGINNING')")
    assert [(await statuses(conn, id))["a"] for id in (one, two)] == ["COMPLETED", "PENDING"]
    assert await state(conn, one) == ({"a"}, {"a"}, "COMPLETED")
    assert await state(conn, two) == ({"a"}, set(), "PENDING")
    await settle_all(conn, a, "again")
    assert [(await deliveries(conn, id))["a"]["worker"] for id in (one, two)] == ["w", "again"]
    assert (await deliveries(conn, one))["a"]["settled_at"] == first


async def test_paused_group_is_required_and_dead_group_is_not(conn: Any) -> None:
    """A DEAD group is not required for unsettled messages, nor later for those completed meanwhile."""
    storage = await create_topic(conn)
    a = await subscribe(conn, "a")
    await subscribe(conn, "b")
    [id] = await publish(conn, "one")
    await conn.execute("select postbus.set_group_state('t', 'b', 'PAUSED')")
    await settle_all(conn, a)
    assert await state(conn, id) == ({"a", "b"}, {"a"}, "PROCESSING")
    await conn.execute("select postbus.set_group_state('t', 'b', 'ACTIVE')")
    await conn.execute("update postbus.subscription set seen_at = seen_at + interval '1 hour' where id = $1", a)

    assert await let_die(conn, storage) == 1
    assert await state(conn, id) == ({"a"}, {"a"}, "COMPLETED")
    [two] = await publish(conn, "two")
    await subscribe(conn, "b")
    assert await state(conn, id) == ({"a"}, {"a"}, "COMPLETED")
    assert await state(conn, two) == ({"a", "b"}, set(), "PENDING"), "nobody had completed that one"
    await settle_all(conn, a)
    assert await state(conn, two) == ({"a", "b"}, {"a"}, "PROCESSING")
    await conn.execute("select postbus.set_group_state('t', 'b', 'CANCELLED')")
    assert await state(conn, two) == ({"a"}, {"a"}, "COMPLETED")


async def test_receipts_survive_the_folding_of_cursors(conn: Any) -> None:
    """They say the same before and after the fold, which leaves one cursor row per lane."""
    storage = await create_topic(conn, lanes=2)
    group = await subscribe(conn)
    ids = await publish_many(conn, *"abcd", keys=list("abcd"))
    await settle_all(conn, group, "first")
    more = await publish_many(conn, *"efgh", keys=list("abcd"))
    await settle_all(conn, group, "second")
    await conn.execute("update postbus.cursor set fenced_at = null, at = at - interval '10 minutes'")
    await conn.execute("update postbus.segment set published_at = published_at - interval '11 minutes'")
    before = [await deliveries(conn, id) for id in (*ids, *more)]
    assert [row["g"]["worker"] for row in before] == ["first"] * 4 + ["second"] * 4

    assert (await sweep(conn, storage))["folded"] > 0
    assert await conn.fetchval("select count(*) from postbus.cursor") == 2, "the last of each lane"
    assert [await deliveries(conn, id) for id in (*ids, *more)] == before


async def test_without_receipts_only_the_status_is_known(conn: Any) -> None:
    """Tracking by position knows neither the worker nor the time, and stores no receipts."""
    storage = await create_topic(conn, tracking="OFFSET_WATERMARK")
    group = await subscribe(conn)
    [id] = await publish(conn, "one")
    await settle_all(conn, group)
    row = (await deliveries(conn, id))["g"]
    assert (row["status"], row["settled_at"], row["worker"]) == ("COMPLETED", None, None)
    await conn.execute("update postbus.cursor set fenced_at = null, at = at - interval '10 minutes'")
    assert (await sweep(conn, storage))["folded"] > 0
    assert await conn.fetchval("select count(*) from postbus.receipt") == 0


async def test_receipts_are_dropped_with_their_partition(conn: Any) -> None:
    """They go together with their messages."""
    storage = await create_topic(conn, retention="0", zero_subscription_retention="0", heartbeat_timeout="1 day")
    group = await subscribe(conn)
    [id] = await publish(conn, "one")
    await settle_all(conn, group)
    await rotate(conn, storage)
    await publish(conn, "two")
    await conn.execute("update postbus.cursor set fenced_at = null, at = at - interval '10 minutes'")

    async def is_dropped() -> None:  # transactions of others may hold it up
        await sweep(conn, storage, timedelta(minutes=1))
        assert await conn.fetchval("select to_regclass($1)", f"postbus.segment_{storage}_1") is None

    await eventually(is_dropped)
    assert await conn.fetchval("select to_regclass($1)", f"postbus.receipt_{storage}_1") is None
    with pytest.raises(Exception, match="no message"):
        await deliveries(conn, id)


@pytest.mark.parametrize("there", ["REFERENCE_COUNTING", "OFFSET_WATERMARK"])
async def test_tracking_of_a_topic_can_change_while_groups_work(conn: Any, there: str) -> None:
    """The change works both ways: no message is repeated or lost, and receipts are kept from then on."""
    back = "OFFSET_WATERMARK" if there == "REFERENCE_COUNTING" else "REFERENCE_COUNTING"
    await create_topic(conn, tracking=back)
    group = await subscribe(conn)
    [lane] = await take(conn, "w", group)
    got: list[str] = []
    for n, tracking in enumerate((there, back, there)):
        [id] = await publish(conn, f"m{n}")
        result = await read(conn, lane.cursor)
        await conn.execute("select postbus.set_topic('t', $1)", json.dumps({"tracking": tracking}))
        got += result.messages
        assert await advance(conn, [lane], result.next, len(result.messages)) == []
        row = (await deliveries(conn, id))["g"]
        assert row["status"] == "COMPLETED"
        assert (row["settled_at"] is not None) == (tracking == "REFERENCE_COUNTING")
    assert got == ["m0", "m1", "m2"]


async def test_messages_published_before_a_groups_start_are_skipped(conn: Any) -> None:
    """A group may be told to start at a later time than now."""
    await create_topic(conn)
    await subscribe(conn, "later", "FROM_TIMESTAMP", start_at=datetime.now(UTC) + timedelta(days=1))
    [id] = await publish(conn, "one")
    assert await statuses(conn, id) == {"later": "SKIPPED"}
    assert await state(conn, id) == (set(), set(), "PENDING")


async def test_catch_up_settles_no_message_beyond_its_end(conn: Any) -> None:
    """A second catch-up does not hide what the first one still has before it."""
    storage = await create_topic(conn)
    [one] = await publish(conn, "one")
    options = json.dumps({"beside_from": 0})
    sql = "select * from postbus.subscribe('t', 'g', 'FROM_BEGINNING', catch_up => $1)"
    first = await conn.fetchrow(sql, options)
    [two] = await publish(conn, "two")
    await let_die(conn, storage)
    second = await conn.fetchrow(sql, options)
    [three] = await publish(conn, "three")
    assert [(await statuses(conn, id))["g"] for id in (one, two, three)] == ["PENDING"] * 3

    await settle_all(conn, second["catch_up_id"])
    assert [(await statuses(conn, id))["g"] for id in (one, two, three)] == ["PENDING", "COMPLETED", "PENDING"]
    await settle_all(conn, first["catch_up_id"])
    assert [(await statuses(conn, id))["g"] for id in (one, two, three)] == ["COMPLETED", "COMPLETED", "PENDING"]
    await conn.execute("select postbus.seek('t', 'g', 'FROM_BEGINNING')")
    assert [(await statuses(conn, id))["g"] for id in (one, two, three)] == ["COMPLETED", "COMPLETED", "PENDING"]


async def test_retried_message_stays_completed_after_a_seek_back(conn: Any) -> None:
    """The group gets the message once more, and has completed it all the same."""
    lane, result, id = await read_one(conn)
    await defer(conn, lane, result, "retry")
    await claim_deferred(conn, lane)
    await settle_deferred(conn, lane, [id], "done")
    assert await statuses(conn, id) == {"g": "COMPLETED"}, "though the cursor is not past it yet"
    await advance(conn, [lane], result.next, 1)
    assert await statuses(conn, id) == {"g": "COMPLETED"}
    await conn.execute("select postbus.seek('t', 'g', 'FROM_BEGINNING')")
    assert await statuses(conn, id) == {"g": "COMPLETED"}
    assert (await read(conn, await cursor_of(conn, lane.subscription))).ids == [id]


async def test_redriven_message_without_a_key_returns_to_its_own_lane(conn: Any) -> None:
    """The first lane takes messages without a key, whatever their ids."""
    await create_topic(conn, lanes=4)
    group = await subscribe(conn)
    ids = [(await publish_many(conn, "x", keys=[None]))[0] for _ in range(3)]
    lane = (await take(conn, "w", group))[0]
    result = await read(conn, lane.cursor)
    assert result.ids == ids
    await defer(conn, lane, result, *["dead"] * 3)
    await advance(conn, [lane], result.next, 3)
    await conn.execute("select postbus.redrive('t', group_name => 'g')")
    assert [await statuses(conn, id) for id in ids] == [{"g": "RETRYING"}] * 3
    assert [row["id"] for row in await claim_deferred(conn, lane)] == ids


async def test_clock_set_back_hides_no_receipt(conn: Any) -> None:
    """A message may be published at a later time than the one at which it is settled."""
    lane, result, id = await read_one(conn)
    await advance(conn, [lane], result.next, 1)
    await conn.execute("update postbus.cursor set at = at - interval '1 hour'")
    assert await state(conn, id) == ({"g"}, {"g"}, "COMPLETED")
