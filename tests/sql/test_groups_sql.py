"""Groups in SQL: starts, states, lane holders and deferred messages."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from support.fix_database import Connect
from support.log_sql import (
    Lane,
    advance,
    beat,
    claim_deferred,
    create_topic,
    cursor_of,
    defer,
    lease,
    let_die,
    publish_many,
    read,
    read_all,
    refused,
    rotate,
    settle_deferred,
    subscribe,
    sweep,
    take,
    vanish,
)
from support.queue_sql import is_waiting, publish


async def _left(conn: Any, group: int) -> list[str]:
    """Return what is left for a group with one lane."""
    return (await read_all(conn, await cursor_of(conn, group)))[0]


async def _lag(conn: Any, group: int) -> tuple[int, bool]:
    row = await conn.fetchrow("select * from postbus.group_lag($1)", group)
    return row["messages"], row["oldest_at"] is not None


# Where a group starts


async def test_subscribing_twice_keeps_the_position(conn: Any) -> None:
    """The second subscription changes nothing, whatever start it names."""
    await create_topic(conn)
    await publish(conn, "before")
    first = await conn.fetchrow("select * from postbus.subscribe('t', 'g')")
    await publish(conn, "one")
    again = await conn.fetchrow("select * from postbus.subscribe('t', 'g', 'FROM_BEGINNING')")

    assert (first["is_new"], again["is_new"]) == (True, False)
    assert again["subscription_id"] == first["subscription_id"]
    assert await _left(conn, first["subscription_id"]) == ["one"]


async def test_concurrent_subscriptions_of_one_group_get_the_same_id(connect: Connect) -> None:
    """The second call waits for the first and finds its subscription."""
    a, b, conn = await connect(), await connect(), await connect()
    await create_topic(conn)
    transaction = a.transaction()
    await transaction.start()
    first = await subscribe(a)
    second = asyncio.create_task(subscribe(b))
    while not await is_waiting(conn, b.get_server_pid()):
        await asyncio.sleep(0.001)
    await transaction.commit()

    assert await second == first


async def test_from_now_and_from_the_beginning_differ_by_history(conn: Any) -> None:
    """FROM_NOW gets messages that commit from now on, FROM_BEGINNING all retained ones."""
    storage = await create_topic(conn)
    await publish(conn, "one")
    await rotate(conn, storage)
    await publish(conn, "two")
    now = await subscribe(conn, "now", "FROM_NOW")
    beginning = await subscribe(conn, "beginning", "FROM_BEGINNING")
    await publish(conn, "three")

    assert await _left(conn, now) == ["three"]
    assert await _left(conn, beginning) == ["one", "two", "three"]


async def test_from_timestamp_in_the_past_gets_messages_since_then(conn: Any) -> None:
    """Messages published at that time or later come, also from a partition that was closed meanwhile."""
    storage = await create_topic(conn)
    await publish(conn, "one")
    await rotate(conn, storage)
    await publish(conn, "two")
    at = await conn.fetchval("select clock_timestamp()")
    await publish(conn, "three")
    await rotate(conn, storage)
    await publish(conn, "four")
    group = await subscribe(conn, "g", "FROM_TIMESTAMP", start_at=at)
    all_of_it = await subscribe(conn, "h", "FROM_TIMESTAMP", start_at=at - timedelta(days=1))
    await publish(conn, "five")

    assert await _left(conn, group) == ["three", "four", "five"]
    assert await _left(conn, all_of_it) == ["one", "two", "three", "four", "five"]


async def test_from_timestamp_in_the_future_gets_no_earlier_message(conn: Any) -> None:
    """Messages published before that time never come, even if they follow the subscription."""
    await create_topic(conn)
    await publish(conn, "before")
    at = await conn.fetchval("select clock_timestamp() + interval '300 milliseconds'")
    group = await subscribe(conn, "g", "FROM_TIMESTAMP", start_at=at)
    await publish(conn, "too early")
    assert await _left(conn, group) == []
    assert await _lag(conn, group) == (0, False)
    await conn.execute("select pg_sleep_until($1)", at)
    await publish(conn, "in time")

    assert await _left(conn, group) == ["in time"]


async def test_from_message_id_starts_in_the_middle_of_a_segment(conn: Any) -> None:
    """The group starts with exactly that message."""
    await create_topic(conn)
    await publish(conn, "before")
    ids = await publish_many(conn, *"abcde")
    await publish(conn, "after")
    group = await subscribe(conn, "g", "FROM_MESSAGE_ID", start_id=ids[3])

    assert await _left(conn, group) == ["d", "e", "after"]
    assert (await _lag(conn, group))[1]


async def test_start_far_behind_many_segments_is_found(conn: Any) -> None:
    """Segments before the start do not count towards the limit of a read."""
    storage = await create_topic(conn, segment_size=1)
    await publish_many(conn, *(f"{n}" for n in range(50)))
    at = await conn.fetchval("select clock_timestamp()")
    [last] = await publish(conn, "last")
    await rotate(conn, storage)
    by_id = await subscribe(conn, "by-id", "FROM_MESSAGE_ID", start_id=last)
    by_time = await subscribe(conn, "by-time", "FROM_TIMESTAMP", start_at=at)

    for group in (by_id, by_time):
        assert (await read_all(conn, await cursor_of(conn, group), 3))[0] == ["last"]


async def test_from_message_id_after_the_last_is_a_valid_start(conn: Any) -> None:
    """The id that follows the last one given is a valid start."""
    await create_topic(conn)
    [one] = await publish(conn, "one")
    behind = await subscribe(conn, "behind", "FROM_MESSAGE_ID", start_id=one + 1)
    following = await subscribe(conn, "following", "FROM_MESSAGE_ID", start_id=one + 1024)
    await publish(conn, "two", "three")

    for group in (behind, following):
        assert await _left(conn, group) == ["two", "three"]


@pytest.mark.parametrize("door", ["subscribe", "scope", "seek", "dry run"])
async def test_start_at_an_id_never_given_is_refused(conn: Any, door: str) -> None:
    """The group would wait silently for years, so the error names the last id that exists."""
    await create_topic(conn)
    await subscribe(conn, "known")
    [last] = await publish(conn, "one")
    asked = {
        "subscribe": "select postbus.subscribe('t', 'new', 'FROM_MESSAGE_ID', start_id => $1)",
        "scope": "select postbus.subscribe_scope('new', 't', mode => 'message', start_id => $1)",
        "seek": "select postbus.seek('t', 'known', 'FROM_MESSAGE_ID', start_id => $1)",
        "dry run": "select postbus.seek('t', 'known', 'FROM_MESSAGE_ID', start_id => $1, dry_run => true)",
    }
    for id in (last + 1025, 10**18, 2**63 - 1):
        remedy = await refused(conn.execute(asked[door], id), "PB402")
        assert "FROM_NOW" in remedy
    assert [row[0] for row in await conn.fetch("select group_name from postbus.groups")] == ["known"]
    assert await conn.fetchval("select count(*) from postbus.scopes") == 0
    await conn.execute(asked[door], last)


@pytest.mark.parametrize(
    "options",
    [
        {"start": "FROM_HERE"},
        {"start": "FROM_TIMESTAMP"},
        {"start": "FROM_MESSAGE_ID"},
        {"start": "FROM_NOW", "start_id": 1},
        {"start": "FROM_MESSAGE_ID", "start_id": -1},
        {"on_failure": "explode"},
    ],
)
async def test_bad_start_is_refused(conn: Any, options: dict[str, Any]) -> None:
    """The error says which starts exist."""
    await create_topic(conn)

    assert await refused(subscribe(conn, **options), "PB402")


async def test_groups_need_a_pub_sub_topic(conn: Any) -> None:
    """A queue has no groups, and the error says how to make a topic that has."""
    await conn.execute("select postbus.create_topic('q')")

    assert "topics migrate q --to PUB_SUB" in await refused(subscribe(conn, topic="q"), "PB432")
    assert "topics create unknown --semantics PUB_SUB" in await refused(subscribe(conn, topic="unknown"), "PB432")


# Seeking


async def test_seek_moves_the_position_after_an_optional_dry_run(conn: Any) -> None:
    """With `dry_run` a seek only counts. Without, the group goes on there, and the holders of its lanes lose them."""
    await create_topic(conn)
    group = await subscribe(conn)
    ids = await publish(conn, "one", "two", "three")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    await advance(conn, [lane], result.next, 3)

    assert await conn.fetchval("select postbus.seek('t', 'g', 'FROM_BEGINNING', dry_run => true)") == 3
    assert await _left(conn, group) == []
    assert await conn.fetchval("select postbus.seek('t', 'g', 'FROM_MESSAGE_ID', start_id => $1)", ids[1]) == 2
    assert await _left(conn, group) == ["two", "three"]
    assert await advance(conn, [lane], result.next) == [1]
    assert [row["action"] for row in await lease(conn, "w", group, [lane])] == ["lost", "take"]
    await sweep(conn, 2)
    assert await _lag(conn, group) == (2, True)
    assert await conn.fetchval("select postbus.seek('t', 'g', 'FROM_NOW')") == 0
    assert await _lag(conn, group) == (0, False)


async def test_seek_waits_for_a_step_in_progress(connect: Connect) -> None:
    """The seek overrules a holder that moves its cursor at the same moment, without an error."""
    conn, holder, admin = await connect(), await connect(), await connect()
    await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    transaction = holder.transaction()
    await transaction.start()
    assert await advance(holder, [lane], result.next, 1) == []
    seeking = asyncio.create_task(admin.fetchval("select postbus.seek('t', 'g', 'FROM_BEGINNING')"))
    while not await is_waiting(conn, admin.get_server_pid()):
        await asyncio.sleep(0.001)
    await transaction.commit()

    assert await seeking == 1
    assert await _left(conn, group) == ["one"]


# States


async def _state(conn: Any, group: int) -> str:
    return str(await conn.fetchval("select state from postbus.subscription where id = $1", group))


async def _set(conn: Any, state: str, group: str = "g") -> None:
    await conn.execute("select postbus.set_group_state('t', $1, $2)", group, state)


async def test_allowed_state_changes_are_made(conn: Any) -> None:
    """ACTIVE and PAUSED change into each other and into themselves, and any state into CANCELLED, which is final."""
    await create_topic(conn)
    group = await subscribe(conn)
    for state in ("ACTIVE", "PAUSED", "PAUSED", "ACTIVE", "CANCELLED"):
        await _set(conn, state)
        assert await _state(conn, group) == state
    assert "which is final" in await refused(_set(conn, "ACTIVE"), "PB406")
    again = await conn.fetchrow("select * from postbus.subscribe('t', 'g')")
    assert again["is_new"]
    assert again["subscription_id"] != group


async def test_impossible_state_changes_are_refused(conn: Any) -> None:
    """Only a heartbeat revives a DEAD group, and nobody can declare a group DEAD."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    assert "PAUSED" in await refused(_set(conn, "DEAD"), "PB433")
    assert "PAUSED" in await refused(_set(conn, "GONE"), "PB433")
    assert await let_die(conn, storage) == 1
    assert await _state(conn, group) == "DEAD"
    for state in ("ACTIVE", "PAUSED"):
        assert "start its worker" in await refused(_set(conn, state), "PB433")
    await conn.execute(
        "select postbus.group_heartbeat(array[$1::bigint], '{}', '{}', '{}', '{}', '{}', '{}', '{}')", group
    )
    assert await _state(conn, group) == "ACTIVE"


