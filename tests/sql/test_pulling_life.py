"""Groups that pull: what revives a DEAD group, and what counts as a sign of life."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from support.eventually import eventually
from support.fix_database import Connect
from support.log_sql import (
    create_topic,
    let_die,
    pass_all,
    publish_many,
    refused,
    rotate,
    subscribe,
    subscribe_scope,
    sweep,
)
from support.pop_sql import ack, as_pop, pop, retry


async def dead_group(conn: Any, *payloads: str, keys: list[str | None] | None = None, **options: Any) -> int:
    """Create a group of topic t that died with messages before it. Returns its storage."""
    storage = await create_topic(conn, **options)
    await subscribe(conn)
    await publish_many(conn, *payloads, keys=keys)
    assert await let_die(conn, storage) == 1
    return storage


async def state(conn: Any, topic: str = "t") -> str:
    found: str = await conn.fetchval("select state from postbus.groups where topic = $1 and group_name = 'g'", topic)
    return found


async def seen_ago(conn: Any, ago: timedelta) -> None:
    """Make the group last seen this long ago."""
    await conn.execute("update postbus.subscription set seen_at = clock_timestamp() - $1::interval", ago)


async def was_seen(conn: Any, storage: int) -> bool:
    await sweep(conn, storage)  # takes over signs of life that settlements left
    return bool(await conn.fetchval("select seen_at > clock_timestamp() - interval '10 s' from postbus.subscription"))


@pytest.mark.parametrize("storage", ["shared", "own"])
async def test_pop_of_a_dead_group_delivers_at_once(conn: Any, storage: str) -> None:
    """The first pop after the group's death revives it and returns messages."""
    await dead_group(conn, "one", "two", storage=storage)
    await publish_many(conn, "three")

    popped = await pop(conn, 10)

    assert popped.messages == ["one", "two", "three"]
    assert await state(conn) == "ACTIVE"
    assert await ack(conn, popped) == []
    assert (await pop(conn, 10)).messages == []


async def test_pop_of_one_key_by_a_dead_group_delivers_at_once(conn: Any) -> None:
    """A pop that asks for one key of many gets that key's messages."""
    await dead_group(conn, "one", "two", "three", keys=["a", "b", "a"], lanes=4)

    assert (await pop(conn, 10, key="a")).messages == ["one", "three"]


async def test_pop_of_a_dead_single_key_group_delivers_at_once(conn: Any) -> None:
    """The group gets its message from behind thousands of others, at its return and later."""
    storage = await create_topic(conn)
    await subscribe_scope(conn, topic="t", key="a")
    others = ["x"] * 6000
    await publish_many(conn, *others, "one", keys=[*("b" for _ in others), "a"])
    assert await let_die(conn, storage) == 1

    popped = await pop(conn)

    assert popped.messages == ["one"]
    await ack(conn, popped)
    await publish_many(conn, *others, "two", keys=[*("b" for _ in others), "a"])
    assert (await pop(conn)).messages == ["two"]


async def test_sparse_poller_receives_every_message(conn: Any) -> None:
    """A job that polls less often than the heartbeat timeout gets everything published meanwhile."""
    storage = await dead_group(conn, "0")
    got: list[str] = []
    for n in range(1, 6):
        await publish_many(conn, str(n))
        popped = await pop(conn, 10)
        got += popped.messages
        await ack(conn, popped)
        assert await let_die(conn, storage) == 1

    assert got == ["0", "1", "2", "3", "4", "5"]


async def test_pop_of_a_dead_group_far_behind_delivers_its_history(conn: Any) -> None:
    """The pop that begins a catch-up returns the first messages of the backlog."""
    storage = await create_topic(conn)
    await subscribe(conn, catch_up=json.dumps({"beside_from": 2}))
    await publish_many(conn, *map(str, range(20)))
    await let_die(conn, storage)

    assert (await pop(conn, 3)).messages == ["0", "1", "2"]


