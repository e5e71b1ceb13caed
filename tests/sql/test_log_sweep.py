"""Log storage: when partitions begin and end, which groups hold them, and what the sweep must not do."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from support.eventually import eventually
from support.fix_database import Connect
from support.log_sql import (
    advance,
    create_topic,
    cursor_of,
    let_die,
    partitions_of,
    pass_all,
    publish_many,
    publish_partitions,
    read,
    read_all,
    refused,
    rotate,
    subscribe,
    sweep,
    take,
    vanish,
)
from support.pop_sql import ack, pop, retry
from support.queue_sql import is_waiting, publish

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)


async def _sweep_all(conn: Any, storage: int, later: timedelta = timedelta(0)) -> list[str]:
    """Sweep until nothing more is to be done at once. Returns what was dropped."""
    dropped: list[str] = []
    for _ in range(50):
        swept = await sweep(conn, storage, later)
        dropped += swept["dropped"]
        if not swept["more"]:
            return dropped
    raise AssertionError("the sweep never comes to an end")


async def _sweep_until(expected: list[str], conn: Any, storage: int, later: timedelta = timedelta(0)) -> bool:
    """Sweep until these partitions are dropped.

    Transactions of other databases may delay that, but nothing else does.
    """
    dropped: list[str] = []

    async def all_are_dropped() -> bool:
        dropped.extend(await _sweep_all(conn, storage, later))
        assert dropped == expected
        return True

    return await eventually(all_are_dropped, within=30)


async def _close(conn: Any, storage: int) -> None:
    """Begin a new partition and close the one before."""
    await rotate(conn, storage)
    await sweep(conn, storage)


async def _beat(conn: Any, group: int, later: timedelta) -> None:
    """Send a heartbeat, as if it came later."""
    await conn.execute(
        "select postbus.group_heartbeat(array[$1::bigint], '{}', '{}', '{}', '{}', '{}', '{}', '{}')", group
    )
    await conn.execute("update postbus.subscription set seen_at = seen_at + $2::interval where id = $1", group, later)


async def _lost(conn: Any) -> dict[str, int]:
    return dict(await conn.fetch("select group_name, lost::int from postbus.groups where lost > 0"))


# New partitions


async def test_partition_is_followed_by_the_next_after_its_period(conn: Any) -> None:
    """With a retention of a day the period is two hours. An empty partition stays, and one is always standing by."""
    storage = await create_topic(conn)
    await publish_partitions(conn, storage)
    assert not (await sweep(conn, storage, 3 * _HOUR))["more"], "empty"
    await publish(conn, "one")
    assert not (await sweep(conn, storage, _HOUR))["more"]
    assert [(await sweep(conn, storage, 3 * _HOUR))["opened"] for _ in range(3)] == [None, 2, None]
    await publish(conn, "two")

    assert await partitions_of(conn, storage) == [1, 2]
    assert await conn.fetchval("select count(*) from postbus.segment_2_2") == 1
    assert await conn.fetchval("select max(epoch) from postbus.log_partition") == 3


async def test_full_partition_is_followed_by_the_next(conn: Any) -> None:
    """A partition that reaches its size is closed long before its period is over."""
    storage = await create_topic(conn)
    await publish_partitions(conn, storage)
    await conn.execute("update postbus.log_storage set partition_bytes = 100000")
    await publish(conn, "one")
    assert not (await sweep(conn, storage))["more"]
    await conn.execute(
        "select postbus.publish_many('t', array(select sha256(n::text::bytea) from generate_series(1, 5000) n))"
    )
    await _sweep_all(conn, storage)

    assert await partitions_of(conn, storage) == [1, 2]


async def test_few_partitions_gather_while_a_group_keeps_old_messages(conn: Any) -> None:
    """A partition lasts at least 1/64 of the time that the oldest one has existed."""
    storage = await create_topic(conn, retention="1 hour", zero_subscription_retention="1 hour")
    await publish_partitions(conn, storage)
    await publish(conn, "old")
    await rotate(conn, storage)
    await sweep(conn, storage)
    await sweep(conn, storage)
    await conn.execute("update postbus.log_partition set closed_at = closed_at - interval '64 hours' where epoch = 1")
    await conn.execute("select postbus.set_topic('t', '{\"retention\": \"5 days\"}')")
    await publish(conn, "new")

    await _sweep_all(conn, storage, timedelta(minutes=58))
    assert await partitions_of(conn, storage) == [1, 2]
    await _sweep_all(conn, storage, timedelta(minutes=62))
    assert await partitions_of(conn, storage) == [1, 2, 3]


async def test_reset_sequence_is_not_taken_for_a_new_storage(conn: Any) -> None:
    """Sequences are easily forgotten when a database is moved, so publishing is refused until they are repaired."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one")
    await rotate(conn, storage)
    await publish(conn, "two")
    await sweep(conn, storage)
    await conn.execute(f"alter sequence postbus.log_epoch_{storage} restart")

    assert "log_epoch_2" in await refused(publish(conn, "lost"), "PB507")
    assert not (await sweep(conn, storage))["more"]
    assert "log_epoch_2" in await refused(publish(conn, "lost"), "PB507")
    await conn.execute("select setval('postbus.log_epoch_2', 2)")
    await publish(conn, "three")
    assert (await read_all(conn, await cursor_of(conn, group)))[0] == ["one", "two", "three"]