async def test_dead_group_can_be_cancelled_or_revived_by_subscribing(conn: Any) -> None:
    """Subscribing counts as a sign of life."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    assert await let_die(conn, storage) == 1
    await subscribe(conn)
    assert await _state(conn, group) == "ACTIVE"
    assert await let_die(conn, storage) == 1
    await _set(conn, "CANCELLED")
    assert await _state(conn, group) == "CANCELLED"


async def test_paused_group_never_dies_and_receives_what_it_missed(conn: Any) -> None:
    """A pause keeps the position, and a resumed group is not taken for DEAD for lack of heartbeats."""
    storage = await create_topic(conn, retention="1 minute", zero_subscription_retention="1 minute")
    group = await subscribe(conn)
    await _set(conn, "PAUSED")
    await publish(conn, "meanwhile")
    await conn.execute("update postbus.subscription set seen_at = seen_at - interval '1 day'")
    assert (await sweep(conn, storage, timedelta(hours=1)))["dead"] == 0
    await _set(conn, "ACTIVE")
    await sweep(conn, storage, timedelta(minutes=4))

    assert await _state(conn, group) == "ACTIVE"
    assert await _left(conn, group) == ["meanwhile"]


async def test_workers_of_inactive_groups_are_stopped(conn: Any) -> None:
    """`lease_lanes` names the state of groups that are not ACTIVE, and of groups that do not exist."""
    await create_topic(conn)
    group = await subscribe(conn)
    held = await take(conn, "w", group)
    await _set(conn, "PAUSED")
    assert [(row["action"], row["state"]) for row in await lease(conn, "w", group, held)] == [("stop", "PAUSED")]
    await _set(conn, "CANCELLED")
    told = [(row["action"], row["state"]) for row in await lease(conn, "w", group, held)]
    assert told == [("stop", "CANCELLED"), ("lost", None)]
    assert [(row["action"], row["state"]) for row in await lease(conn, "w", 4711)] == [("stop", "CANCELLED")]
    assert await advance(conn, held, held[0].cursor) == [1]


# Lanes


async def _share(conn: Any, group: int, held: dict[str, list[Lane]]) -> dict[str, int]:
    """Let all workers ask for lanes until nothing changes any more."""
    quiet = 0
    for _ in range(20):
        changed = False
        for worker, lanes in held.items():
            for row in await lease(conn, worker, group, lanes):
                changed = True
                if row["action"] == "take":
                    lanes.append(Lane(group, row["lane"], row["token"], row["number"], row["cursor"]))
                else:
                    assert row["action"] in ("give_up", "lost")
                    await conn.execute("select postbus.release_lanes(array[$1::uuid])", row["token"])
                    lanes[:] = [lane for lane in lanes if lane.token != row["token"]]
        quiet = 0 if changed else quiet + 1
        if quiet == 2:
            taken = sorted(lane.lane for lanes in held.values() for lane in lanes)
            assert taken == list(range(len(taken))), "each lane has one holder"
            return {worker: len(lanes) for worker, lanes in held.items()}
    raise AssertionError("lanes never come to rest")


async def test_lanes_are_shared_fairly_as_workers_come_and_go(conn: Any) -> None:
    """After joins, departures and crashes, the numbers of lanes of any two workers differ by one at most."""
    await create_topic(conn, lanes=8)
    group = await subscribe(conn)
    held: dict[str, list[Lane]] = {}
    for count, expected in ((1, [8]), (2, [4, 4]), (3, [2, 3, 3]), (5, [1, 1, 2, 2, 2]), (7, [1] * 6 + [2])):
        while len(held) < count:
            held[f"w{len(held)}"] = []
        assert sorted((await _share(conn, group, held)).values()) == expected
    for worker in ("w1", "w6"):
        await conn.execute("select postbus.leave_groups($1, array[$2::bigint])", worker, group)
        del held[worker]
    assert sorted((await _share(conn, group, held)).values()) == [1, 1, 2, 2, 2]
    await vanish(conn, "w0", "w2", "w3")
    for worker in ("w0", "w2", "w3"):
        del held[worker]
    assert sorted((await _share(conn, group, held)).values()) == [4, 4]


async def test_surplus_worker_waits_for_a_lane(conn: Any) -> None:
    """With more workers than lanes, a worker without a lane takes one over when another worker leaves."""
    await create_topic(conn, lanes=2)
    group = await subscribe(conn)
    held: dict[str, list[Lane]] = {"a": [], "b": [], "c": []}
    assert sorted((await _share(conn, group, held)).values()) == [0, 1, 1]
    await conn.execute("select postbus.leave_groups('a', array[$1::bigint])", group)
    del held["a"]
    assert sorted((await _share(conn, group, held)).values()) == [1, 1]


async def test_lease_lanes_without_change_writes_nothing(conn: Any) -> None:
    """A worker that has its share uses no transaction id for asking."""
    await create_topic(conn, lanes=4)
    group = await subscribe(conn)
    held = await take(conn, "w", group)
    async with conn.transaction():
        rows = await conn.fetch(
            "select * from postbus.lease_lanes('w', array[$1::bigint], $2)", group, [lane.token for lane in held]
        )
        assert await conn.fetchval("select pg_current_xact_id_if_assigned()") is None

    assert (len(held), rows) == (4, [])


async def test_worker_takes_no_lanes_from_itself_when_the_clock_jumps(conn: Any) -> None:
    """A worker that looks dead to itself waits for its next heartbeat, and does not take again the lanes it holds."""
    await create_topic(conn, lanes=4)
    group = await subscribe(conn)
    held = await take(conn, "w", group)
    ask = "select * from postbus.lease_lanes('w', array[$1::bigint], $2)"
    await conn.execute("update postbus.worker set seen_at = seen_at - interval '1 day'")
    assert await conn.fetch(ask, group, [lane.token for lane in held]) == []
    assert await take(conn, "w", group, held) == []
    # the worker still knows one of the two
    await conn.execute("update postbus.lane set holder = 'gone' where lane < 2")
    rows = await conn.fetch(ask, group, [lane.token for lane in held[1:]])
    assert [(row["action"], row["lane"]) for row in rows] == [("take", 0)]


async def test_lanes_of_a_vanished_worker_are_taken_and_deaths_counted(conn: Any) -> None:
    """Consecutive holders that vanished without progress are counted; releasing a lane is no death."""
    await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one")
    deaths = []
    for n in range(4):
        [lane] = await take(conn, f"w{n}", group)
        deaths.append(lane.deaths)
        await vanish(conn, f"w{n}")
    assert deaths == [0, 1, 2, 3]
    assert lane.careful_until == await conn.fetchval("select max(sequence) from postbus.segment")
    [lane] = await take(conn, "w4", group)
    await conn.execute("select postbus.leave_groups('w4', array[$1::bigint])", group)
    [lane] = await take(conn, "w5", group)
    assert lane.deaths == 4
    await conn.execute("select postbus.clear_caution($1)", lane.token)
    await vanish(conn, "w5")
    assert [lane.deaths for lane in await take(conn, "w6", group)] == [1]


async def test_lost_lane_refuses_everything_from_its_old_holder(conn: Any) -> None:
    """After a takeover `advance`, `defer`, `settle_deferred`, `claim_deferred` and `hold_lane` change nothing."""
    await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one", "two", key="k")
    [old] = await take(conn, "old", group)
    result = await read(conn, old.cursor)
    await defer(conn, old, result, "retry")
    await vanish(conn, "old")
    [new] = await take(conn, "new", group)

    assert await advance(conn, [old], result.next, 2) == [1]
    assert await defer(conn, old, result, "retry", "park") is None
    assert await claim_deferred(conn, old) == []
    assert await settle_deferred(conn, old, result.ids[:1], "done") == ["lost"]
    assert await conn.fetchval("select postbus.hold_lane($1)", old.token) is False
    assert await conn.fetchval("select count(*) from postbus.deferred") == 1
    assert await conn.fetchval("select postbus.hold_lane($1)", new.token) is True
    assert [row["id"] for row in await claim_deferred(conn, new)] == result.ids[:1]
    assert await advance(conn, [new], result.next, 2) == []


async def test_one_lost_lane_does_not_hold_up_the_others(conn: Any) -> None:
    """`advance` moves the lanes still held, and names the lost ones."""
    await create_topic(conn, lanes=3)
    group = await subscribe(conn)
    held = await take(conn, "w", group)
    await conn.execute("select postbus.release_lanes(array[$1::uuid])", held[1].token)
    await take(conn, "v", group)

    assert await advance(conn, held, held[0].cursor) == [2]


async def test_fence_holds_while_the_ledger_is_folded(connect: Connect) -> None:
    """A worker that lost its lane is refused even while the sweep removes the rows that prove the loss."""
    conn, stale, sweeper = await connect(), await connect(), await connect()
    storage = await create_topic(conn, heartbeat_timeout="1 day")
    group = await subscribe(conn)
    await publish(conn, "one")
    [old] = await take(conn, "old", group)
    await vanish(conn, "old")
    [new] = await take(conn, "new", group)
    result = await read(conn, new.cursor)
    await advance(conn, [new], result.next, 1)
    transaction = sweeper.transaction()
    await transaction.start()
    assert (await sweep(sweeper, storage, timedelta(minutes=10)))["folded"] > 0
    advancing = asyncio.create_task(advance(stale, [old], result.next, 1))
    await asyncio.wait([advancing], timeout=0.2)
    await transaction.commit()

    assert await advancing == [1]


async def test_fence_holds_for_an_old_snapshot(connect: Connect) -> None:
    """A REPEATABLE READ transaction that began before the takeover can no longer settle."""
    conn, stale = await connect(), await connect()
    storage = await create_topic(conn, heartbeat_timeout="1 day")
    group = await subscribe(conn)
    await publish(conn, "one")
    [old] = await take(conn, "old", group)
    transaction = stale.transaction(isolation="repeatable_read")
    await transaction.start()
    await stale.fetch("select * from postbus.cursor")
    await vanish(conn, "old")
    [new] = await take(conn, "new", group)
    await advance(conn, [new], new.cursor)
    await sweep(conn, storage, timedelta(minutes=10))
    try:
        lost = await advance(stale, [old], old.cursor, 1)
    except asyncpg.SerializationError:
        lost = [1]
    await transaction.rollback()
    assert lost == [1]
    assert await conn.fetchval("select max(number) from postbus.cursor") == new.number


async def test_lane_with_a_step_in_progress_is_left_for_the_next_call(connect: Connect) -> None:
    """A takeover neither blocks nor fails, and the step in progress counts."""
    conn, stale = await connect(), await connect()
    await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one")
    [old] = await take(conn, "old", group)
    result = await read(conn, old.cursor)
    transaction = stale.transaction()
    await transaction.start()
    assert await advance(stale, [old], result.next, 1) == []
    await vanish(conn, "old")

    assert await take(conn, "new", group) == []
    await transaction.commit()
    [new] = await take(conn, "new", group)

    assert (await read(conn, new.cursor)).messages == []
    assert await advance(stale, [old], result.next, 1) == [1]


async def test_lane_held_for_a_transaction_is_not_taken(connect: Connect) -> None:
    """`hold_lane` protects the lane until the transaction ends."""
    conn, handler = await connect(), await connect()
    await create_topic(conn)
    group = await subscribe(conn)
    [old] = await take(conn, "old", group)
    await vanish(conn, "old")
    async with handler.transaction():
        assert await handler.fetchval("select postbus.hold_lane($1)", old.token)
        assert await take(conn, "new", group) == []
    assert len(await take(conn, "new", group)) == 1


async def test_lane_being_taken_is_skipped_by_others(connect: Connect) -> None:
    """A worker that asks while another one takes the lane gets nothing."""
    a, b = await connect(), await connect()
    await create_topic(a)
    group = await subscribe(a)
    await beat(a, "a", "b")
    async with a.transaction():
        assert len(await take(a, "a", group)) == 1
        assert await b.fetch("select * from postbus.lease_lanes('b', array[$1::bigint], '{}')", group) == []
    assert await take(b, "b", group) == []


# Deferred messages


async def _with_messages(conn: Any, *messages: str, **options: Any) -> tuple[int, Lane, Any]:
    await create_topic(conn, **options)
    group = await subscribe(conn)
    await publish(conn, *messages, key="k")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    return group, lane, result


async def test_failed_message_is_retried_while_its_key_waits(conn: Any) -> None:
    """Messages of the same key are parked, and come one by one in order after it; attempts are counted."""
    _, lane, result = await _with_messages(conn, "one", "two", "three")
    assert await defer(conn, lane, result, "retry", "park", "park") == ["retried", "parked", "parked"]
    await advance(conn, [lane], result.next, 3)

    for n, id in enumerate(result.ids):
        [row] = await claim_deferred(conn, lane)
        assert (row["id"], row["payload"].decode()) == (id, result.messages[n])
        assert row["attempts"] == (2 if n == 0 else 1)
        assert await claim_deferred(conn, lane) == [], "leased"
        assert await settle_deferred(conn, lane, [id], "done") == ["done"]
    assert await conn.fetchval("select count(*) from postbus.deferred") == 0


async def test_message_parked_behind_an_ended_one_is_due(connect: Connect) -> None:
    """Parking and settling can overlap in any way: no message stays parked behind nothing."""
    conn, settler = await connect(), await connect()
    _, lane, result = await _with_messages(conn, "one", "two", "three")
    await defer(conn, lane, result, "retry")
    await claim_deferred(conn, lane)
    transaction = settler.transaction()
    await transaction.start()
    assert await settle_deferred(settler, lane, result.ids[:1], "done") == ["done"]
    assert await defer(conn, lane, result.after(1), "park") == ["parked"]  # the settler has not committed
    await transaction.commit()
    assert await claim_deferred(conn, lane) == []
    await sweep(conn, 2)
    [row] = await claim_deferred(conn, lane)
    assert row["id"] == result.ids[1]
    await settle_deferred(conn, lane, [row["id"]], "done")
    await defer(conn, lane, result.after(2), "park")
    assert [row["id"] for row in await claim_deferred(conn, lane)] == result.ids[2:]


async def test_exhausted_attempts_make_a_dead_letter_of_that_group(conn: Any) -> None:
    """After `max_attempts` one group gives up a message, and a redrive returns it to that group alone."""
    group, lane, result = await _with_messages(conn, "one", "two", max_attempts=3)
    other = await subscribe(conn, "other", "FROM_BEGINNING")
    await defer(conn, lane, result, "retry", "park")
    for outcome in ("retried", "dead"):
        [row] = await claim_deferred(conn, lane)
        assert row["id"] == result.ids[0]
        assert await settle_deferred(conn, lane, [row["id"]], "retry", delay=timedelta(0), error="no") == [outcome]
    letter = await conn.fetchrow("select * from postbus.dead_letters")
    assert (letter["group_name"], letter["attempts"], letter["last_error"]) == ("g", 3, "no")
    assert letter["reason"] == "gave up after 3 attempts"
    [row] = await claim_deferred(conn, lane)
    assert row["id"] == result.ids[1], "its key goes on"
    await settle_deferred(conn, lane, [row["id"]], "done")

    assert "--group" in await refused(conn.fetchval("select postbus.redrive('t')"), "PB402")
    assert await conn.fetchval("select postbus.redrive('t', group_name => 'other')") == 0
    assert await conn.fetchval("select postbus.redrive('t', group_name => 'g', dry_run => true)") == 1
    assert await conn.fetchval("select postbus.redrive('t', group_name => 'g')") == 1
    [row] = await claim_deferred(conn, lane)
    assert (row["id"], row["attempts"], row["subscription_id"]) == (result.ids[0], 1, group)
    [other_lane] = await take(conn, "v", other)
    assert await claim_deferred(conn, other_lane) == []


async def test_same_message_can_be_a_dead_letter_of_two_groups(conn: Any) -> None:
    """Each group gives up on its own."""
    _, lane, result = await _with_messages(conn, "one", max_attempts=1)
    second = await subscribe(conn, "h", "FROM_BEGINNING")
    [its_lane] = await take(conn, "w2", second)

    assert await defer(conn, lane, result, "retry") == ["dead"]
    assert await defer(conn, its_lane, result, "dead") == ["dead"]
    groups = await conn.fetch("select group_name from postbus.dead_letters order by 1")
    assert [row["group_name"] for row in groups] == ["g", "h"]


async def test_callers_lower_attempt_limit_wins(conn: Any) -> None:
    """The caller's `max_attempts` applies if it is lower than the topic's."""
    _, lane, result = await _with_messages(conn, "one", "two", max_attempts=9)

    assert await defer(conn, lane, result, "retry", max_attempts=1) == ["dead"]
    assert await defer(conn, lane, result.after(1), "retry", max_attempts=2) == ["retried"]
    await claim_deferred(conn, lane)
    assert await settle_deferred(conn, lane, result.ids[1:], "retry", max_attempts=2) == ["dead"]


async def test_released_attempt_does_not_count(conn: Any) -> None:
    """A released message is due at once, with its attempts as before."""
    _, lane, result = await _with_messages(conn, "one")
    await defer(conn, lane, result, "retry")
    await claim_deferred(conn, lane)
    assert await settle_deferred(conn, lane, result.ids, "release") == ["released"]

    assert [row["attempts"] for row in await claim_deferred(conn, lane)] == [2]


async def test_unsettled_attempt_returns_after_its_lease_uncharged(conn: Any) -> None:
    """The lane's holder learns that the message is suspect and claims it alone; only that attempt counts."""
    _, lane, result = await _with_messages(conn, "one", lease="1 minute")
    await defer(conn, lane, result, "retry")
    [row] = await claim_deferred(conn, lane)
    assert row["attempts"] == 2

    assert await claim_deferred(conn, lane, as_of=row["due_at"] - timedelta(seconds=1)) == []
    [suspect] = await claim_deferred(conn, lane, as_of=row["due_at"])
    assert (suspect["suspected"], suspect["alone"], suspect["attempts"]) == (True, None, 1)
    [again] = await claim_deferred(conn, lane, as_of=row["due_at"], is_alone=True)
    assert (again["alone"], again["attempts"]) == (True, 2)


