"""Old subscriptions: which ended or dead ones are removed, and which are still needed."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from support.log_sql import advance, create_topic, defer, let_die, publish_many, read, subscribe, sweep, take

_DAY = timedelta(days=1)


async def remove_old(conn: Any, later: timedelta) -> int:
    count: int = await conn.fetchval("select postbus.sweep_subscriptions_as_of(clock_timestamp() + $1)", later)
    return count


_OF_SUBSCRIPTIONS = ("lane", "cursor", "member", "group_worker", "loss", "catch_up", "deferred")


async def left_over(conn: Any) -> dict[str, int]:
    """Count rows that belong to subscriptions that no longer exist."""
    counts = {
        table: await conn.fetchval(
            f"select count(*) from postbus.{table} one "
            "where not exists (select from postbus.subscription s where s.id = one.subscription_id)"
        )
        for table in _OF_SUBSCRIPTIONS
    }
    return {table: count for table, count in counts.items() if count}


@pytest.mark.parametrize("state", ["CANCELLED", "DEAD", "ACTIVE", "PAUSED"])
async def test_old_subscriptions_are_removed_with_their_rows(conn: Any, state: str) -> None:
    """DEAD and CANCELLED subscriptions go after the retention and not before; others never."""
    storage = await create_topic(conn)
    await publish_many(conn, *"abcde")
    options = json.dumps({"beside_from": 2})
    group = await subscribe(conn, start="FROM_BEGINNING", catch_up=options)
    await take(conn, "w", group)
    beat = (
        "select postbus.group_heartbeat(array[$1::bigint], array[$1::bigint], '{m}', '{1}', '{0}', '{0}', '{0}', '{0}')"
    )
    await conn.execute(beat, group)
    if state == "DEAD":
        assert await let_die(conn, storage) == 1
    elif state != "ACTIVE":
        await conn.execute("select postbus.set_group_state('t', 'g', $1)", state)
    assert await conn.fetchval("select count(*) from postbus.subscription") == 2
    assert await remove_old(conn, 29 * _DAY) == 0
    expected = 2 if state in ("DEAD", "CANCELLED") else 0
    assert await remove_old(conn, 31 * _DAY) == expected
    assert await conn.fetchval("select count(*) from postbus.subscription") == 2 - expected
    assert await left_over(conn) == {}
    if expected:
        assert await subscribe(conn, start="FROM_BEGINNING") > group, "a group of this name can begin anew"
        removed = "select removed_total from postbus.sweep_jobs where job = 'subscriptions'"
        assert await conn.fetchval(removed) == 2


async def test_subscription_retention_can_be_set(conn: Any) -> None:
    """A subscription is removed once the configured retention has passed."""
    await create_topic(conn)
    await subscribe(conn)
    await conn.execute("select postbus.set_group_state('t', 'g', 'CANCELLED')")
    await conn.execute("""select postbus.set_sweeping('{"subscription_retention": "2 days"}')""")
    assert [await remove_old(conn, n * _DAY) for n in (1, 3)] == [0, 1]


async def test_dead_group_stays_while_its_messages_may_exist(conn: Any) -> None:
    """Its position is meaningful for as long as the topic keeps messages."""
    storage = await create_topic(conn, retention="60 days", max_retention="90 days")
    await subscribe(conn)
    assert await let_die(conn, storage) == 1
    assert [await remove_old(conn, n * _DAY) for n in (59, 61)] == [0, 1]


@pytest.mark.parametrize("kind", ["dead", "retry"])
async def test_subscription_with_deferred_messages_or_dead_letters_stays(conn: Any, kind: str) -> None:
    """Dead letters and retries are never deleted as a side effect."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, "a")
    [lane] = await take(conn, "w", group)
    await defer(conn, lane, await read(conn, lane.cursor), kind)
    assert await let_die(conn, storage) == 1
    assert await remove_old(conn, 365 * _DAY) == 0
    assert await conn.fetchval("select count(*) from postbus.dead_letters where group_name = 'g'") == (kind == "dead")
    await conn.execute("delete from postbus.dead_letter")
    await conn.execute("delete from postbus.deferred")
    assert await remove_old(conn, 365 * _DAY) == 1


async def test_finished_catch_up_is_removed_after_its_receipts(conn: Any) -> None:
    """Its receipts prove that the living group has settled those messages."""
    storage = await create_topic(conn, heartbeat_timeout="1 year", zombie_time="1 year")
    await publish_many(conn, *"abcde")
    await subscribe(conn, start="FROM_BEGINNING", catch_up=json.dumps({"beside_from": 2}))
    history = await conn.fetchval("select subscription_id from postbus.catch_up")
    [lane] = await take(conn, "w", history)
    await advance(conn, [lane], (await read(conn, lane.cursor)).next, 5)
    await sweep(conn, storage)
    statuses = "select array_agg(distinct status) from postbus.deliveries"
    assert await conn.fetchval(statuses) == ["COMPLETED"]
    assert await remove_old(conn, 31 * _DAY) == 0
    assert await conn.fetchval(statuses) == ["COMPLETED"]
    await conn.execute("truncate postbus.receipt")  # as dropping the partition does
    assert await remove_old(conn, 31 * _DAY) == 1
    assert await left_over(conn) == {}
    assert await conn.fetchval("select count(*) from postbus.groups where state = 'ACTIVE'") == 1


async def test_process_of_a_removed_subscription_is_told_to_stop(conn: Any) -> None:
    """`lease_lanes` answers `stop` for a subscription that no longer exists."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await take(conn, "w", group)
    assert await let_die(conn, storage) == 1
    assert await remove_old(conn, 31 * _DAY) == 1
    rows = await conn.fetch("select * from postbus.lease_lanes('w', array[$1::bigint], '{}')", group)
    assert [row["action"] for row in rows] == ["stop"]
