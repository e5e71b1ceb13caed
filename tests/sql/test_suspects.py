"""Suspects: messages in hand when a process ended are charged only if they were alone, and tried alone next."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from support import log_sql
from support.log_sql import create_topic, defer, publish_many, read, settle_deferred, subscribe, take, vanish
from support.pop_sql import Pop, pop
from support.queue_sql import ack, claim, payloads, publish, states

LONG = timedelta(hours=1)


async def lost(conn: Any, claimed: Any) -> datetime:
    """Let a lease end without an answer. Returns when."""
    await conn.execute("select postbus.return_expired_as_of(as_of => $1)", claimed["ends_at"])
    return claimed["ends_at"]  # type: ignore[no-any-return]


async def claim_alone(conn: Any, member: str = "w", as_of: datetime | None = None) -> Any:
    """Claim as a worker does that handles nothing else meanwhile."""
    return await conn.fetchrow(
        "select * from postbus.claim_suspects_as_of('t', $1, is_promised => true, "
        "as_of => coalesce($2, clock_timestamp()))",
        member,
        as_of,
    )


async def work(conn: Any, count: int = 10, member: str = "w") -> Any:
    """Claim as a worker does beside other work."""
    return await claim(conn, count, member=member, with_suspects=False)


# Queues


async def test_messages_in_hand_together_are_charged_no_attempt(conn: Any) -> None:
    """Another message may have ended the process, and some handlers were never called."""
    await conn.execute("""select postbus.create_topic('t', '{"max_attempts": 2}')""")
    await publish(conn, *map(str, range(100)))
    claimed = await work(conn, 100)
    sizes = []
    while claimed["token"] is not None:
        sizes.append(len(claimed["ids"]))
        assert set(claimed["attempts"]) == {1}
        await (lost if sizes[-1] > 1 else ack)(conn, claimed)
        claimed = await claim_alone(conn)
    assert sizes == [100, *[12] * 8, 4, *[1] * 100]
    assert await states(conn) == {}


async def test_worker_does_not_take_suspects_beside_other_messages(conn: Any) -> None:
    """Only a claim that promises to do nothing else gets them."""
    await publish(conn, "a", "b")
    await lost(conn, await work(conn))
    assert (await work(conn))["token"] is None
    assert payloads(await claim_alone(conn)) == ["a"]
    assert payloads(await claim_alone(conn)) == ["b"]
    assert (await claim_alone(conn))["token"] is None


async def test_message_that_ends_its_process_alone_is_given_up(conn: Any) -> None:
    """Each call that it was alone in counts and is delayed longer; the first one, beside others, does not count."""
    await conn.execute("""select postbus.create_topic('t', '{"max_attempts": 3}')""")
    await publish(conn, "poison", "innocent")
    await lost(conn, await work(conn))
    now = None
    for attempt in (1, 2, 3):
        claimed = await claim_alone(conn, as_of=now)
        if payloads(claimed) == ["innocent"]:
            await ack(conn, claimed)
            claimed = await claim_alone(conn, as_of=now)
        assert (payloads(claimed), claimed["attempts"]) == (["poison"], [attempt])
        now = await lost(conn, claimed) + LONG
    dead = await conn.fetchrow("select reason, attempts from postbus.dead_letters")
    assert tuple(dead) == ("the lease ended 3 times without an answer", 3)
    assert await states(conn) == {"dead": 1}


async def test_suspect_that_fails_is_no_longer_a_suspect(conn: Any) -> None:
    """A call that raises ends no process, so the message is retried like any other."""
    await publish(conn, "a", "b")
    await lost(conn, await work(conn))
    claimed = await claim_alone(conn)
    await conn.fetch("select * from postbus.retry($1, $2, delay => '0')", claimed["token"], claimed["ids"])
    assert (await work(conn))["attempts"] == [2]


async def test_released_suspect_is_charged_no_attempt(conn: Any) -> None:
    """An orderly stop returns the message as it was."""
    await publish(conn, "a", "b")
    await lost(conn, await work(conn))
    claimed = await claim_alone(conn)
    await conn.execute("select postbus.release($1, $2)", claimed["token"], claimed["ids"])
    assert (await work(conn))["attempts"] == [1]


async def test_suspects_of_an_ordered_queue_keep_their_order(conn: Any) -> None:
    """The key waits for the suspect, and goes on when it is done."""
    await conn.execute("""select postbus.create_topic('t', '{"ordered": true}')""")
    await publish(conn, "a1", "a2", key="a")
    await publish(conn, "b1", "b2", key="b")
    await lost(conn, await work(conn))
    assert (await work(conn))["token"] is None
    for expected in ("a1", "b1"):
        claimed = await claim_alone(conn)
        assert payloads(claimed) == [expected]
        await ack(conn, claimed)
    assert payloads(await work(conn)) == ["a2", "b2"]


async def test_single_popped_message_is_charged(conn: Any) -> None:
    """A consumer that pops one message at a time, and dies, had only that one in hand."""
    await publish(conn, "a")
    first = await claim(conn, 1, member="me")
    now = await lost(conn, first)
    assert (await claim(conn, 1, member="me", as_of=now))["attempts"] == [2]


async def test_messages_of_several_pops_of_one_consumer_are_not_charged(conn: Any) -> None:
    """This holds whichever of the leases ends first, and however much later the other ends."""
    await publish(conn, "a", "b")
    short = await claim(conn, 1, member="me")
    long = await claim(conn, 1, member="me", lease=LONG)
    await lost(conn, short)
    now = await lost(conn, long)
    assert await conn.fetchval("select max(attempts) from postbus.delayed") == 0
    assert payloads(await claim(conn, 10, member="me", as_of=now)) == ["a"]


async def test_suspect_is_not_given_to_a_busy_consumer(conn: Any) -> None:
    """It would not be alone there. After a minute any consumer gets it."""
    await publish(conn, "a", "b")
    await lost(conn, await claim(conn, member="gone"))
    await publish(conn, "c", "d")
    assert payloads(await claim(conn, member="me")) == ["a"]
    assert payloads(await claim(conn, member="me")) == ["c", "d"]
    assert (await claim(conn, member="me"))["token"] is None
    now = await conn.fetchval("select clock_timestamp() + interval '2 minutes'")
    assert payloads(await claim(conn, member="me", as_of=now)) == ["b"]


async def test_suspect_given_to_a_busy_consumer_is_charged_no_attempt(conn: Any) -> None:
    """It was not alone in hand: the consumer may have ended for another message."""
    await publish(conn, "a", "b")
    await lost(conn, await claim(conn, member="gone"))
    await publish(conn, "c")
    assert payloads(await claim(conn, member="me")) == ["a"]
    now = await conn.fetchval("select clock_timestamp() + interval '2 minutes'")
    await conn.execute("update postbus.lease set ends_at = ends_at + interval '1 hour'")
    second = await claim(conn, member="me", as_of=now)
    assert (payloads(second), second["attempts"]) == (["b"], [1])
    await lost(conn, second)
    assert await conn.fetchval("select attempts from postbus.delayed") == 0


async def test_worker_that_cannot_be_alone_charges_no_attempt(conn: Any) -> None:
    """The worker also handles messages of a group, which its leases do not show."""
    await publish(conn, "a", "b")
    await lost(conn, await work(conn))
    sql = "select * from postbus.claim_suspects_as_of('t', 'w', is_promised => null, as_of => $1)"
    assert (await conn.fetchrow(sql, await conn.fetchval("select clock_timestamp()")))["token"] is None
    now = await conn.fetchval("select clock_timestamp() + interval '2 minutes'")
    claimed = await conn.fetchrow(sql, now)
    assert payloads(claimed) == ["a"]
    await lost(conn, claimed)
    assert await conn.fetchval("select max(attempts) from postbus.delayed") == 0


async def test_suspect_that_outlasts_its_time_alone_is_not_charged(conn: Any) -> None:
    """It returns alone, behind messages not tried yet, and the number of such times is counted."""
    await publish(conn, "slow", "other")
    await lost(conn, await work(conn))
    now = None
    for outlasted in (None, 1, 2):
        claimed = await claim_alone(conn, as_of=now)
        assert (payloads(claimed), claimed["attempts"], claimed["outlasted"]) == (["slow"], [1], outlasted)
        await conn.execute("select postbus.not_alone($1)", claimed["token"])
        now = await lost(conn, claimed) + LONG
        if outlasted is None:
            other = await claim_alone(conn, as_of=now)
            assert payloads(other) == ["other"]
            await ack(conn, other)
    claimed = await claim_alone(conn, as_of=now)
    now = await lost(conn, claimed) + LONG
    claimed = await claim_alone(conn, as_of=now)
    assert (claimed["attempts"], claimed["outlasted"]) == ([2], 3), "alone this time, and charged"


async def test_settled_lease_is_not_marked(conn: Any) -> None:
    """The call may end while others are allowed to go on."""
    await publish(conn, "a", "b")
    await lost(conn, await work(conn))
    claimed = await claim_alone(conn)
    await ack(conn, claimed)
    await conn.execute("select postbus.not_alone($1)", claimed["token"])
    assert await conn.fetchval("select count(*) from postbus.lease") == 0


# Groups with handlers


async def test_retries_in_hand_together_are_charged_no_attempt(conn: Any) -> None:
    """The next holder of the lane finds them as suspects, with the attempts they had."""
    await create_topic(conn)
    group = await subscribe(conn)
    ids = await publish_many(conn, "a", "b")
    (lane,) = await take(conn, "first", group)
    await defer(conn, lane, await read(conn, lane.cursor), "retry", "retry")
    assert [row["attempts"] for row in await log_sql.claim_deferred(conn, lane)] == [2, 2]

    await vanish(conn, "first")
    (lane,) = await take(conn, "second", group)
    now = await conn.fetchval("select clock_timestamp() + interval '1 hour'")
    (told,) = await log_sql.claim_deferred(conn, lane, as_of=now)
    assert (told["alone"], told["suspected"]) == (None, True)
    for expected in ids:
        (row,) = await claim_retrying_alone(conn, lane, now)
        assert (row["id"], row["attempts"], row["alone"]) == (expected, 2, True)
        await settle_deferred(conn, lane, [expected], "done")
    assert await claim_retrying_alone(conn, lane, now) == []


async def claim_retrying_alone(conn: Any, lane: Any, as_of: Any) -> Any:
    return await conn.fetch(
        "select * from postbus.claim_deferred_as_of(array[$1::uuid], 1, $2, is_alone => true)", lane.token, as_of
    )


async def test_retry_that_ends_its_process_alone_is_charged(conn: Any) -> None:
    """It is charged each time, and returns alone after a delay."""
    await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, "a")
    (lane,) = await take(conn, "w", group)
    assert await defer(conn, lane, await read(conn, lane.cursor), "suspect") == ["suspected"]
    now = await conn.fetchval("select clock_timestamp()")
    for attempt in (1, 2, 3):
        (row,) = await claim_retrying_alone(conn, lane, now)
        assert row["attempts"] == attempt
        now = row["due_at"]
        assert await log_sql.claim_deferred(conn, lane, as_of=now) == []
        now += timedelta(hours=2)


async def test_suspect_of_a_group_beside_others_is_charged_no_attempt(conn: Any) -> None:
    """Only the lane's holder can say that it is not alone."""
    await create_topic(conn)
    group = await subscribe(conn)
    (id,) = await publish_many(conn, "a")
    (lane,) = await take(conn, "w", group)
    await defer(conn, lane, await read(conn, lane.cursor), "suspect")
    now = await conn.fetchval("select clock_timestamp()")
    for outlasted in (None, 1, 2):
        (row,) = await claim_retrying_alone(conn, lane, now)
        assert (row["attempts"], row["outlasted"]) == (1, outlasted)
        await conn.execute("select postbus.not_alone(gen_random_uuid(), $1)", id)
        assert await conn.fetchval("select alone from postbus.deferred")
        await conn.execute("select postbus.not_alone($1, $2)", lane.token, id)
        now = row["due_at"]
        assert await claim_retrying_alone(conn, lane, now) == [], "others come first"
        now += LONG
    (row,) = await claim_retrying_alone(conn, lane, now)
    await settle_deferred(conn, lane, [id], "retry")
    assert await conn.fetchval("select outlasted from postbus.deferred") is None