async def test_pop_that_starts_a_catch_up_works_beside_an_older_transaction(conn: Any, connect: Connect) -> None:
    """The position of a returning group is not mistaken for another server's while older transactions are open."""
    storage = await create_topic(conn)
    await subscribe(conn, catch_up=json.dumps({"beside_from": 2}))
    await publish_many(conn, *map(str, range(20)))
    await let_die(conn, storage)
    older = await connect()
    async with older.transaction():
        await older.execute("select pg_current_xact_id()")
        assert (await pop(conn, 3)).messages == ["0", "1", "2"]

    assert (await pop(conn, 100)).messages == [str(n) for n in range(3, 20)]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_pop_of_a_dead_group_delivers_in_every_isolation_level(conn: Any, isolation: str) -> None:
    """The pop that revives a group returns messages in every default isolation level of the database."""
    await dead_group(conn, "one", "two")
    await conn.execute(f"set default_transaction_isolation = '{isolation}'")

    assert (await pop(conn, 10)).messages == ["one", "two"]


async def test_pop_of_a_dead_group_reads_beyond_a_half_read_partition(conn: Any) -> None:
    """A group that stopped in the middle of a dropped partition gets newer messages at once."""
    storage = await create_topic(conn, retention="0", zero_subscription_retention="0", max_retention="10 min")
    await subscribe(conn)
    await publish_many(conn, *map(str, range(1000)))
    await publish_many(conn, "left over")
    first = await pop(conn, 1000)
    assert len(first.messages) == 1000
    await ack(conn, first)
    await rotate(conn, storage)
    await sweep(conn, storage)
    await let_die(conn, storage)

    async def is_dropped() -> None:
        await sweep(conn, storage, timedelta(minutes=20))
        assert await conn.fetchval("select count(*) from postbus.segment") == 0

    await eventually(is_dropped, within=30)
    await publish_many(conn, "new")

    assert (await pop(conn, 10)).messages == ["new"]


async def test_rolled_back_pop_leaves_the_group_dead(conn: Any) -> None:
    """Neither the resurrection nor the popped messages outlive the transaction."""
    await dead_group(conn, "one")
    transaction = conn.transaction()
    await transaction.start()
    assert (await pop(conn)).messages == ["one"]
    await transaction.rollback()

    assert await state(conn) == "DEAD"
    assert (await pop(conn)).messages == ["one"]


async def test_pop_of_a_dead_group_delivers_retried_and_buffered_messages(conn: Any) -> None:
    """Failed messages, and those an earlier pop buffered, return with the group."""
    storage = await create_topic(conn)
    await subscribe(conn)
    await publish_many(conn, "failed", "buffered")
    assert await retry(conn, await pop(conn)) != {}
    await publish_many(conn, "new")
    assert await let_die(conn, storage) == 1

    assert sorted((await pop(conn, 10)).messages + (await pop(conn, 10)).messages) == ["buffered", "failed", "new"]
    assert await state(conn) == "ACTIVE"


async def test_pop_in_a_writing_transaction_is_refused_for_a_dead_group(conn: Any) -> None:
    """A DEAD group cannot return there, and an empty answer would look like an empty topic."""
    storage = await create_topic(conn, namespace="n")
    await conn.fetch("select * from postbus.subscribe_scope('g', namespace => 'n')")
    await let_die(conn, storage)
    for statement in ("select postbus.pop('t', 'g')", "select postbus.pop_scope('g', 'n')"):
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute("select pg_current_xact_id()")
        await refused(conn.execute(statement), "PB431")
        await transaction.rollback()


async def test_pop_of_a_dead_group_leaves_open_transactions_for_later(conn: Any, connect: Connect) -> None:
    """A message whose transaction was open while the group returned is delivered after its commit."""
    await dead_group(conn, "one")
    publisher = await connect()
    async with publisher.transaction():
        await publish_many(publisher, "late")
        await publish_many(conn, "two")
        assert (await pop(conn, 10)).messages == ["one", "two"]

    assert (await pop(conn, 10)).messages == ["late"]