async def test_open_transaction_goes_on_publishing_into_the_new_partition(connect: Connect) -> None:
    """A transaction that published into one partition publishes into the next, in every isolation level."""
    conn = await connect()
    storage = await create_topic(conn)
    group = await subscribe(conn)
    sessions = []
    for isolation in ("read_committed", "repeatable_read", "serializable"):
        session = await connect()
        transaction = session.transaction(isolation=isolation)
        await transaction.start()
        await publish(session, f"{isolation} 1")
        sessions.append((session, transaction, isolation))
    await publish(conn, "x")
    await rotate(conn, storage)
    for session, _, isolation in sessions:
        await publish(session, f"{isolation} 2")
    await publish(conn, "y")
    await rotate(conn, storage)
    for session, _, isolation in sessions:
        await publish_many(session, f"{isolation} 3")
    first, cursor = await read_all(conn, await cursor_of(conn, group))
    for _, transaction, _ in sessions:
        await transaction.commit()
    second, _ = await read_all(conn, cursor, 2)

    assert first == ["x", "y"]
    names = [isolation for *_, isolation in sessions]
    assert second == [f"{isolation} {n}" for n in (1, 2, 3) for isolation in names]
    by_partition = await conn.fetch("select count(*) from postbus.segment group by tableoid order by min(sequence)")
    assert [row[0] for row in by_partition] == [4, 4, 3]


async def test_publisher_that_knew_the_old_epoch_still_writes_there(connect: Connect) -> None:
    """The old partition stays while a transaction that began earlier may write to it, and its messages are
    delivered."""
    conn, slow = await connect(), await connect()
    storage = await create_topic(conn, retention="0", zero_subscription_retention="0", max_retention="0")
    group = await subscribe(conn)
    await publish(conn, "one")
    # The publisher stops between the epoch and the row: another transaction holds the partition.
    blocker = await connect()
    block = blocker.transaction()
    await block.start()
    await blocker.execute("lock table postbus.segment_1_1 in share mode")
    publishing = asyncio.create_task(publish(slow, "late"))
    while not await is_waiting(conn, slow.get_server_pid()):
        await asyncio.sleep(0.001)
    await rotate(conn, storage)
    await publish(conn, "two")
    first, cursor = await read_all(conn, await cursor_of(conn, group))
    assert await _sweep_all(conn, storage, _HOUR) == [], "its writer has not ended"
    await block.rollback()
    await publishing

    assert first == ["one", "two"]
    assert await conn.fetchval("select count(*) from postbus.segment_1_1") == 2
    assert (await read_all(conn, cursor))[0] == ["late"]


async def test_publishing_goes_on_while_a_partition_is_added(connect: Connect) -> None:
    """A sweep that is creating a partition or switching to it holds up no publisher."""
    conn, sweeper = await connect(), await connect()
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one")
    for text in ("two", "three", "four"):
        async with sweeper.transaction():
            await sweep(sweeper, storage, 3 * _HOUR)
            await asyncio.wait_for(publish(conn, text), 5)
            found, _ = await read_all(conn, await cursor_of(conn, group))
            assert found[-1] == text
    assert found == ["one", "two", "three", "four"]


# Dropping


async def test_partition_goes_after_retention_when_every_group_is_past(conn: Any) -> None:
    """Neither condition alone is enough."""
    storage = await create_topic(
        conn, retention="1 hour", zero_subscription_retention="1 hour", heartbeat_timeout="1 day"
    )
    quick, slow = await subscribe(conn, "quick"), await subscribe(conn, "slow")
    await publish(conn, "one")
    await _close(conn, storage)
    assert await pass_all(conn, quick) == 1
    assert await _sweep_all(conn, storage, 2 * _HOUR) == [], "slow has not had it"
    assert await pass_all(conn, slow) == 1
    assert await _sweep_all(conn, storage) == [], "retained"
    assert await _sweep_until(["segment_1_1"], conn, storage, 2 * _HOUR)
    assert await partitions_of(conn, storage) == [2]
    assert await _lost(conn) == {}
    await publish(conn, "two")
    assert (await read_all(conn, await cursor_of(conn, slow)))[0] == ["two"]


async def test_unsettled_message_of_a_segment_holds_its_partition(conn: Any) -> None:
    """A group that has settled part of a segment holds the rest."""
    storage = await create_topic(conn, retention="0", zero_subscription_retention="0", heartbeat_timeout="1 day")
    group = await subscribe(conn)
    await publish_many(conn, *"abc")
    await _close(conn, storage)
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    assert result.during is not None
    await advance(conn, [lane], result.during, 2, result.at[1])
    assert await _sweep_all(conn, storage, _HOUR) == []
    await advance(conn, [lane], result.during, 1, result.at[2])
    assert await _sweep_until(["segment_1_1"], conn, storage, _HOUR)


async def test_group_does_not_hold_messages_before_its_start(conn: Any) -> None:
    """A group that starts later needs nothing older, and loses nothing when it is dropped."""
    storage = await create_topic(conn, retention="0", zero_subscription_retention="0", heartbeat_timeout="1 day")
    await publish(conn, "one")
    [two] = await publish(conn, "two")
    await _close(conn, storage)
    at = await conn.fetchval("select clock_timestamp()")
    await subscribe(conn, "time", "FROM_TIMESTAMP", start_at=at)
    await subscribe(conn, "id", "FROM_MESSAGE_ID", start_id=two + 1024)
    await subscribe(conn, "now")

    assert await _sweep_until(["segment_1_1"], conn, storage, _HOUR)
    assert await _lost(conn) == {}


async def test_messages_without_groups_stay_for_their_own_retention(conn: Any) -> None:
    """`zero_subscription_retention` applies while nobody is subscribed, `retention` from the first subscription on."""
    storage = await create_topic(
        conn, retention="1 hour", zero_subscription_retention="20 hours", heartbeat_timeout="10 days"
    )
    await publish(conn, "one")
    await _close(conn, storage)
    assert await _sweep_all(conn, storage, 10 * _HOUR) == []
    group = await subscribe(conn, "g", "FROM_BEGINNING")
    await pass_all(conn, group)
    assert await _sweep_until(["segment_2_1"], conn, storage, 2 * _HOUR)


async def test_dead_group_holds_nothing_with_dead_retention_zero(conn: Any) -> None:
    """Its messages go with their retention after its death, and the loss is recorded."""
    storage = await create_topic(conn, retention="30 min", zero_subscription_retention="30 min", dead_retention="0")
    await subscribe(conn)
    await publish(conn, "one", "two")
    await _close(conn, storage)
    assert await let_die(conn, storage, timedelta(minutes=20)) == 1
    assert await _sweep_until(["segment_1_1"], conn, storage, timedelta(minutes=31))
    assert await _lost(conn) == {"g": 2}
    reason = await conn.fetchval("select reason from postbus.loss")
    assert reason == "the group was DEAD"
    await sweep(conn, storage)
    assert await conn.fetchval("select lag from postbus.groups") == 0


