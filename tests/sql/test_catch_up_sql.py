"""Catching up in SQL: a group works through history beside new messages, within bounds."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from postbus import CatchUp
from support.log_sql import (
    advance,
    create_topic,
    cursor_of,
    defer,
    lease,
    let_die,
    publish_many,
    read,
    refused,
    rotate,
    subscribe,
    sweep,
    take,
)
from support.queue_sql import publish


async def late(conn: Any, start: str = "FROM_BEGINNING", **catch_up: Any) -> Any:
    """Subscribe a group with more history before it than it takes inline. Returns the answer."""
    options = json.dumps({"beside_from": 2, **catch_up})
    return await conn.fetchrow("select * from postbus.subscribe('t', 'late', $1, catch_up => $2)", start, options)


async def work_through(conn: Any, subscription: int, count: int = 1000, worker: str = "w") -> list[str]:
    """Read and settle everything that is left for a subscription, in all lanes."""
    got: list[str] = []
    lanes = await take(conn, worker, subscription)
    for lane in lanes:
        while True:
            result = await read(conn, lane.cursor, count, lanes=(lane.lane,))
            if result.next == lane.cursor:
                break
            got += result.messages
            assert await advance(conn, [lane], result.next, len(result.messages)) == []
    await conn.execute("select postbus.leave_groups($1, array[$2::bigint])", worker, subscription)
    return got


async def catch_up(conn: Any) -> Any:
    return await conn.fetchrow("select * from postbus.catch_ups where group_name = 'late'")


async def history(conn: Any, count: int, lanes: int = 1, **options: Any) -> int:
    """Create a topic with numbered messages. Returns its storage."""
    storage = await create_topic(conn, lanes=lanes, **options)
    await publish_many(conn, *(str(n) for n in range(count)), keys=[f"k{n % 5}" for n in range(count)])
    return storage


async def test_live_messages_do_not_wait_for_history(conn: Any) -> None:
    """The group reads new messages, a subscription beside it reads the history, and each message comes once."""
    storage = await history(conn, 20, lanes=4)
    answer = await late(conn)
    await publish_many(conn, "live 1", "live 2", keys=["a", "b"])
    group, beside = answer["subscription_id"], answer["catch_up_id"]
    assert (answer["missed"], answer["skipped"]) == (20, 0)

    assert sorted(await work_through(conn, group)) == ["live 1", "live 2"]
    row = await catch_up(conn)
    assert (row["status"], row["total"], row["processed"], row["reason"]) == ("IN_PROGRESS", 20, 0, "start")
    assert sorted(await work_through(conn, beside, 3), key=int) == [str(n) for n in range(20)]
    await sweep(conn, storage)
    row = await catch_up(conn)
    assert (row["status"], row["processed"], row["rate"]) == ("COMPLETED", 20, None)
    assert await conn.fetchval("select state from postbus.subscription where id = $1", beside) == "CANCELLED"


async def test_little_history_comes_first_and_in_order(conn: Any) -> None:
    """History below `beside_from` is read inline, before new messages."""
    await history(conn, 2)
    answer = await late(conn)
    await publish(conn, "live")
    assert answer["catch_up_id"] is None
    assert await work_through(conn, answer["subscription_id"]) == ["0", "1", "live"]


async def test_messages_of_open_transactions_count_as_live(conn: Any, connect: Any) -> None:
    """A message that commits after the subscription goes to the group itself, whenever its transaction began."""
    await history(conn, 5)
    writer = await connect()
    open_transaction = writer.transaction()
    await open_transaction.start()
    await publish(writer, "begun before")
    answer = await late(conn)
    await open_transaction.commit()
    assert await work_through(conn, answer["catch_up_id"]) == [str(n) for n in range(5)]
    assert await work_through(conn, answer["subscription_id"]) == ["begun before"]


@pytest.mark.parametrize("lanes", [1, 3])
async def test_catch_up_takes_the_newest_max_messages(conn: Any, lanes: int) -> None:
    """Older history beyond `max_messages` is skipped and counted."""
    await history(conn, 30, lanes)
    await publish_many(conn, *(str(n) for n in range(30, 50)), keys=[f"k{n % 5}" for n in range(20)])
    answer = await late(conn, max_messages=37)
    assert (answer["missed"], answer["skipped"]) == (50, 13)
    got = await work_through(conn, answer["catch_up_id"], 4)
    assert len(got) == 37
    if lanes == 1:
        assert got == [str(n) for n in range(13, 50)]
    assert (await catch_up(conn))["skipped"] == 13


async def test_bound_below_inline_limit_skips_only_committed_history(conn: Any, connect: Any) -> None:
    """Messages that commit later are delivered, even if their ids are lower than those of the retained history."""
    await create_topic(conn)
    writer = await connect()
    open_transaction = writer.transaction()
    await open_transaction.start()
    await publish(writer, "late")
    await publish_many(conn, *(str(n) for n in range(10)))
    answer = await late(conn, max_messages=2)
    await open_transaction.commit()
    await publish(conn, "live")
    assert (answer["missed"], answer["skipped"]) == (10, 8)
    await sweep(conn, await conn.fetchval("select storage_id from postbus.topic where name = 't'"))
    row = await conn.fetchrow("select lag, catch_up_lag from postbus.groups")
    assert tuple(row) == (2, 2)
    assert await work_through(conn, answer["subscription_id"]) == ["late", "live"]
    assert await work_through(conn, answer["catch_up_id"]) == ["8", "9"]


async def test_catch_up_without_bound_takes_all_history(conn: Any) -> None:
    """With `max_messages` null, nothing of the history is skipped."""
    await history(conn, 10)
    answer = await late(conn, max_messages=None)
    assert len(await work_through(conn, answer["catch_up_id"])) == 10


@pytest.mark.parametrize("start", ["FROM_TIMESTAMP", "FROM_MESSAGE_ID"])
async def test_history_from_a_point_respects_max_messages(conn: Any, start: str) -> None:
    """The bound counts from the start that the group asked for."""
    await history(conn, 5)
    at = await conn.fetchval("select clock_timestamp()")
    ids = await publish_many(conn, *(str(n) for n in range(5, 10)))
    options = {"start_at": at} if start == "FROM_TIMESTAMP" else {"start_id": ids[0]}
    await subscribe(conn, "late", start, catch_up=json.dumps({"beside_from": 2, "max_messages": 4}), **options)
    row = await catch_up(conn)
    assert (row["total"], row["skipped"]) == (4, 1)
    assert await work_through(conn, row["subscription_id"]) == ["6", "7", "8", "9"]


async def test_catch_up_continues_where_a_killed_process_stopped(conn: Any) -> None:
    """Progress is stored in a cursor, and the total stays the same."""
    await history(conn, 10)
    beside = (await late(conn))["catch_up_id"]
    [lane] = await take(conn, "killed", beside)
    result = await read(conn, lane.cursor)
    assert result.during is not None
    await advance(conn, [lane], result.during, 4, done=result.at[3])
    await conn.execute("update postbus.worker set seen_at = seen_at - interval '1 hour'")
    row = await catch_up(conn)
    assert (row["processed"], row["total"]) == (4, 10)
    assert await work_through(conn, beside, worker="next") == [str(n) for n in range(4, 10)]
    assert (await catch_up(conn))["processed"] == 10


async def test_catch_up_can_be_cancelled_and_resumed(conn: Any) -> None:
    """The group itself goes on meanwhile, and no history is lost or delivered twice."""
    storage = await history(conn, 10)
    answer = await late(conn)
    group, beside = answer["subscription_id"], answer["catch_up_id"]
    [lane] = await take(conn, "w", beside)
    result = await read(conn, lane.cursor)
    assert result.during is not None
    await advance(conn, [lane], result.during, 4, done=result.at[3])
    await conn.execute("select postbus.set_catch_up('t', 'late', false)")
    assert (await catch_up(conn))["status"] == "CANCELLED"
    assert await advance(conn, [lane], result.next, 6) == [], "what was being settled is settled"
    await publish(conn, "live")
    assert [row["action"] for row in await lease(conn, "w", beside)] == ["stop"]
    assert await work_through(conn, group) == ["live"]
    await sweep(conn, storage)

    await conn.execute("select postbus.set_catch_up('t', 'late', true)")
    assert (await catch_up(conn))["status"] == "IN_PROGRESS"
    assert await work_through(conn, beside) == []
    await sweep(conn, storage)
    assert (await catch_up(conn))["status"] == "COMPLETED"
    with pytest.raises(asyncpg.PostgresError, match="not catching up"):
        await conn.execute("select postbus.set_catch_up('t', 'late', false)")


async def test_resumed_catch_up_keeps_dead_retention_from_the_groups_death(conn: Any) -> None:
    """Cancelling and resuming a catch-up does not restart the `dead_retention` of its group."""
    storage = await history(conn, 5, retention="0", zero_subscription_retention="0", dead_retention="2 hours")
    await late(conn)
    assert await let_die(conn, storage) == 1
    await conn.execute("update postbus.subscription set state_changed_at = state_changed_at - interval '1 hour'")
    await conn.execute("select postbus.set_catch_up('t', 'late', false)")
    await conn.execute("select postbus.set_catch_up('t', 'late', true)")
    await rotate(conn, storage)

    needed = (
        "select count(*) from postbus.log_partition l, "
        "postbus.groups_in_need(array[postbus.topic_id('t')], l, $1) where epoch = 1"
    )
    died = await conn.fetchval("select state_changed_at from postbus.subscription where catch_up_of is null")
    assert await conn.fetchval(needed, died + timedelta(minutes=119)) == 2
    assert await conn.fetchval(needed, died + timedelta(minutes=121)) == 0


async def test_catch_up_stays_in_progress_until_its_retries_end(conn: Any) -> None:
    """Dead letters of a catch-up belong to the group."""
    storage = await history(conn, 5)
    beside = (await late(conn))["catch_up_id"]
    [lane] = await take(conn, "w", beside)
    result = await read(conn, lane.cursor)
    await defer(conn, lane, result, "retry", "dead")
    await advance(conn, [lane], result.next, 5)
    assert (await read(conn, lane.cursor)).messages == []
    await sweep(conn, storage)
    assert (await catch_up(conn))["status"] == "IN_PROGRESS"
    await conn.execute("delete from postbus.deferred")
    await sweep(conn, storage)
    assert (await catch_up(conn))["status"] == "COMPLETED"
    assert await conn.fetchval("select dead from postbus.groups where group_name = 'late'") == 1
    assert await conn.fetchval("select postbus.redrive('t', group_name => 'late')") == 1


async def test_history_holds_its_own_partitions_and_no_newer_ones(conn: Any) -> None:
    """Partitions are kept for a group that catches up, until it is past them."""
    storage = await history(conn, 5, retention="0", zero_subscription_retention="0", heartbeat_timeout="1 day")
    answer = await late(conn)
    is_needed = (
        "select exists (select from postbus.find_needed(l, array(select k.subscription_id "
        "from postbus.groups_in_need(array[postbus.topic_id('t')], l, clock_timestamp()) k))) "
        "from postbus.log_partition l where l.storage_id = $1 and l.epoch = 1"
    )
    assert await conn.fetchval(is_needed, storage)
    await work_through(conn, answer["catch_up_id"])
    assert not await conn.fetchval(is_needed, storage)
    await publish(conn, "live")
    assert await conn.fetchval(is_needed, storage), "for the group itself"
    await work_through(conn, answer["subscription_id"])
    assert not await conn.fetchval(is_needed, storage), "history has an end"


async def test_pause_and_cancel_apply_to_the_catch_up_too(conn: Any) -> None:
    """The subscription beside the group follows every state change of the group."""
    await history(conn, 5)
    answer = await late(conn)
    beside = answer["catch_up_id"]
    for state in ("PAUSED", "ACTIVE", "CANCELLED"):
        await conn.execute("select postbus.set_group_state('t', 'late', $1)", state)
        assert await conn.fetchval("select state from postbus.subscription where id = $1", beside) == state
    assert (await catch_up(conn))["status"] == "CANCELLED"
    assert await conn.fetchval("select count(*) from postbus.lane") == 0


async def test_lease_lanes_announces_a_catch_up(conn: Any) -> None:
    """A process learns of a catch-up with the lanes of the group, and leases its subscription like any other."""
    await history(conn, 5)
    answer = await late(conn)
    rows = await lease(conn, "w", answer["subscription_id"])
    [told] = [row for row in rows if row["action"] == "catch_up"]
    assert (told["subscription_id"], told["number"]) == (answer["catch_up_id"], answer["subscription_id"])
    assert json.loads(told["cursor"])["batch_size"] == 10000


async def test_resurrection_reports_what_was_missed_and_bounds_the_catch_up(conn: Any) -> None:
    """A heartbeat revives a DEAD group: the newest messages that it missed come beside new ones."""
    storage = await create_topic(conn)
    options = json.dumps({"beside_from": 2, "max_messages": 6})
    group = await subscribe(conn, "late", catch_up=options)
    await publish(conn, "before")
    assert await work_through(conn, group) == ["before"]
    assert await let_die(conn, storage) == 1
    await publish_many(conn, *(str(n) for n in range(10)))
    [told] = await conn.fetch(
        "select * from postbus.group_heartbeat(array[$1::bigint], '{}', '{}', '{}', '{}', '{}', '{}', '{}')", group
    )
    assert (told["subscription_id"], told["missed"], told["skipped"]) == (group, 10, 4)
    await publish(conn, "live")
    assert await work_through(conn, group) == ["live"]
    assert await work_through(conn, told["catch_up_id"]) == [str(n) for n in range(4, 10)]
    assert (await catch_up(conn))["reason"] == "resurrection"


async def test_seek_ends_the_catch_up(conn: Any) -> None:
    """The group has one position again, the given one. Its deferred messages are kept."""
    await history(conn, 10)
    answer = await late(conn)
    group, beside = answer["subscription_id"], answer["catch_up_id"]
    [lane] = await take(conn, "w", beside)
    await defer(conn, lane, await read(conn, lane.cursor), "retry")
    await conn.execute("select postbus.seek('t', 'late', 'FROM_BEGINNING')")
    assert (await catch_up(conn))["status"] == "CANCELLED"
    assert await conn.fetchval("select subscription_id from postbus.deferred") == group
    assert await work_through(conn, group) == [str(n) for n in range(10)]


async def test_starting_a_catch_up_takes_the_lanes_from_their_holder(conn: Any) -> None:
    """A process that returns while its group is split settles nothing: its messages now belong to the catch-up."""
    storage = await create_topic(conn)
    group = await subscribe(conn, "late", catch_up=json.dumps({"beside_from": 2}))
    [lane] = await take(conn, "w", group)
    await publish_many(conn, *"abcd")
    result = await read(conn, lane.cursor)
    assert await let_die(conn, storage) == 1
    row = await conn.fetchrow("select * from postbus.resurrect(array[$1::bigint])", group)
    assert await advance(conn, [lane], result.next, 4) == [1]
    assert await work_through(conn, row["catch_up_id"], worker="other") == list("abcd")


async def test_resurrection_uses_the_bounds_of_the_latest_subscription(conn: Any) -> None:
    """The bounds that the group was subscribed with before its death no longer apply."""
    storage = await create_topic(conn)
    group = await subscribe(conn, "late")
    assert await let_die(conn, storage) == 1
    await publish_many(conn, *(str(n) for n in range(10)))

    back = await late(conn, max_messages=6)

    assert (back["subscription_id"], back["missed"], back["skipped"]) == (group, 10, 4)
    assert await work_through(conn, back["catch_up_id"]) == [str(n) for n in range(4, 10)]


async def test_resurrection_without_catch_up_skips_missed_messages(conn: Any) -> None:
    """The missed messages are reported as SKIPPED, and the group reads new ones."""
    storage = await create_topic(conn)
    group = await subscribe(conn, "late")
    await publish_many(conn, *"abc")
    assert await let_die(conn, storage) == 1
    row = await conn.fetchrow("select * from postbus.resurrect(array[$1::bigint], false)", group)
    await publish(conn, "live")
    assert (row["missed"], row["skipped"], row["catch_up_id"]) == (3, 3, None)
    assert await work_through(conn, group) == ["live"]
    statuses = await conn.fetch("select status from postbus.deliveries order by id")
    assert [status["status"] for status in statuses] == ["SKIPPED"] * 3 + ["COMPLETED"]


async def test_group_that_missed_little_continues_at_its_position(conn: Any) -> None:
    """A resurrection below `beside_from` starts no catch-up."""
    storage = await create_topic(conn)
    group = await subscribe(conn, "late")
    await publish_many(conn, *"abc")
    assert await let_die(conn, storage) == 1
    again = await conn.fetchrow("select * from postbus.subscribe('t', 'late')")
    assert (again["subscription_id"], again["missed"], again["catch_up_id"]) == (group, 3, None)
    assert await work_through(conn, group) == ["a", "b", "c"]


async def test_messages_settled_by_a_catch_up_have_receipts(conn: Any) -> None:
    """The receipts remain after the catch-up has ended, so the group counts as required for these messages."""
    storage = await history(conn, 3)
    answer = await late(conn, max_messages=2, beside_from=1)
    ids = [row["id"] for row in await conn.fetch("select id from postbus.log order by id")]
    query = "select status, required, worker from postbus.deliveries_of('t', $1)"
    assert [(await conn.fetchrow(query, id))["status"] for id in ids] == ["SKIPPED", "PENDING", "PENDING"]
    await work_through(conn, answer["catch_up_id"], worker="reader")
    for _ in range(2):
        rows = [tuple(await conn.fetchrow(query, id)) for id in ids]
        assert rows[1:] == [("COMPLETED", True, "reader")] * 2
        assert rows[0][0] == "SKIPPED"
        await sweep(conn, storage)
    assert (await catch_up(conn))["status"] == "COMPLETED"


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"preset": "reckless"}, "reckless"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_messages": -1}, "max_messages"),
        ({"max_rate": 0}, "max_rate"),
        ({"target_latency": "never"}, "never"),
        ({"speed": 3}, "speed"),
    ],
)
async def test_bad_catch_up_options_are_refused(conn: Any, options: dict[str, Any], wrong: str) -> None:
    """The error names the wrong option, and no subscription is made."""
    await create_topic(conn)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await subscribe(conn, "late", catch_up=json.dumps(options))
    assert refused.value.sqlstate == "PB402"
    assert wrong in f"{refused.value} {refused.value.hint}"
    assert await conn.fetchval("select count(*) from postbus.subscription") == 0


async def test_presets_set_batch_size_rate_and_latency(conn: Any) -> None:
    """Each preset sets batch size, rate and target latency, and no preset limits the messages."""
    query = "select postbus.catch_up_options($1)"
    found = {
        name: json.loads(await conn.fetchval(query, json.dumps({"preset": name})))
        for name in ("conservative", "default", "aggressive")
    }
    assert {name: (row["batch_size"], row["max_rate"], row["target_latency"]) for name, row in found.items()} == {
        "conservative": (5000, 10000, "5 ms"),
        "default": (10000, 50000, "10 ms"),
        "aggressive": (50000, 200000, "50 ms"),
    }
    assert {row["max_messages"] for row in found.values()} == {None}


async def test_group_dies_after_three_checks(conn: Any) -> None:
    """An outage of the database, when no group can send heartbeats, kills no group at once."""
    storage = await create_topic(conn)
    await subscribe(conn)
    for _ in range(5):
        assert (await sweep(conn, storage, timedelta(minutes=20)))["dead"] == 0, "looks at the same moment are one"
    assert (await sweep(conn, storage, timedelta(minutes=21)))["dead"] == 0
    assert (await sweep(conn, storage, timedelta(minutes=22)))["dead"] == 1


async def test_heartbeat_between_checks_resets_the_count(conn: Any) -> None:
    """A group that sends a heartbeat has three checks before it again."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await sweep(conn, storage, timedelta(minutes=20))
    await sweep(conn, storage, timedelta(minutes=21))
    await conn.execute(
        "select postbus.group_heartbeat(array[$1::bigint], '{}', '{}', '{}', '{}', '{}', '{}', '{}')", group
    )
    assert (await sweep(conn, storage, timedelta(minutes=22)))["dead"] == 0