async def test_pop_of_a_wide_scope_revives_all_its_topics_and_delivers(conn: Any) -> None:
    """One pop of a namespace revives the group in each topic, and returns messages of one of them."""
    for topic in ("a", "b", "c"):
        storage = await create_topic(conn, topic, namespace="n")
    await conn.fetch("select * from postbus.subscribe_scope('g', namespace => 'n')")
    for topic in ("a", "b"):
        await publish_many(conn, f"in {topic}", topic=topic)
    assert await let_die(conn, storage) == 3

    popped = [as_pop(await conn.fetch("select * from postbus.pop_scope('g', 'n', max_count => 5)")) for _ in range(2)]

    assert sorted(one.messages[0] for one in popped) == ["in a", "in b"]
    assert [await state(conn, topic) for topic in ("a", "b", "c")] == ["ACTIVE"] * 3


async def test_pop_of_a_wide_scope_keeps_quiet_topics_alive(conn: Any) -> None:
    """A group that pops a namespace is also seen in topics without messages."""
    await create_topic(conn, "busy", namespace="n")
    await create_topic(conn, "quiet", namespace="n")
    await conn.fetch("select * from postbus.subscribe_scope('g', namespace => 'n')")
    await publish_many(conn, "one", topic="busy")
    await seen_ago(conn, timedelta(minutes=2))

    await conn.fetch("select * from postbus.pop_scope('g', 'n')")

    assert not await conn.fetchval(
        "select count(*) from postbus.subscription where seen_at < clock_timestamp() - interval '1 min'"
    )


async def test_pop_beside_a_reviving_pop_does_not_wait(conn: Any, connect: Connect) -> None:
    """While one transaction revives a group, another pop returns empty; later it gets the rest."""
    await dead_group(conn, "one", "two")
    other = await connect()
    async with other.transaction():
        assert (await pop(other)).messages == ["one"]
        beside = await pop(conn)
        assert (beside.messages, beside.more) == ([], False), "to ask again at once would be a busy loop"

    assert (await pop(conn)).messages == ["two"]


@pytest.mark.parametrize("how", ["ack", "ack_leases", "retry", "dead_letter", "release", "extend"])
@pytest.mark.parametrize("is_dead", [False, True])
async def test_settling_and_extending_are_signs_of_life(conn: Any, how: str, is_dead: bool) -> None:
    """A group whose messages are settled or extended is not taken for DEAD, or returns to life."""
    storage = await create_topic(conn)
    await subscribe(conn)
    await publish_many(conn, "one", "two")
    popped = await pop(conn, 1, lease=timedelta(minutes=1))
    if is_dead:
        assert await let_die(conn, storage) == 1
    else:
        await seen_ago(conn, timedelta(minutes=2))

    match how:
        case "ack_leases":
            lost = await conn.fetchval("select postbus.ack_leases(array[$1::uuid])", popped.token)
        case "extend":
            lost = await conn.fetchval("select postbus.extend(array[$1::uuid], '1 h')", popped.token)
        case "retry":
            lost = [] if await retry(conn, popped) == {popped.ids[0]: "retried"} else popped.ids
        case "dead_letter":
            lost = await conn.fetchval("select postbus.dead_letter($1, $2, 'no')", popped.token, popped.ids)
        case _:
            lost = await conn.fetchval(f"select postbus.{how}($1, $2)", popped.token, popped.ids)

    assert lost == []
    assert await state(conn) == "ACTIVE"
    assert is_dead or await was_seen(conn, storage)


async def test_frequent_settlements_do_not_update_the_group_each_time(conn: Any) -> None:
    """A group seen a moment ago is not written again."""
    await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, *map(str, range(20)))
    before = await conn.fetchval("select xmin::text from postbus.subscription where id = $1", group)
    popped = await pop(conn, 20)
    for one in popped.ids:
        await conn.execute("select postbus.extend(array[$1::uuid], '1 min')", popped.token)
        await ack(conn, popped, one)

    assert await conn.fetchval("select xmin::text from postbus.subscription where id = $1", group) == before


async def test_group_lives_while_a_settling_transaction_is_open(conn: Any, connect: Connect) -> None:
    """A consumer may ack first and work on in the same transaction without its group dying."""
    storage = await create_topic(conn)
    await subscribe(conn)
    await publish_many(conn, "one")
    popped = await pop(conn)
    await seen_ago(conn, timedelta(minutes=20))
    settling = await connect()
    async with settling.transaction():
        await ack(settling, popped)
        await conn.execute("set lock_timeout = '2s'")
        assert await let_die(conn, storage) == 0
    assert await let_die(conn, storage, timedelta(minutes=20)) == 1