async def test_dead_group_keeps_its_messages_over_a_weekend(conn: Any) -> None:
    """Workers that stop on Friday find the messages of Friday and the weekend on Monday."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "friday")
    await _close(conn, storage)
    assert await let_die(conn, storage, timedelta(minutes=20)) == 1
    await publish(conn, "saturday")
    await _close(conn, storage)

    assert await _sweep_all(conn, storage, 71 * _HOUR) == []
    assert (await read_all(conn, await cursor_of(conn, group)))[0] == ["friday", "saturday"]
    assert await _sweep_until(["segment_2_1", "segment_2_2"], conn, storage, 73 * _HOUR)
    assert await _lost(conn) == {"g": 2}


async def test_dead_retention_counts_from_the_death(conn: Any) -> None:
    """A group that dies late is waited for as long as one that dies early; `dead_retention` can change at any time."""
    storage = await create_topic(conn, dead_retention="5 hours", heartbeat_timeout="10 hours", retention="1 hour")
    await subscribe(conn)
    await publish(conn, "one")
    await _close(conn, storage)
    assert await let_die(conn, storage, 20 * _HOUR) == 1

    assert await _sweep_all(conn, storage, 24 * _HOUR) == []
    await conn.execute("""select postbus.set_topic('t', '{"dead_retention": "6 hours"}')""")
    assert await _sweep_all(conn, storage, 25.5 * _HOUR) == []
    await conn.execute("""select postbus.set_topic('t', '{"dead_retention": "3 hours"}')""")
    assert await _sweep_until(["segment_2_1"], conn, storage, 24 * _HOUR)


async def test_dead_retention_begins_anew_with_each_death(conn: Any) -> None:
    """A group that returns, reads nothing and dies again is waited for as long as before."""
    storage = await create_topic(
        conn, dead_retention="5 hours", retention="1 hour", zero_subscription_retention="1 hour"
    )
    group = await subscribe(conn)
    await publish(conn, "one")
    await _close(conn, storage)
    assert await let_die(conn, storage, _HOUR) == 1
    await _beat(conn, group, 4 * _HOUR)
    assert await let_die(conn, storage, 5 * _HOUR) == 1

    assert await _sweep_all(conn, storage, 9 * _HOUR) == []
    assert await _sweep_until(["segment_1_1"], conn, storage, 11 * _HOUR)
    assert await _lost(conn) == {"g": 1}


async def test_dead_group_does_not_keep_messages_beyond_max_retention(conn: Any) -> None:
    """The cap overrides `dead_retention`."""
    storage = await create_topic(conn, retention="1 hour", max_retention="30 hours")
    await subscribe(conn)
    await publish(conn, "one")
    await _close(conn, storage)
    assert await let_die(conn, storage, timedelta(minutes=20)) == 1

    assert await _sweep_all(conn, storage, 29 * _HOUR) == []
    assert await _sweep_until(["segment_2_1"], conn, storage, 31 * _HOUR)
    assert await _lost(conn) == {"g": 1}


async def test_outage_costs_no_group_its_messages(conn: Any) -> None:
    """After a long outage the first sweep comes before the heartbeats, and drops nothing."""
    storage = await create_topic(conn, retention="1 min", zero_subscription_retention="1 min")
    group = await subscribe(conn)
    await publish(conn, "one")
    await _close(conn, storage)
    later = _HOUR
    assert await _sweep_all(conn, storage, later) == []
    await _beat(conn, group, later)
    assert await _sweep_all(conn, storage, later + timedelta(minutes=4)) == []
    assert (await read_all(conn, await cursor_of(conn, group)))[0] == ["one"]


async def test_zombie_group_holds_nothing(conn: Any) -> None:
    """A group that is alive but makes no progress for `zombie_time` no longer holds its messages."""
    storage = await create_topic(
        conn, retention="1 hour", zero_subscription_retention="1 hour", zombie_time="3 hours", lanes=2
    )
    group = await subscribe(conn)
    await publish(conn, "one")
    await _close(conn, storage)
    await _beat(conn, group, 2 * _HOUR)
    assert await _sweep_all(conn, storage, 2 * _HOUR) == []
    # Taking lanes is not progress.
    await take(conn, "w", group)
    await vanish(conn, "w")
    await take(conn, "v", group)
    await _beat(conn, group, 4 * _HOUR)
    assert await _sweep_until(["segment_1_1"], conn, storage, 4 * _HOUR)
    assert await _lost(conn) == {"g": 1}
    assert await conn.fetchval("select reason from postbus.loss") == "max_retention or zombie_time had passed"
    [told] = await conn.fetch("select name, topic, fields ->> 'messages' as messages from postbus.take_group_events()")
    assert (told["name"], told["topic"]) == ("group.lost", "t")
    assert told["messages"] == str(await conn.fetchval("select messages from postbus.loss"))


async def test_group_without_messages_is_no_zombie(conn: Any) -> None:
    """Time without messages does not count as time without progress."""
    storage = await create_topic(
        conn, retention="1 min", zero_subscription_retention="1 min", zombie_time="3 hours", heartbeat_timeout="90 days"
    )
    group = await subscribe(conn)
    await conn.execute("update postbus.subscription set subscribed_at = subscribed_at - interval '9 days'")
    await conn.execute("update postbus.subscription set state_changed_at = subscribed_at")
    await conn.execute("update postbus.cursor set at = at - interval '9 days'")
    await publish(conn, "one")
    await _close(conn, storage)

    assert await _sweep_all(conn, storage, _HOUR) == []
    assert (await read_all(conn, await cursor_of(conn, group)))[0] == ["one"]
    assert await _sweep_until(["segment_1_1"], conn, storage, 4 * _HOUR)


async def test_progress_in_one_lane_is_progress_of_the_group(conn: Any) -> None:
    """A lane that waits its turn does not make the group a zombie."""
    storage = await create_topic(
        conn,
        retention="1 min",
        zero_subscription_retention="1 min",
        zombie_time="3 hours",
        heartbeat_timeout="90 days",
        lanes=2,
    )
    group = await subscribe(conn)
    await publish_many(conn, "a", "b", keys=["k1", "k2"])
    await publish_many(conn, "c", "d", "e", "f", keys=["k3", "k4", "k5", "k6"])
    await _close(conn, storage)
    await conn.execute("update postbus.subscription set subscribed_at = subscribed_at - interval '9 days'")
    await conn.execute("update postbus.subscription set state_changed_at = subscribed_at")
    await conn.execute("update postbus.cursor set at = at + interval '3 hours' where lane = 0")

    assert await _sweep_all(conn, storage, 5 * _HOUR) == []
    assert await conn.fetchval("select count(distinct lane) from postbus.segment") == 2
    assert await _sweep_until(["segment_1_1"], conn, storage, 7 * _HOUR)
    assert await _lost(conn) == {"g": 6}
    assert group


async def test_partition_goes_at_max_retention_and_losses_are_recorded(conn: Any) -> None:
    """The cap applies to all groups, PAUSED ones too; a group that settled the messages has lost none."""
    storage = await create_topic(
        conn,
        retention="1 hour",
        zero_subscription_retention="1 hour",
        max_retention="5 hours",
        heartbeat_timeout="1 day",
    )
    quick, _, slow = await subscribe(conn, "quick"), await subscribe(conn, "paused"), await subscribe(conn, "slow")
    await conn.execute("select postbus.set_group_state('t', 'paused', 'PAUSED')")
    ids = await publish_many(conn, *"abcde")
    await subscribe(conn, "middle", "FROM_MESSAGE_ID", start_id=ids[3])
    await _close(conn, storage)
    await pass_all(conn, quick)
    [lane] = await take(conn, "w", slow)
    result = await read(conn, lane.cursor)
    assert result.during is not None
    await advance(conn, [lane], result.during, 2, result.at[1])
    assert await _sweep_all(conn, storage, 4 * _HOUR) == []
    assert await _sweep_until(["segment_1_1"], conn, storage, 6 * _HOUR)

    assert await _lost(conn) == {"paused": 5, "slow": 3, "middle": 2}
    await publish(conn, "f")
    await sweep(conn, storage)
    lags = dict(await conn.fetch("select group_name, lag from postbus.groups"))
    assert lags == {"quick": 1, "paused": 1, "slow": 1, "middle": 1}


async def test_topic_with_own_storage_has_its_own_partitions(conn: Any) -> None:
    """The partitions are dropped with the topic."""
    shared = await create_topic(conn, "a")
    own = await create_topic(conn, "b", storage="own")
    await publish(conn, "one", topic="a")
    await publish(conn, "two", topic="b")
    assert own >= 100 > shared
    assert await conn.fetchval(f"select count(*) from postbus.segment_{own}") == 1
    group = await subscribe(conn, topic="b", start="FROM_BEGINNING")
    assert (await read_all(conn, await cursor_of(conn, group), topic="b"))[0] == ["two"]
    await rotate(conn, own)
    await conn.execute("select postbus.delete_topic('b', true)")
    assert await conn.fetchval("select count(*) from postbus.log_partition where storage_id = $1", own) == 0
    assert await conn.fetchval("select to_regclass($1)", f"postbus.segment_{own}") is None
    assert await sweep(conn, own) == (0, None, [], 0, 0, False, 0), "a sweep of what is gone"
    again = await create_topic(conn, "c", storage="own")
    await publish(conn, "three", topic="c")
    assert await conn.fetchval("select count(*) from postbus.log") == 2
    assert again == own


@pytest.mark.parametrize(("topic", "is_new"), [("a", False), ("b", False), ("b", True)])
async def test_deleting_own_storage_never_blocks_publishers(connect: Connect, topic: str, is_new: bool) -> None:
    """Deleting a topic with its own storage is refused while others publish, instead of making them wait."""
    conn, slow = await connect(), await connect()
    storages = [await create_topic(conn, "a"), await create_topic(conn, "b", storage="own")]
    for storage in () if is_new else storages:
        await publish_partitions(conn, storage)
    await publish(slow, "before", topic=topic)  # the first time a session looks at more tables than later
    transaction = slow.transaction()
    await transaction.start()
    await publish(slow, "open", topic=topic)
    with pytest.raises(asyncpg.PostgresError) as caught:
        await asyncio.wait_for(conn.execute("select postbus.delete_topic('b', true)"), 5)
    assert (caught.value.sqlstate, caught.value.hint) == ("PB408", "try again when that transaction has ended")
    await transaction.commit()
    await conn.execute("select postbus.delete_topic('b', true)")


async def test_long_retention_does_not_keep_data_of_other_topics(conn: Any) -> None:
    """Topics share storage with topics of similar retention. By default, retention applies without groups too."""
    short = await create_topic(conn, "short", retention="1 hour", zero_subscription_retention="1 hour")
    long = await create_topic(conn, "long", retention="20 days", max_retention="40 days")
    await publish(conn, "one", topic="short")
    await publish(conn, "two", topic="long")
    await _close(conn, short)
    await _close(conn, long)

    assert await _sweep_until([f"segment_{short}_1"], conn, short, 2 * _HOUR)
    assert await _sweep_all(conn, long, 2 * _DAY) == []
    assert await _sweep_until([f"segment_{long}_1"], conn, long, 21 * _DAY)


# Topics that share a storage


async def _there(conn: Any, topic: str) -> int:
    """Return how many messages of a topic are stored."""
    count: int = await conn.fetchval("select count(*) from postbus.log where topic = $1", topic)
    return count


async def _sweep_until_there(conn: Any, storage: int, later: timedelta, **expected: int) -> bool:
    """Sweep until topics have this many messages. Transactions of other databases may delay that."""

    async def are_there() -> bool:
        await _sweep_all(conn, storage, later)
        assert {topic: await _there(conn, topic) for topic in expected} == expected
        return True

    return await eventually(are_there, within=30)


async def _neighbours(conn: Any, **options: Any) -> int:
    """Create topic t, with these options, and topic other, whose group is paused, with messages in one closed
    partition."""
    short = {"retention": "10 min", "zero_subscription_retention": "10 min"}
    storage = await create_topic(conn, **{**short, "heartbeat_timeout": "90 days", **options})
    assert await create_topic(conn, "other", **short) == storage
    await subscribe(conn, "slow", topic="other")
    await conn.execute("select postbus.set_group_state('other', 'slow', 'PAUSED')")
    for topic in ("t", "other"):
        for n in range(4):
            await publish(conn, f"{n}", topic=topic)
    await _close(conn, storage)
    return storage


async def test_paused_group_of_a_neighbour_does_not_keep_a_topics_messages(conn: Any) -> None:
    """A topic's `max_retention` of ten minutes holds beside another topic's group that is paused for five days."""
    storage = await _neighbours(conn, max_retention="10 min")
    await subscribe(conn, "paused", "FROM_BEGINNING")
    await conn.execute("select postbus.set_group_state('t', 'paused', 'PAUSED')")

    assert await _sweep_until_there(conn, storage, timedelta(minutes=9), t=4, other=4)
    assert await _sweep_until_there(conn, storage, timedelta(minutes=11), t=0, other=4)
    assert await _lost(conn) == {"paused": 4}
    await publish(conn, "new")
    await sweep(conn, storage)
    assert dict(await conn.fetch("select group_name, lag from postbus.groups")) == {"paused": 1, "slow": 4}
    slow = await conn.fetchval("select id from postbus.subscription where group_name = 'slow'")
    found, _ = await read_all(conn, await cursor_of(conn, slow), topic="other")
    assert found == ["0", "1", "2", "3"]
    assert (await sweep(conn, storage, 5 * _DAY))["thinned"] == 0, "there is nothing left to do"


async def test_max_retention_applies_to_deferred_messages(conn: Any) -> None:
    """Buffered, retried and parked copies are removed after `max_retention`; dead letters stay."""
    storage = await create_topic(
        conn,
        retention="10 min",
        zero_subscription_retention="10 min",
        max_retention="10 min",
        heartbeat_timeout="90 days",
    )
    await subscribe(conn)
    await publish_many(conn, "dead", "failed", "behind", "released", "in hand", keys=["d", "k", "k", "s", "h"])
    popped = await pop(conn, 5)
    by_text = dict(zip(popped.messages, popped.ids, strict=True))
    await conn.execute("select postbus.dead_letter($1, $2, 'no')", popped.token, [by_text["dead"]])
    await retry(conn, popped, by_text["failed"])
    await conn.execute("select postbus.release($1, $2)", popped.token, [by_text["released"]])
    await conn.execute("select postbus.extend(array[$1::uuid], '1 hour')", popped.token)
    later = timedelta(minutes=11)

    await _sweep_all(conn, storage, timedelta(minutes=9))
    assert await conn.fetchval("select count(*) from postbus.deferred") == 4
    await _sweep_all(conn, storage, later)
    assert [row[0] for row in await conn.fetch("select id from postbus.deferred")] == [by_text["in hand"]]
    assert await _lost(conn) == {"g": 3}
    assert await ack(conn, popped, by_text["in hand"]) == []
    assert await conn.fetchval("select postbus.redrive('t', group_name => 'g')") == 1
    await conn.execute("update postbus.deferred set published_at = published_at - interval '1 year'")
    await _sweep_all(conn, storage, timedelta(minutes=9))
    assert (await pop(conn)).messages == ["dead"], "it counts from the moment when somebody redrove it"


async def test_long_retention_of_a_neighbour_does_not_keep_a_topics_messages(conn: Any) -> None:
    """Messages go with their own topic's retention, and the partition goes when its last topic needs it no more."""
    storage = await create_topic(conn, "short", retention="2 hours", zero_subscription_retention="2 hours")
    assert await create_topic(conn, "long", retention="20 hours", zero_subscription_retention="20 hours") == storage
    await publish_many(conn, *"abc", topic="short")
    await publish_many(conn, *"ab", topic="long")
    await _close(conn, storage)

    assert await _sweep_until_there(conn, storage, _HOUR, short=3, long=2)
    assert await _sweep_until_there(conn, storage, 3 * _HOUR, short=0, long=2)
    removed = "select removed_total from postbus.sweep_jobs where job like 'drop_partitions%'"
    assert await conn.fetchval(removed) == 3
    assert await _sweep_until(["segment_2_1"], conn, storage, 21 * _HOUR)
    assert await conn.fetchval(removed) == 5
    assert await conn.fetchval("select count(*) from postbus.partition_topic") == 0