async def test_deferring_twice_changes_nothing(conn: Any) -> None:
    """A worker that died between deferring and advancing defers again, and the message is there once."""
    _, lane, result = await _with_messages(conn, "one", "two")
    await defer(conn, lane, result, "retry", "dead")
    await claim_deferred(conn, lane)
    await defer(conn, lane, result, "retry", "dead")

    assert await conn.fetchval("select array_agg(attempts) from postbus.deferred") == [2]
    assert await conn.fetchval("select count(*) from postbus.dead_letter") == 1


# Publishing without groups, and options


_PUBLISHING = [
    "select postbus.publish('t', 'x'::bytea)",
    "select postbus.publish('t', 'x'::text)",
    "select postbus.publish('t', '{}'::jsonb)",
    "select postbus.publish('t', 'x'::text, dedup_key => 'd')",
    "select postbus.publish_many('t', array['x'::bytea])",
    "select postbus.publish_many('t', array['{}'::jsonb])",
    "select postbus.publish_many('t', array['x'::bytea], keys => array['k'])",
    "select postbus.publish_many('t', array['x'::bytea], dedup_keys => array['e'])",
]


@pytest.mark.parametrize("statement", _PUBLISHING)
async def test_topic_can_block_writes_without_groups(conn: Any, statement: str) -> None:
    """Publishing is refused while no group is ACTIVE."""
    await create_topic(conn, block_writes_on_zero_subscriptions=True)
    assert "subscribe" in await refused(conn.fetch(statement), "PB430")
    group = await subscribe(conn)
    await conn.fetch(statement)
    await _set(conn, "PAUSED")
    await refused(conn.fetch(statement), "PB430")
    await _set(conn, "CANCELLED")
    await refused(conn.fetch(statement), "PB430")
    assert await conn.fetchval("select count(*) from postbus.log") == 1
    assert group


