"""The nine pitfalls of dead consumer groups, one test each.

Which groups a message is required for, and which data is held for whom, is computed from subscriptions and cursors. So
there are no counts per message that a crash, a race or a returning group could leave wrong.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from postbus import Bus, Start
from postbus._db.error_map import DRIVER_ERRORS
from postbus._db.store import Store
from postbus._maintenance.heartbeat import CONNECTIONS
from support.eventually import eventually
from support.fix_database import Connect
from support.fix_proxy import Proxy, proxy
from support.grouping import are_listed, are_shared, collect, create_log, has, is_through, look_often, publish_numbers
from support.log_sql import (
    advance,
    create_topic,
    let_die,
    partitions_of,
    publish_many,
    read,
    rotate,
    subscribe,
    sweep,
    take,
    vanish,
)
from support.running import running

__all__ = ["proxy"]  # a fixture

_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)


async def beat(conn: Any, group: int, later: timedelta = timedelta(0)) -> list[Any]:
    """Send a heartbeat of a group, as if `later`. Returns the answer, which names groups that were DEAD."""
    answer: list[Any] = await conn.fetch(
        "select * from postbus.group_heartbeat(array[$1::bigint], '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
        group,
    )
    await conn.execute(
        "update postbus.subscription set seen_at = seen_at + $2::interval where id = $1 and state = 'ACTIVE'",
        group,
        later,
    )
    return answer


async def state(conn: Any, group: int) -> str:
    found: str = await conn.fetchval("select state from postbus.subscription where id = $1", group)
    return found


async def do_all(conn: Any, group: int, worker: str = "w") -> list[str]:
    """Let a group handle everything before it."""
    [lane] = await take(conn, worker, group)
    result = await read(conn, lane.cursor)
    assert await advance(conn, [lane], result.next, len(result.messages)) == []
    return result.messages


async def states(conn: Any) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return, for each message, the groups that it is required for and its status."""
    rows = await conn.fetch(
        "select l.payload, m.required, m.status from postbus.log l "
        "cross join lateral postbus.message_state('t', l.id) as m order by l.id"
    )
    return {row["payload"].decode(): (tuple(row["required"]), row["status"]) for row in rows}


async def test_pitfall_1_message_committed_during_detection_needs_the_living(conn: Any, connect: Connect) -> None:
    """Messages that commit before, while and after a group is found DEAD are required for the living group alone."""
    storage = await create_topic(conn)
    living, dying = await subscribe(conn, "living"), await subscribe(conn, "dying")
    for later in (4 * _MINUTE, 5 * _MINUTE):
        await sweep(conn, storage, later)
    await beat(conn, living, 6 * _MINUTE)
    publisher, detector = await connect(), await connect()
    publishing, detecting = publisher.transaction(), detector.transaction()
    await publish_many(conn, "before")
    await publishing.start()
    await publish_many(publisher, "open before, committed during")
    await detecting.start()
    assert (await sweep(detector, storage, 6 * _MINUTE))["dead"] == 1
    await publish_many(conn, "during")
    await publishing.commit()
    assert set((await states(conn)).values()) == {(("dying", "living"), "PENDING")}, "not before it is committed"
    await detecting.commit()
    await publish_many(conn, "after")
    assert await state(conn, dying) == "DEAD"
    assert set((await states(conn)).values()) == {(("living",), "PENDING")}
    assert len(await do_all(conn, living)) == 4
    assert set((await states(conn)).values()) == {(("living",), "COMPLETED")}


async def test_pitfall_2_flapping_group_neither_flips_nor_holds_data_forever(conn: Any) -> None:
    """A group that crashes and restarts all the time neither flips between DEAD and ACTIVE nor holds data for ever.

    Again and again it is silent for most of its timeout, sends a heartbeat, and dies before it has done anything.
    """
    storage = await create_topic(conn, retention="0", zero_subscription_retention="0", zombie_time="2 days")
    group = await subscribe(conn)
    changed = "select state_changed_at from postbus.subscription"
    at_first = await conn.fetchval(changed)
    await publish_many(conn, *"abc")
    await rotate(conn, storage)
    misses = []
    for crash in range(100):
        for seconds in (60, 120, 180, 240, 280):
            later = timedelta(seconds=crash * 290 + seconds)
            assert (await sweep(conn, storage, later))["dead"] == 0
            misses.append(await conn.fetchval("select missed from postbus.subscription"))
        assert await beat(conn, group, timedelta(seconds=(crash + 1) * 290)) == []
    assert max(misses) >= 3, "it was missed in many looks"
    assert await conn.fetchval(changed) == at_first, "and was ACTIVE all the time"
    assert await partitions_of(conn, storage) == [1, 2], "what it has not had is kept for it"

    await beat(conn, group, 2 * _DAY + _MINUTE)  # it is as alive as ever

    async def is_dropped() -> None:
        await sweep(conn, storage, 2 * _DAY + _MINUTE)
        assert await partitions_of(conn, storage) == [2]

    await eventually(is_dropped)
    row = await conn.fetchrow("select state, lost, lag from postbus.groups")
    assert tuple(row) == ("ACTIVE", 3, 0), "what it lost is told"