async def test_cap_holds_beside_a_neighbour_that_keeps_old_messages(conn: Any) -> None:
    """It holds to within a period and a sweep, although the partition lasts for hours because an old one still
    exists."""
    for_long = {"zombie_time": "900 days", "heartbeat_timeout": "900 days"}
    storage = await create_topic(conn, "old", retention="30 min", zero_subscription_retention="30 min", **for_long)
    capped = {"retention": "1 min", "zero_subscription_retention": "1 min", "max_retention": "10 min"}
    assert await create_topic(conn, **capped, **for_long) == storage
    for topic, group in (("old", "paused"), ("t", "paused"), ("t", "slow")):
        await subscribe(conn, group, topic=topic)
    await conn.execute(
        "select postbus.set_group_state(topic, 'paused', 'PAUSED') from unnest(array['old', 't']) as topic"
    )
    await publish_many(conn, *"abc", topic="old")
    await _close(conn, storage)
    await conn.execute("update postbus.log_partition set closed_at = closed_at - interval '20 days' where epoch = 1")
    epoch = await conn.fetchval("select postbus.epoch($1)", storage)

    there: dict[int, int] = {}  # the minute in which each was published
    for minute in range(0, 90, 3):
        there[(await publish_many(conn, "x", "y"))[0]] = minute
        await publish_many(conn, "z", topic="old")

        async def cap_holds(minute: int = minute) -> None:
            await _sweep_all(conn, storage, timedelta(minutes=minute))
            rows = await conn.fetch("select distinct id >> 10 as segment from postbus.log where topic = 't'")
            stored = {there[row["segment"] << 10] for row in rows}
            assert stored >= {one for one in there.values() if one > minute - 10}, "nothing goes early"
            assert stored <= {one for one in there.values() if one > minute - 10 - 5 - 3}

        await eventually(cap_holds, within=30)

    assert await conn.fetchval("select postbus.epoch($1)", storage) == epoch, "it is still the same partition"
    assert await _there(conn, "old") == 3 + 30
    left = await _there(conn, "t")
    assert await _lost(conn) == {"paused": 60 - left, "slow": 60 - left}
    slow = await conn.fetchval("select id from postbus.subscription where group_name = 'slow'")
    assert await pass_all(conn, slow) == left
    await _sweep_all(conn, storage, timedelta(minutes=90))
    assert await conn.fetchval("select lag from postbus.groups where group_name = 'slow'") == 0
    assert await conn.fetchval("select count(*) from postbus.inconsistencies()") == 0
    sweeps = "select count(*) from postbus.partition_mark where epoch = $1"
    assert 0 < await conn.fetchval(sweeps, epoch) <= 90 / 5