@pytest.mark.parametrize(
    "options",
    [
        {"semantics": "QUEUE", "tracking": "OFFSET_WATERMARK"},
        {"semantics": "QUEUE", "block_writes_on_zero_subscriptions": True},
        {"semantics": "QUEUE", "storage": "own"},
        {"tracking": "COUNTING"},
        {"ordered": True},
        {"storage": "elsewhere"},
        {"lanes": 0},
        {"lanes": 1025},
        {"segment_size": 0},
        {"segment_size": 1001},
        {"zero_subscription_retention": "-1 s"},
        {"max_retention": "1 hour", "retention": "2 hours"},
        {"dead_retention": "-1 s"},
        {"zombie_time": "0"},
        {"heartbeat_interval": "0.5 s"},
        {"heartbeat_timeout": "60 s"},
        {"semantics": "TOPIC"},
    ],
    ids=str,
)
async def test_contradictory_topic_options_are_refused(conn: Any, options: dict[str, Any]) -> None:
    """The hint names the option."""
    hint = await refused(create_topic(conn, **options), "PB402")
    assert any(name in hint for name in options)


@pytest.mark.parametrize(
    "options",
    ["priority => 5", "delay => interval '1 s'", "deliver_at => now()"],
    ids=["priority", "delay", "schedule"],
)
async def test_log_refuses_priorities_and_delays(conn: Any, options: str) -> None:
    """The options are refused, not ignored."""
    await create_topic(conn)
    assert "QUEUE" in await refused(conn.fetch(f"select postbus.publish('t', 'x'::text, {options})"), "PB402")