async def test_settlement_in_an_open_transaction_locks_no_group(conn: Any, connect: Connect) -> None:
    """While a transaction that settled stays open, the group can be paused and others can subscribe."""
    await create_topic(conn)
    await subscribe(conn)
    await publish_many(conn, "one", "two")
    popped = await pop(conn, 2)
    await seen_ago(conn, timedelta(minutes=2))
    settling = await connect()
    async with settling.transaction():
        await ack(settling, popped, popped.ids[0])
        await conn.execute("set lock_timeout = '2s'")
        await subscribe(conn)
        await conn.execute("select postbus.set_group_state('t', 'g', 'PAUSED')")
        await conn.execute("select postbus.set_group_state('t', 'g', 'ACTIVE')")


async def test_many_settlements_of_one_transaction_leave_one_sign_of_life(conn: Any) -> None:
    """However many messages a batch has, the group is recorded once per half of a heartbeat interval."""
    storage = await create_topic(conn)
    await subscribe(conn)
    await publish_many(conn, *map(str, range(20)))
    popped = await pop(conn, 20)
    await seen_ago(conn, timedelta(minutes=2))
    async with conn.transaction():
        for one in popped.ids:
            await ack(conn, popped, one)
        assert await conn.fetchval("select count(*) from postbus.sign_of_life") == 1

    assert await was_seen(conn, storage)
    assert await conn.fetchval("select count(*) from postbus.sign_of_life") == 0


async def test_group_lives_while_a_consumer_holds_a_lease(conn: Any) -> None:
    """A consumer that asked for an hour may work for an hour; after that the group can die."""
    storage = await create_topic(conn)
    await subscribe(conn)
    await publish_many(conn, "one")
    await pop(conn, lease=timedelta(hours=1))

    for minutes in range(0, 60, 2):
        assert (await sweep(conn, storage, timedelta(minutes=minutes)))["dead"] == 0
    assert await let_die(conn, storage, timedelta(minutes=66)) == 1


@pytest.mark.parametrize("how", ["hold", "extend"])
async def test_long_work_for_a_scope_keeps_all_its_topics_alive(conn: Any, how: str) -> None:
    """While a consumer has messages of one topic in hand, publishers to the others are not refused."""
    storages = {
        await create_topic(conn, "a", namespace="n"),
        await create_topic(conn, "b", namespace="n", retention="5 d", block_writes_on_zero_subscriptions=True),
    }
    assert len(storages) == 2
    await conn.fetch("select * from postbus.subscribe_scope('g', namespace => 'n')")
    await publish_many(conn, "one", "two", topic="a")
    popped = as_pop(await conn.fetch("select * from postbus.pop_scope('g', 'n', max_count => 2, lease => '30 min')"))

    for minutes in range(2, 30, 2):
        later = timedelta(minutes=minutes)
        if how == "extend":
            until = later + timedelta(minutes=3)
            await conn.execute("select postbus.extend(array[$1::uuid], $2)", popped.token, until)
        assert [(await sweep(conn, storage, later))["dead"] for storage in storages] == [0, 0]
    await publish_many(conn, "three", topic="b")
    await ack(conn, popped)
    for storage in storages:
        assert await let_die(conn, storage, timedelta(minutes=40)) == 1
    assert await conn.fetchval("select count(*) from postbus.scope_pop") == 0


async def test_pop_of_one_topic_of_a_scope_is_no_sign_of_life_in_others(conn: Any) -> None:
    """Another consumer may be responsible for those topics, and gone."""
    storage = await create_topic(conn, "a", namespace="n")
    await create_topic(conn, "b", namespace="n")
    await conn.fetch("select * from postbus.subscribe_scope('g', namespace => 'n')")
    await publish_many(conn, "one", topic="a")
    await pop(conn, topic="a", lease=timedelta(hours=1))

    assert await let_die(conn, storage) == 1
    assert [await state(conn, topic) for topic in ("a", "b")] == ["ACTIVE", "DEAD"]