async def test_mark_waits_for_transactions_that_may_have_written_before_it(conn: Any, connect: Connect) -> None:
    """Messages that commit after the mark was set are not overlooked, and are removed when the cap has passed."""
    storage = await create_topic(conn, "old", retention="30 min", zero_subscription_retention="30 min")
    await create_topic(conn, retention="1 min", zero_subscription_retention="1 min", max_retention="10 min")
    await subscribe(conn, topic="old")
    await publish_many(conn, "a", topic="old")
    await _close(conn, storage)
    await conn.execute("update postbus.log_partition set closed_at = closed_at - interval '20 days' where epoch = 1")
    other = await connect()
    async with other.transaction():
        await publish_many(other, "late")
        await publish_many(conn, "early")
        await _sweep_all(conn, storage)
        await _sweep_all(conn, storage, timedelta(minutes=6))
        await _sweep_all(conn, storage, timedelta(minutes=17))
        assert await _there(conn, "t") == 1, "one who may have written before the mark has not ended"

    async def all_went() -> None:
        await _sweep_all(conn, storage, timedelta(minutes=17))
        assert await _there(conn, "t") == 0

    await eventually(all_went, within=30)
    assert await conn.fetchval("select published from postbus.topics where name = 't'") == 2


async def test_thinning_goes_in_bounded_steps(conn: Any) -> None:
    """No step deletes more rows than `batch_size`, and a group loses exactly the messages deleted before it read
    them."""
    storage = await _neighbours(conn, max_retention="10 min")
    group = await subscribe(conn, "g", "FROM_BEGINNING")
    await conn.execute("""select postbus.set_sweeping('{"batch_size": 3}')""")
    later = timedelta(minutes=11)

    async def has_begun() -> None:
        assert (await sweep(conn, storage, later))["thinned"] == 3

    await eventually(has_begun, within=30)
    assert await _there(conn, "t") == 1
    assert await pass_all(conn, group) == 1
    assert await _sweep_until_there(conn, storage, later, t=0, other=4)
    assert await _lost(conn) == {"g": 3}
    assert await conn.fetchval("select lag from postbus.groups where group_name = 'g'") == 0