async def test_pitfall_3_network_partition_loses_and_doubles_nothing(
    proxy: Proxy, bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is cut off is taken for DEAD, and when it is back its group continues: nothing that it did
    meanwhile is lost or counted twice."""
    look_often(monkeypatch)
    await create_log(bus, heartbeat_interval="1s", heartbeat_timeout="1 hour")
    got: list[int] = []
    is_cut, is_dead = asyncio.Event(), asyncio.Event()
    async with Bus.open(proxy.dsn) as far:

        @far.subscribe("t", group="g")
        async def handle(n: int) -> None:
            got.append(n)
            if n == 1:
                is_cut.set()
                await is_dead.wait()

        async with running(far):
            await are_shared(conn, 8)
            await publish_numbers(bus, [1])
            await is_cut.wait()
            proxy.cut()
            hours = itertools.count(2)

            async def is_taken_for_dead() -> None:  # after three checks, some of which its own sweep may delay
                await sweep(conn, 2, timedelta(hours=next(hours)))
                assert await conn.fetchval("select state from postbus.subscription") == "DEAD"

            await eventually(is_taken_for_dead)
            await publish_numbers(bus, range(2, 10))
            is_dead.set()  # it continues with the messages in hand
            proxy.heal()
            row = await is_through(conn, state="ACTIVE", within=20)
            assert row["passed"] == 9
    assert set(got) == set(range(1, 10))
    assert Counter(got)[1] <= 2, "its answer may have been lost; then it is given again"
    assert all(count == 1 for n, count in Counter(got).items() if n > 1)


@pytest.mark.parametrize("hours", [-24, 24])
async def test_pitfall_4_clock_skew_of_a_process_kills_no_group(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """The clock of a process may be off by a day, because heartbeats and checks use only the database's clock."""
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + hours * 3600)
    await create_log(bus, heartbeat_interval="1s", heartbeat_timeout="10s")
    collect(bus)
    async with running(bus):
        await are_listed(conn)
        first = await conn.fetchval("select max(seen_at) from postbus.subscription")

        async def is_seen_again() -> None:
            age = await conn.fetchval("select clock_timestamp() - max(seen_at) from postbus.subscription")
            assert await conn.fetchval("select max(seen_at) from postbus.subscription") > first
            assert timedelta(0) <= age < timedelta(seconds=10)

        await eventually(is_seen_again)
        for _ in range(5):
            assert (await sweep(conn, 2))["dead"] == 0
        assert await conn.fetchval("select state from postbus.subscription") == "ACTIVE"


async def test_pitfall_5_crashed_cleanup_job_is_undone_as_a_whole(conn: Any, connect: Connect) -> None:
    """A cleanup killed before its commit is undone as a whole; after the commit nothing is left to do for messages."""
    storage = await create_topic(conn)
    living, dying = await subscribe(conn, "living"), await subscribe(conn, "dying")
    await publish_many(conn, *(str(n) for n in range(1000)))
    for later in (4 * _MINUTE, 5 * _MINUTE):
        await sweep(conn, storage, later)
    await beat(conn, living, 6 * _MINUTE)
    for crash in range(3):
        detector = await connect()
        transaction = detector.transaction()
        await transaction.start()
        assert (await sweep(detector, storage, 6 * _MINUTE))["dead"] == 1
        await conn.execute("select pg_terminate_backend($1, 5000)", detector.get_server_pid())
        with pytest.raises(DRIVER_ERRORS):
            await detector.execute("select 1")
        assert await state(conn, dying) == "ACTIVE", f"crash {crash} has undone all of it"
    assert (await sweep(conn, storage, 6 * _MINUTE))["dead"] == 1
    await conn.execute("update postbus.sweep_job set runs = runs")  # a crash after the commit leaves nothing to do
    assert len(await do_all(conn, living)) == 1000
    statuses = await conn.fetch("select status, count(*) from postbus.message_states group by status")
    assert dict(statuses) == {"COMPLETED": 1000}