async def test_retry_with_an_extended_lease_is_not_claimed_again(conn: Any) -> None:
    """A running handler is one attempt, however long it takes."""
    await create_topic(conn)
    group = await subscribe(conn)
    ids = await publish_many(conn, "a")
    (lane,) = await take(conn, "w", group)
    await defer(conn, lane, await read(conn, lane.cursor), "retry")
    (row,) = await log_sql.claim_deferred(conn, lane)
    await conn.execute("update postbus.deferred set due_at = clock_timestamp() + interval '1 second'")
    await conn.execute("select postbus.extend_deferred(array[$1::uuid], $2)", lane.token, ids)
    assert await log_sql.claim_deferred(conn, lane, as_of=row["due_at"]) == []
    assert await conn.fetchval("select attempts from postbus.deferred") == 2


# Pops of groups


async def a_group(conn: Any, *messages: str, keys: list[str | None] | None = None) -> None:
    await create_topic(conn)
    await subscribe(conn)
    await publish_many(conn, *messages, keys=keys)


async def ack_pop(conn: Any, popped: Pop) -> None:
    assert await conn.fetchval("select postbus.ack($1, $2)", popped.token, popped.ids) == []


async def test_messages_popped_together_are_charged_no_attempt(conn: Any) -> None:
    """They return one by one, each alone, as first attempts."""
    await a_group(conn, "a", "b", "c")
    await pop(conn, 3)
    now = await conn.fetchval("select clock_timestamp() + interval '1 hour'")
    for expected in ("a", "b", "c"):
        popped = await pop(conn, 3, as_of=now)
        assert (popped.messages, popped.attempts) == ([expected], [1])
        await ack_pop(conn, popped)


async def test_popped_message_behind_a_lost_one_is_charged_no_attempt(conn: Any) -> None:
    """It waits behind the first of its key, and comes alone after it."""
    await a_group(conn, "a1", "a2", keys=["a", "a"])
    await pop(conn, 2)
    now = await conn.fetchval("select clock_timestamp() + interval '1 hour'")
    first = await pop(conn, 2, as_of=now)
    assert (first.messages, first.attempts) == (["a1"], [1])
    await ack_pop(conn, first)
    second = await pop(conn, 2, as_of=now)
    assert (second.messages, second.attempts) == (["a2"], [1])