async def test_partition_held_by_a_group_is_not_searched_at_each_sweep(conn: Any) -> None:
    """Until the group moves, a sweep knows without looking that its messages are needed."""
    storage = await _neighbours(conn)
    later = timedelta(minutes=11)
    await _sweep_until_there(conn, storage, later, t=0, other=4)
    slow = await conn.fetchval("select id from postbus.subscription where group_name = 'slow'")
    scans = "select coalesce(seq_scan, 0) + coalesce(idx_scan, 0) from pg_stat_xact_all_tables where relname = $1"

    judge = (
        "select (postbus.judge_partition(l, clock_timestamp() + $1)).is_kept "
        "from postbus.log_partition l where epoch = 1"
    )

    async def looks() -> int:
        async with conn.transaction():
            before = await conn.fetchval(scans, f"segment_{storage}_1")
            assert await conn.fetchval(judge, later)
            return int(await conn.fetchval(scans, f"segment_{storage}_1")) - int(before)

    assert await looks() == 0
    await conn.execute("select postbus.seek('other', 'slow', 'FROM_BEGINNING')")
    assert await looks() > 0
    assert await looks() == 0
    assert await conn.fetchval("select needed_by from postbus.partition_topic where epoch = 1") == slow


async def test_receipts_are_removed_with_their_messages(conn: Any) -> None:
    """A partition that another topic holds keeps no receipts of messages that are gone."""
    storage = await _neighbours(conn, retention="30 min", zero_subscription_retention="30 min")
    group = await subscribe(conn, "g", "FROM_BEGINNING")
    held = await take(conn, "w", group)
    for _ in range(4):
        result = await read(conn, held[0].cursor, 1)
        await advance(conn, held, result.next, 1)
    await conn.execute("update postbus.cursor set fenced_at = null, at = at - interval '1 hour'")
    assert (await sweep(conn, storage))["folded"] > 0
    of_group = "select count(*) from postbus.receipt where subscription_id = $1 and epoch = 1"
    assert await conn.fetchval(of_group, group) > 0

    assert await _sweep_until_there(conn, storage, timedelta(minutes=31), t=0, other=4)
    assert await conn.fetchval(of_group, group) == 0