async def test_lanes_and_storage_of_a_topic_are_fixed(conn: Any) -> None:
    """They decide where messages are stored; other options can change."""
    await create_topic(conn)
    for options in ('{"lanes": 3}', '{"storage": "own"}', '{"semantics": "QUEUE"}'):
        with pytest.raises(asyncpg.PostgresError):
            await conn.fetch("select postbus.set_topic('t', $1)", options)
    await conn.fetch("""select postbus.set_topic('t', '{"retention": "2 hours", "max_attempts": 3}')""")


# Lag


async def test_lag_is_exact_after_the_sweep(conn: Any) -> None:
    """It counts a group's unsettled messages over several lanes and partitions, whatever the group's start."""
    storage = await create_topic(conn, lanes=3)
    old = await subscribe(conn, "old")
    await publish_many(conn, *"abcdefgh", keys=[f"k{n}" for n in range(8)])
    await rotate(conn, storage)
    ids = await publish_many(conn, *"ijkl")
    late = await subscribe(conn, "late", "FROM_BEGINNING")
    now = await subscribe(conn, "now")
    middle = await subscribe(conn, "middle", "FROM_MESSAGE_ID", start_id=ids[2])
    await publish(conn, "m")
    assert (await _lag(conn, old))[1], "known before the sweep: there is something"
    await sweep(conn, storage)

    lags = [(await _lag(conn, group))[0] for group in (old, late, now, middle)]
    assert lags == [13, 13, 1, 3]
    held = await take(conn, "w", late)
    for lane in held:
        result = await read(conn, lane.cursor, lanes=(lane.lane,))
        if result.messages:
            done = len(result.messages) - 1
            assert result.during is not None
            await advance(conn, [lane], result.during, done, result.at[done - 1]) if done else None
    behind = await conn.fetchval("select lag from postbus.groups where group_name = 'late'")
    left = sum([len((await read_all(conn, await cursor_of(conn, late, n), lanes=(n,)))[0]) for n in range(3)])
    assert behind == left