async def test_catch_up_cursor_ends_before_live_messages(conn: Any) -> None:
    """A cursor with an end is past everything behind that end."""
    await history(conn, 3)
    answer = await late(conn)
    cursor = await cursor_of(conn, answer["catch_up_id"])
    [id] = await publish(conn, "live")
    row = await conn.fetchrow(
        "select postbus.unseen_in_segment("
        "$1::text::postbus.log_cursor, s.sequence, s.txid, s.count, s.published_at) as unseen "
        "from postbus.segment s where (s.sequence & 8796093022207) = $2",
        cursor,
        id >> 10,
    )
    assert row["unseen"] == 0


async def test_catch_up_ended_by_a_seek_cannot_be_resumed(conn: Any) -> None:
    """Under way or cancelled, the catch-up stays ended: the group reads from its new position only."""
    await history(conn, 3)
    for cancels_first in (False, True):
        await conn.execute("select postbus.set_group_state('t', group_name, 'CANCELLED') from postbus.groups "
                           "where state <> 'CANCELLED'")  # fmt: skip
        beside = (await late(conn))["catch_up_id"]
        await work_through(conn, beside)
        if cancels_first:
            await conn.execute("select postbus.set_catch_up('t', 'late', false)")
        await conn.execute("select postbus.seek('t', 'late', 'FROM_BEGINNING')")
        for is_wanted in (True, False):
            await refused(conn.execute("select postbus.set_catch_up('t', 'late', $1)", is_wanted), "PB433")
        await conn.execute("select postbus.set_group_state('t', 'late', 'CANCELLED')")
        row = await conn.fetchrow("select status, processed from postbus.catch_ups where subscription_id = $1", beside)
        assert tuple(row) == ("CANCELLED", 3)


async def test_options_are_stored_in_the_form_that_processes_read(conn: Any) -> None:
    """SQL normalises the options however they were written."""
    given = {
        "batch_size": "5",
        "max_messages": None,
        "max_rate": "1.5",
        "target_latency": "00:00:01",
        "beside_from": "2",
    }
    told = await conn.fetchval("select postbus.catch_up_options($1::jsonb)::text", json.dumps(given))
    assert CatchUp.from_json(told) == CatchUp(5, None, 1.5, timedelta(seconds=1), 2)
    for wrong in ({"max_rate": "NaN"}, {"max_rate": "Infinity"}, {"target_latency": "2 days"}):
        await refused(conn.fetchval("select postbus.catch_up_options($1::jsonb)", json.dumps(wrong)), "PB402")