async def test_retention_can_be_changed_at_any_time(conn: Any) -> None:
    """A raised or lowered retention applies to messages already stored, and the topic stays in its storage."""
    storage = await create_topic(conn, retention="1 hour", zero_subscription_retention="1 hour")
    change = "select storage_id from postbus.set_topic('t', $1)"
    longer = '{"retention": "40 days", "zero_subscription_retention": "40 days", "max_retention": "50 days"}'
    await publish(conn, "one")
    await _close(conn, storage)
    assert await conn.fetchval(change, longer) == storage
    assert await _sweep_until_there(conn, storage, 39 * _DAY, t=1)
    shorter = '{"retention": "2 days", "zero_subscription_retention": "2 days", "max_retention": "3 days"}'
    assert await conn.fetchval(change, shorter) == storage
    assert await _sweep_until_there(conn, storage, _DAY, t=1)
    assert await _sweep_until_there(conn, storage, 3 * _DAY, t=0)


async def test_partitions_of_own_storage_follow_a_changed_retention(conn: Any) -> None:
    """A partition lasts for a twelfth of the retention."""
    storage = await create_topic(conn, retention="24 hours", storage="own")
    period = "select extract(epoch from period)::int from postbus.log_storage where id = $1"
    assert await conn.fetchval(period, storage) == 2 * 3600
    await conn.execute(
        """select postbus.set_topic('t', '{"retention": "1 hour", "zero_subscription_retention": "1 hour"}')"""
    )
    assert await conn.fetchval(period, storage) == 300


async def test_short_zero_subscription_retention_holds(conn: Any) -> None:
    """Messages without groups go after it although `retention` is longer; with a group `retention` applies again."""
    storage = await create_topic(conn, retention="24 hours", zero_subscription_retention="1 hour")
    await publish(conn, "one")
    await _close(conn, storage)
    assert await _sweep_until_there(conn, storage, timedelta(minutes=59), t=1)
    group = await subscribe(conn, "g", "FROM_BEGINNING")
    await pass_all(conn, group)
    assert await _sweep_until_there(conn, storage, 2 * _HOUR, t=1)
    await conn.execute("select postbus.set_group_state('t', 'g', 'CANCELLED')")
    assert await _sweep_until_there(conn, storage, 2 * _HOUR, t=0)


async def test_thinning_does_not_wait_for_a_topic_being_deleted(connect: Connect) -> None:
    """The sweep skips a topic whose row is locked, and returns to it later."""
    conn, other = await connect(), await connect()
    storage = await _neighbours(conn, max_retention="10 min")
    later = timedelta(minutes=11)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("select from postbus.topic where name = 't' for update")
    await conn.execute("set statement_timeout = '3s'")
    await _sweep_all(conn, storage, later)
    assert await _there(conn, "t") == 4
    await transaction.rollback()
    assert await _sweep_until_there(conn, storage, later, t=0, other=4)


async def test_partition_of_a_topic_that_falls_silent_closes_in_time(conn: Any) -> None:
    """The cap holds to within a period and a sweep, even if nobody publishes any more."""
    storage = await create_topic(
        conn, retention="10 min", zero_subscription_retention="10 min", max_retention="10 min", zombie_time="90 days"
    )
    await publish_partitions(conn, storage)
    await publish(conn, "one")
    await _sweep_all(conn, storage, timedelta(minutes=5))
    await sweep(conn, storage, timedelta(minutes=5))
    assert await _sweep_until_there(conn, storage, timedelta(minutes=15, seconds=1), t=0)


# What the sweep must not do


async def test_sweep_does_not_wait_for_an_open_publisher(connect: Connect) -> None:
    """While a transaction that published is open, the sweep counts and begins partitions at once, and drops none."""
    conn, slow = await connect(), await connect()
    storage = await create_topic(conn, retention="0", zero_subscription_retention="0")
    await publish(conn, "one")
    await _close(conn, storage)
    transaction = slow.transaction()
    await transaction.start()
    await publish(slow, "open")
    await conn.execute("set statement_timeout = '3s'")
    assert await _sweep_all(conn, storage, _HOUR) == []
    await publish(conn, "two")
    await _close(conn, storage)
    assert await _sweep_all(conn, storage, _HOUR) == []
    assert await conn.fetchval("select messages from postbus.topic_count") == 2
    await transaction.commit()
    assert await _sweep_until(["segment_1_1", "segment_1_2", "segment_1_3"], conn, storage, _HOUR)


async def test_partitions_are_dropped_under_steady_traffic(connect: Connect) -> None:
    """Short transactions of publishers and readers keep no old partitions, though one of them is always open."""
    conn = await connect()
    storage = await create_topic(conn, retention="0", zero_subscription_retention="0", heartbeat_timeout="1 day")
    group = await subscribe(conn)
    await publish(conn, "one")
    await _close(conn, storage)
    is_over = False
    slowest = 0.0

    async def keep_publishing() -> None:
        nonlocal slowest
        session = await connect()
        clock = asyncio.get_running_loop().time
        while not is_over:
            began = clock()
            async with session.transaction():
                await publish(session, "x")
                await asyncio.sleep(0.002)
            slowest = max(slowest, clock() - began)

    publishers = [asyncio.create_task(keep_publishing()) for _ in range(6)]
    try:
        await pass_all(conn, group)
        dropped: list[str] = []
        for _ in range(500):
            dropped += (await sweep(conn, storage, _HOUR))["dropped"]
            if dropped:
                break
            await asyncio.sleep(0.02)
    finally:
        is_over = True
        await asyncio.gather(*publishers)

    assert "segment_1_1" in dropped
    assert slowest < 1