async def test_oldest_unsettled_message_gives_the_age(conn: Any) -> None:
    """`oldest_at` is the time of the first message that the group has not settled."""
    await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one", "two")
    times = await conn.fetch("select published_at from postbus.log order by sequence")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor, 1)
    oldest = "select oldest_at from postbus.group_lag($1)"
    assert await conn.fetchval(oldest, group) == times[0][0]
    await advance(conn, [lane], result.next, 1)
    assert await conn.fetchval(oldest, group) == times[1][0]
    await advance(conn, [lane], (await read(conn, result.next)).next, 1)
    assert await conn.fetchval(oldest, group) is None


async def test_members_counters_add_up(conn: Any) -> None:
    """Heartbeats add up the members' counters."""
    await create_topic(conn)
    group = await subscribe(conn)
    for _ in range(2):
        await conn.execute(
            "select postbus.group_heartbeat(array[$1::bigint], array[$1::bigint, $1], "
            "'{a,b}', '{1,2}', '{3,4}', '{5,6}', '{7,8}', '{0.5,1}')",
            group,
        )
    rows = await conn.fetch("select processed, failed, filtered, in_flight from postbus.members order by name")
    assert [tuple(row) for row in rows] == [(2, 6, 10, 7), (4, 8, 12, 8)]
    total = "select processed, in_flight, members from postbus.groups"
    assert tuple(await conn.fetchrow(total)) == (6, 0, ["a", "b"]), "no process lives that could have something in hand"
    await take(conn, "w", group)
    assert tuple(await conn.fetchrow(total)) == (6, 15, ["a", "b"])