async def test_pitfall_6_group_that_dies_with_messages_in_hand_repeats_none(conn: Any) -> None:
    """A process had settled half of its messages when its group died: that half is not repeated, and the process
    cannot settle the rest after the takeover."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, *"abcd")
    [crashed] = await take(conn, "crashed", group)
    result = await read(conn, crashed.cursor)
    assert result.during is not None
    await advance(conn, [crashed], result.during, 2, done=result.at[1])
    assert await let_die(conn, storage) == 1
    await vanish(conn, "crashed")

    [told] = await beat(conn, group)
    assert told["missed"] == 2
    [next_one] = await take(conn, "next", group)
    rest = await read(conn, next_one.cursor)
    assert rest.messages == ["c", "d"]
    assert await advance(conn, [crashed], result.next, 2) == [1], "it is told that it has lost the lane"
    assert await advance(conn, [next_one], rest.next, 2) == []
    rows = await conn.fetch("select id, worker from postbus.deliveries where status = 'COMPLETED' order by id")
    assert [row["worker"] for row in rows] == ["crashed", "crashed", "next", "next"]
    assert await conn.fetchval("select passed from postbus.groups") == 4


@pytest.mark.parametrize("beside_from", [10, 100_000], ids=["beside what is published now", "in order with it"])
async def test_pitfall_7_thundering_herd_revives_the_group_once(conn: Any, connect: Connect, beside_from: int) -> None:
    """Ten processes of a DEAD group return at the same time: it is revived once, and gets the missed messages once."""
    storage = await create_topic(conn, lanes=4)
    options = json.dumps({"beside_from": beside_from})
    group = await subscribe(conn, catch_up=options)
    assert await let_die(conn, storage) == 1
    await publish_many(conn, *(str(n) for n in range(500)), keys=[f"k{n % 20}" for n in range(500)])
    herd = [await connect() for _ in range(10)]
    subscribing = "select * from postbus.subscribe('t', 'g', catch_up => $1)"
    answers = await asyncio.gather(
        *(one.fetchrow(subscribing, options) for one in herd[:5]), *(beat(one, group) for one in herd[5:])
    )
    told = [one for one in answers[:5] if one["missed"] is not None] + [row for rows in answers[5:] for row in rows]
    assert [row["missed"] for row in told] == [500], "one of them is told of what was missed"
    assert {one["subscription_id"] for one in answers[:5]} == {group}
    assert await state(conn, group) == "ACTIVE"
    history = [row["subscription_id"] for row in await conn.fetch("select subscription_id from postbus.catch_up")]
    assert len(history) == (beside_from == 10)
    await publish_many(conn, "new")
    got: list[str] = []
    for subscription in (group, *history):
        for lane in await take(conn, "w", subscription):
            result = await read(conn, lane.cursor, lanes=(lane.lane,))
            await advance(conn, [lane], result.next, len(result.messages))
            got += result.messages
    assert Counter(got) == Counter([*(str(n) for n in range(500)), "new"])


async def test_pitfall_8_removed_subscription_finishes_its_messages(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages in hand of a removed group are finished, its process stops working for it, and nothing is stuck."""
    look_often(monkeypatch)
    await create_log(bus)
    begun, go_on = asyncio.Event(), asyncio.Event()
    got: list[int] = []
    removed = bus.group("removed", "t")

    async def handle(n: int) -> None:
        begun.set()
        await go_on.wait()
        got.append(n)

    removed.add_member("m", handle)
    await removed.start()
    stays = collect(bus, "stays")
    async with running(bus):
        await are_shared(conn, 16)
        message = await bus.send("t", 1)
        await begun.wait()
        await has(stays, 1)
        await bus.admin.cancel_group("t", "removed")
        assert (await bus.admin.message_state("t", message)).required == ["stays"]

        async def is_completed() -> None:
            assert (await bus.admin.message_state("t", message)).status == "COMPLETED"

        await eventually(is_completed)
        go_on.set()

        async def has_stopped() -> None:
            assert not removed.is_started

        await eventually(has_stopped)
        await publish_numbers(bus, [2])
        await has(stays, 2)
    assert got == [1], "what it had in hand, and nothing more"
    for table in ("lane", "cursor", "deferred", "group_worker"):
        left = (
            f"select count(*) from postbus.{table} where subscription_id = (select min(id) from postbus.subscription)"
        )
        assert await conn.fetchval(left) == 0


async def test_pitfall_9_heartbeats_do_not_exhaust_the_pool(
    bus: Bus, conn: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred groups in one process send few statements over connections of their own.

    They are seen while handlers have all other connections, or all others wait for a lock, and heartbeats never use
    more than their own.
    """
    sizes: list[int] = []
    under_way = most = 0
    original = Store.group_heartbeat

    async def send(self: Store, subscription_ids: Any, counts: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            answer = await original(self, subscription_ids, counts)
        finally:
            under_way -= 1
        sizes.append(len(subscription_ids))
        return answer

    await create_log(bus, lanes=1, heartbeat_interval="1s", heartbeat_timeout="1 hour")
    stuck = asyncio.Event()
    for number in range(100):

        async def handle(n: int) -> None:
            await stuck.wait()

        async def handle_in_transaction(n: int, conn: Any) -> None:
            await stuck.wait()

        with_conn = number < 20
        subscribed = bus.subscribe("t", group=f"g{number}", transactional=with_conn, start=Start.BEGINNING)
        subscribed(handle_in_transaction if with_conn else handle)

    monkeypatch.setattr(Store, "group_heartbeat", send)
    async with running(bus):
        await are_shared(conn, 100)
        await publish_numbers(bus, [1])
        blocker = await connect()
        async with blocker.transaction():
            await blocker.execute("lock table postbus.sweep_setting in access exclusive mode")
            since = await conn.fetchval("select clock_timestamp()")

            async def all_are_seen() -> None:
                assert await conn.fetchval("select min(seen_at) from postbus.subscription") > since

            await eventually(all_are_seen)

            async def few_statements_show_all() -> None:
                assert sum([size for size in sizes if size][-5:]) >= 100

            await eventually(few_statements_show_all)
        stuck.set()
    assert most <= CONNECTIONS