async def test_sweep_aborted_at_any_point_is_repeated(connect: Connect) -> None:
    """After each step was rolled back and repeated, nothing is missing, counted twice or left over."""
    conn, sweeper = await connect(), await connect()
    storage = await create_topic(
        conn, retention="0", zero_subscription_retention="0", heartbeat_timeout="90 days", zombie_time="90 days"
    )
    group = await subscribe(conn)
    published, dropped = 0, list[str]()
    for n in range(12):
        await publish_many(conn, *"ab")
        published += 2
        if n % 3 == 2:
            await pass_all(conn, group)
        transaction = sweeper.transaction()
        await transaction.start()
        await sweep(sweeper, storage, (n + 1) * _DAY)
        await transaction.rollback()
        dropped += (await sweep(conn, storage, (n + 1) * _DAY))["dropped"]
    await pass_all(conn, group)

    async def some_are_dropped() -> None:
        dropped.extend(await _sweep_all(conn, storage, 20 * _DAY))
        assert dropped

    await eventually(some_are_dropped, within=30)
    epochs = await partitions_of(conn, storage)
    assert epochs[-1] == await conn.fetchval("select last_value from postbus.log_epoch_1")
    assert len(dropped) == len(set(dropped)) > 0
    tables = await conn.fetch(
        r"select relname from pg_class where relname ~ '^segment_1_\d+$' and relkind = 'r' order by oid"
    )
    standby = epochs[-1] + 1
    assert [row[0] for row in tables] == [f"segment_1_{epoch}" for epoch in [*epochs, standby]]
    assert await conn.fetchval("select messages from postbus.topic_count") == published
    assert await _lost(conn) == {}
    await publish(conn, "last")
    assert (await read_all(conn, await cursor_of(conn, group)))[0] == ["last"]


async def test_killed_sweeper_is_replaced_by_another(connect: Connect) -> None:
    """A second sweeper returns at once while the first one works, and takes over when the first one is gone."""
    conn, first = await connect(), await connect()
    storage = await create_topic(conn)
    await sweep(conn, storage)  # makes a standby partition
    await publish(conn, "one")
    transaction = first.transaction()
    await transaction.start()
    assert (await sweep(first, storage, 3 * _HOUR))["counted"] == 1
    assert await sweep(conn, storage, 3 * _HOUR) == (0, None, [], 0, 0, False, 0)
    await conn.execute("select pg_terminate_backend($1, 5000)", first.get_server_pid())

    swept = await sweep(conn, storage, 3 * _HOUR)
    assert (swept["counted"], swept["more"]) == (1, True)


async def test_reader_survives_the_drop_of_its_partition(connect: Connect) -> None:
    """A read that meets a partition while it is dropped continues with the next one."""
    conn, reader, sweeper = await connect(), await connect(), await connect()
    storage = await create_topic(
        conn, retention="0", zero_subscription_retention="0", max_retention="0", heartbeat_timeout="1 day"
    )
    await conn.execute("update postbus.log_storage set period = '1 day'")
    group = await subscribe(conn)
    cursor = await cursor_of(conn, group)
    await publish(conn, "dropped")
    await _close(conn, storage)
    await publish(conn, "two")
    while True:
        transaction = sweeper.transaction()
        await transaction.start()
        if (await sweep(sweeper, storage, _HOUR))["dropped"] == ["segment_1_1"]:
            break
        await transaction.rollback()  # transactions of other databases delay it
    reading = asyncio.create_task(read(reader, cursor))
    while not await is_waiting(conn, reader.get_server_pid()):
        await asyncio.sleep(0.001)
    await transaction.commit()

    assert (await reading).messages == ["two"]
    assert await _lost(conn) == {"g": 1}


async def test_folding_keeps_the_last_row_of_each_lane(conn: Any) -> None:
    """The ledger shrinks to the rows that matter, and the positions stay."""
    storage = await create_topic(conn, lanes=2, heartbeat_timeout="10 days")
    group = await subscribe(conn)
    held = await take(conn, "w", group)
    for n in range(20):
        await publish(conn, f"{n}", key="k")
        for lane in held:
            result = await read(conn, lane.cursor, lanes=(lane.lane,))
            await advance(conn, [lane], result.next, len(result.messages))
    before = [await cursor_of(conn, group, n) for n in (0, 1)]
    assert (await sweep(conn, storage))["folded"] == 0, "rows go some minutes later"
    folded = (await sweep(conn, storage, _HOUR))["folded"]
    await conn.execute("update postbus.cursor set fenced_at = fenced_at - interval '1 day'")
    folded += (await sweep(conn, storage, 2 * _HOUR))["folded"]

    assert folded >= 40
    assert await conn.fetchval("select count(*) from postbus.cursor") == 2
    assert [await cursor_of(conn, group, n) for n in (0, 1)] == before
    for lane in held:
        assert await advance(conn, [lane], lane.cursor) == []
    assert await conn.fetchval("select passed from postbus.groups") == 20


async def test_counting_misses_no_late_commit(connect: Connect) -> None:
    """Messages are counted once, even if their transaction stayed open over several counts and partitions."""
    conn, slow = await connect(), await connect()
    storage = await create_topic(conn)
    transaction = slow.transaction()
    await transaction.start()
    await publish(slow, "late")
    for n in range(3):
        await publish(conn, f"{n}")
        await _close(conn, storage)
        await publish(slow, f"late {n}")
    await sweep(conn, storage)
    assert await conn.fetchval("select messages from postbus.topic_count") == 3
    await transaction.commit()
    await sweep(conn, storage)

    assert await conn.fetchval("select messages from postbus.topic_count") == 7
    assert (await sweep(conn, storage))["counted"] == 0


async def test_deleting_a_topic_deletes_its_groups_and_messages(conn: Any) -> None:
    """Groups protect a topic from deletion unless it is forced; other topics in the same storage stay."""
    await create_topic(conn, "a")
    await create_topic(conn, "b")
    await subscribe(conn, topic="a")
    await publish(conn, "one", topic="a")
    await publish(conn, "two", topic="b")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await conn.execute("select postbus.delete_topic('a')")
    assert caught.value.sqlstate == "PB408"
    await conn.execute("select postbus.delete_topic('a', true)")

    assert await conn.fetchval("select array_agg(topic) from postbus.log") == ["b"]
    for table in ("subscription", "lane", "cursor"):
        assert await conn.fetchval(f"select count(*) from postbus.{table}") == 0