@pytest.mark.parametrize("storage", ["shared", "own"])
@pytest.mark.parametrize("lines", [None, b'"a"\n"b"\n"c"', b"1\n\xff\n3", b"1\n2", b"1\n2\n3\n4"])
@pytest.mark.parametrize("which", [[0], [2], [0, 1, 2]])
async def test_deferred_message_equals_the_published_one(
    conn: Any, storage: str, lines: bytes | None, which: list[int]
) -> None:
    """Payload, type, key, correlation id and headers survive, also for lines, even if fewer arrive than announced."""
    await create_topic(conn, storage=storage)
    group = await subscribe(conn)
    await publish(conn, "before")
    if lines is None:
        await publish_many(conn, "a", "b", "c", keys=["k", None, "l"], correlation_ids=["x", None, None],
                           headers=[None, '{"h": "1"}', None], content_types=["a/b", "c/d", "e/f"])  # fmt: skip
    else:
        await conn.execute("select postbus.publish_lines('t', $1, 3)", lines)
    [lane] = await take(conn, "w", group)
    rows = await conn.fetch(
        "select r.sequence, r.published_at, r.content_type, r.content_types, r.keys, r.correlation_ids, r.headers, "
        "r.payloads from postbus.read_log('t', '{0}', $1) as r where r.count = 3",
        lane.cursor,
    )
    [segment] = rows
    ids = [(segment["sequence"] & (1 << 43) - 1) * 1024 + n for n in which]
    told = await conn.fetchval(
        "select postbus.defer($1, $2, $3, $4, $5, $6, array_fill('0'::interval, array[$7::int]), "
        "array_fill('no'::text, array[$7]), array_fill(null::text, array[$7]))",
        group, 0, lane.token, ["retry"] * len(ids), ids, [segment["sequence"]] * len(ids), len(ids),
    )  # fmt: skip
    assert told == ["retried"] * len(ids)

    stored = await conn.fetch("select * from postbus.deferred order by id")
    assert [row["id"] for row in stored] == ids
    for row, n in zip(stored, which, strict=True):
        assert row["payload"] == segment["payloads"][n]
        assert row["published_at"] == segment["published_at"]
        assert row["content_type"] == (segment["content_types"] or [segment["content_type"]] * 3)[n]
        for name, column in (("key", "keys"), ("correlation_id", "correlation_ids"), ("headers", "headers")):
            assert row[name] == (segment[column] or [None] * 3)[n]