async def test_token_of_another_group_is_no_sign_of_life(conn: Any) -> None:
    """Only the group whose messages are held is seen; settling for one group does not keep another alive."""
    storage = await create_topic(conn)
    await subscribe(conn)
    other = await subscribe(conn, "other")
    await publish_many(conn, "one")
    popped = await pop(conn)
    await pop(conn, group="other")
    await seen_ago(conn, timedelta(minutes=2))

    await conn.execute("select postbus.extend(array[$1::uuid], '1 min')", popped.token)
    await ack(conn, popped)
    assert await conn.fetchval("select postbus.ack(gen_random_uuid(), array[1::bigint])") == [1]
    # its lease is no sign of life either
    await conn.execute("delete from postbus.deferred where subscription_id = $1", other)
    await sweep(conn, storage)

    seen = "select seen_at > clock_timestamp() - interval '10 s' from postbus.subscription where group_name = $1"
    assert [await conn.fetchval(seen, group) for group in ("g", "other")] == [True, False]


async def test_heartbeat_call_keeps_a_group_alive(conn: Any) -> None:
    """A consumer that does nothing else for a while can show that it is alive."""
    storage = await create_topic(conn)
    await subscribe(conn)
    await seen_ago(conn, timedelta(minutes=2))

    told = await conn.fetch("select * from postbus.send_heartbeat('g', 't')")

    assert [tuple(row) for row in told] == [("t", "ACTIVE", None, None)]
    assert await was_seen(conn, storage)


async def test_heartbeat_call_revives_a_dead_group(conn: Any) -> None:
    """The answer says how many messages the group missed, and they are delivered."""
    await dead_group(conn, "one", "two")

    told = await conn.fetch("select * from postbus.send_heartbeat('g', 't')")

    assert [tuple(row) for row in told] == [("t", "ACTIVE", 2, 0)]
    assert (await pop(conn, 10)).messages == ["one", "two"]


async def test_missed_messages_include_late_commits(conn: Any, connect: Connect) -> None:
    """These include messages behind the group's position, from transactions that were open when it read."""
    storage = await create_topic(conn, lanes=2)
    group = await subscribe(conn)
    publishers = [await connect() for _ in range(2)]
    transactions = [publisher.transaction() for publisher in publishers]
    for transaction, publisher in zip(transactions, publishers, strict=True):
        await transaction.start()
        await publish_many(publisher, "late", "later", keys=["a", "b"])
        await publish_many(conn, "read")
    assert await pass_all(conn, group) == 2
    await publish_many(conn, "new")
    for transaction in transactions:
        await transaction.commit()
    await let_die(conn, storage)

    assert await conn.fetchval("select missed from postbus.send_heartbeat('g', 't')") == 5
    assert sorted((await pop(conn, 10)).messages) == ["late", "late", "later", "later", "new"]


async def test_heartbeat_call_for_a_scope_reaches_all_its_topics(conn: Any) -> None:
    """One call for a pattern reaches each of its topics."""
    for topic in ("o.a", "o.b"):
        storage = await create_topic(conn, topic)
    await conn.fetch("select * from postbus.subscribe_scope('g', pattern => 'o.*')")
    await let_die(conn, storage)

    told = await conn.fetch("select * from postbus.send_heartbeat('g', pattern => 'o.*')")

    assert [(row["topic_name"], row["state"], row["missed"]) for row in told] == [
        ("o.a", "ACTIVE", 0),
        ("o.b", "ACTIVE", 0),
    ]


async def test_heartbeat_call_for_an_unknown_group_is_refused(conn: Any) -> None:
    """A group without a subscription is refused, and a paused group stays paused."""
    await create_topic(conn)
    await refused(conn.execute("select postbus.send_heartbeat('g', 't')"), "PB406")
    await refused(conn.execute("select postbus.send_heartbeat('g', pattern => 'o.*')"), "PB406")
    await subscribe(conn)
    await conn.execute("select postbus.set_group_state('t', 'g', 'PAUSED')")

    assert (await conn.fetchrow("select * from postbus.send_heartbeat('g', 't')"))["state"] == "PAUSED"
