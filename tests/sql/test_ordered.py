"""Strict order per key, on request."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from support.eventually import eventually
from support.fix_database import Connect
from support.queue_sql import ack, claim, is_waiting, payloads, publish, states


@pytest.fixture(autouse=True)
async def ordered_topic(conn: Any) -> None:
    await conn.execute("""select postbus.create_topic('t', '{"ordered": true, "max_attempts": 3}')""")


async def test_only_one_message_of_a_key_is_in_hand(conn: Any) -> None:
    """A claim takes the first message of each key, and none other of it while the first is in hand."""
    await publish(conn, "a1", "a2", key="a")
    await publish(conn, "b1", "b2", key="b")

    first = await claim(conn)
    second = await claim(conn, scan_floor=first["next_scan_floor"])

    assert payloads(first) == ["a1", "b1"]
    assert second["token"] is None
    assert await states(conn) == {"leased": 2, "parked": 2}


async def test_next_message_of_a_key_comes_after_the_ack(conn: Any) -> None:
    """An ack passes the key on, in order, until no message of it is left."""
    await publish(conn, "a1", "a2", "a3", key="a")
    floor, got = None, []
    for _ in range(3):
        claimed = await claim(conn, scan_floor=floor)
        floor = claimed["next_scan_floor"]
        got += payloads(claimed)
        await ack(conn, claimed)

    assert got == ["a1", "a2", "a3"]
    assert await states(conn) == {}
    assert await conn.fetchval("select count(*) from postbus.busy_key") == 0


async def test_failing_message_blocks_its_key_only(conn: Any) -> None:
    """While a message waits for its next attempt, its key waits with it and other keys go on."""
    await publish(conn, "a1", "a2", key="a")
    await publish(conn, "b1", "b2", key="b")
    first = await claim(conn)
    await conn.fetch("select * from postbus.retry($1, $2, '1 hour', 'boom')", first["token"], [first["ids"][0]])
    await conn.fetch("select postbus.ack($1, $2)", first["token"], [first["ids"][1]])

    second = await claim(conn)
    await ack(conn, second)
    third = await claim(conn, as_of=await conn.fetchval("select clock_timestamp() + interval '61 min'"))

    assert payloads(second) == ["b2"]
    assert payloads(third) == ["a1"]
    await ack(conn, third)
    assert payloads(await claim(conn)) == ["a2"]


async def test_dead_letter_frees_its_key(conn: Any) -> None:
    """A message that was given up no longer blocks its key."""
    await publish(conn, "a1", "a2", key="a")
    first = await claim(conn)
    await conn.execute("select postbus.dead_letter($1, $2, 'no')", first["token"], first["ids"])

    assert payloads(await claim(conn)) == ["a2"]


async def test_expired_lease_keeps_the_order(conn: Any) -> None:
    """The message of a dead member returns before the rest of its key, until its attempts are used up."""
    await publish(conn, "a1", "a2", key="a")
    now = await conn.fetchval("select clock_timestamp()")
    for _ in range(3):
        claimed = await claim(conn, as_of=now)
        assert payloads(claimed) == ["a1"]
        await conn.execute("select postbus.return_expired_as_of(as_of => $1)", claimed["ends_at"])
        now = claimed["ends_at"] + timedelta(minutes=1)

    assert payloads(await claim(conn, as_of=now)) == ["a2"]


async def test_key_waits_for_a_message_whose_lease_ended_twice(conn: Any) -> None:
    """From the second expired lease on, the message waits for a while, and its key waits with it."""
    await publish(conn, "a1", "a2", key="a")
    now = await conn.fetchval("select clock_timestamp()")
    for _ in range(2):
        claimed = await claim(conn, as_of=now)
        now = claimed["ends_at"]
        await conn.execute("select postbus.return_expired_as_of(as_of => $1)", now)

    assert (await claim(conn, as_of=now))["token"] is None
    assert payloads(await claim(conn, as_of=now + timedelta(minutes=1))) == ["a1"]


async def test_released_messages_keep_the_order(conn: Any) -> None:
    """A message that was released untouched is the next of its key again."""
    await publish(conn, "a1", "a2", key="a")
    claimed = await claim(conn)
    await conn.execute("select postbus.release($1, $2)", claimed["token"], claimed["ids"])

    assert payloads(await claim(conn)) == ["a1"]


async def test_order_is_by_publishing_not_by_transaction_id(connect: Connect) -> None:
    """The transaction with the lower id publishes second, and its message comes second."""
    early, late, worker = await connect(), await connect(), await connect()
    transaction = early.transaction()
    await transaction.start()
    await early.fetchval("select pg_current_xact_id()")  # the lower id …
    await publish(late, "first", key="a")
    await publish(early, "second", key="a")  # … publishes and commits later
    await transaction.commit()

    claimed = await claim(worker, 1)
    assert payloads(claimed) == ["first"]
    await ack(worker, claimed)
    assert payloads(await claim(worker, 1)) == ["second"]


async def test_backlog_of_one_key_does_not_hide_other_keys(conn: Any) -> None:
    """Claims find the messages of other keys behind a long backlog of a busy key."""
    await conn.execute(
        "select postbus.publish_many('t', array_fill('x'::bytea, array[900]), "
        "keys => array_fill('hot'::text, array[900]))"
    )
    await publish(conn, "cold", key="cold")

    first = await claim(conn, 10)
    second = await claim(conn, 10, scan_floor=first["next_scan_floor"])

    assert (payloads(first), first["more"]) == (["x"], True)
    assert payloads(second) == ["cold"]


async def test_scheduled_message_is_ordered_from_when_it_is_due(conn: Any) -> None:
    """A delayed message does not block its key before it is due."""
    await publish(conn, "scheduled", key="a", delay=timedelta(hours=1))
    await publish(conn, "now", key="a")

    claimed = await claim(conn)

    assert payloads(claimed) == ["now"]


async def test_purging_an_ordered_topic_frees_its_keys(conn: Any) -> None:
    """After a purge, a key whose message waited for a retry can be used again."""
    await publish(conn, "a1", "a2", key="a")
    claimed = await claim(conn)
    await conn.fetch("select * from postbus.retry($1, $2, '1 hour')", claimed["token"], claimed["ids"])
    await publish(conn, "b1", "b2", key="b")
    held = await claim(conn)

    assert await conn.fetchval("select postbus.purge_topic('t')") == 3
    await publish(conn, "a3", key="a")
    await publish(conn, "b3", key="b")

    assert payloads(await claim(conn)) == ["a3"]
    await ack(conn, held)
    assert payloads(await claim(conn)) == ["b3"]


async def test_message_without_a_key_is_refused(conn: Any) -> None:
    """An ordered topic needs a key to know what to keep in order."""
    with pytest.raises(asyncpg.PostgresError, match="needs a key"):
        await publish(conn, "one")


async def test_order_cannot_be_changed_while_the_topic_has_messages(conn: Any) -> None:
    """Order can be switched neither on nor off with messages in the topic."""
    await publish(conn, "a1", key="a")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await conn.execute("""select postbus.set_topic('t', '{"ordered": false}')""")
    assert caught.value.sqlstate == "PB408"


async def test_message_published_before_the_topic_was_ordered_is_delivered(connect: Connect) -> None:
    """A transaction that was open while its topic became ordered loses nothing."""
    slow, conn = await connect(), await connect()
    await conn.execute("""select postbus.create_topic('u', '{}')""")
    transaction = slow.transaction()
    await transaction.start()
    await publish(slow, "unordered", topic="u", key="a")
    await conn.execute("""select postbus.set_topic('u', '{"ordered": true}')""")
    await publish(conn, "ordered", topic="u", key="a")
    await transaction.commit()

    assert sorted(payloads(await claim(conn, topic="u"))) == ["ordered", "unordered"]


async def test_key_is_not_lost_when_its_last_ack_meets_a_claim(connect: Connect) -> None:
    """A claim that meets a new message of a key being passed on skips the message, and takes it next time."""
    acker, claimer, publisher = await connect(), await connect(), await connect()
    await publish(acker, "a1", key="a")
    claimed = await claim(acker)

    async with acker.transaction():
        await ack(acker, claimed)  # sees no next message and deletes the busy key
        await publish(publisher, "a2", key="a")
        meanwhile = await claim(claimer)  # does not wait

    assert meanwhile["token"] is None
    assert meanwhile["next_due"] < timedelta(seconds=1)
    assert payloads(await claim(claimer, scan_floor=meanwhile["next_scan_floor"])) == ["a2"]


async def test_two_claimers_of_one_key_keep_its_order(connect: Connect) -> None:
    """A claimer that met only the second message of a key leaves it behind the first."""
    a, b, observer = await connect(), await connect(), await connect()
    await publish(a, "a1", key="a")
    claiming = a.transaction()
    await claiming.start()
    first = await claim(a, 1)  # holds a1, not committed
    await publish(observer, "a2", key="a")
    second = asyncio.create_task(claim(b, 1))  # meets a2

    async def b_waits() -> None:
        assert await is_waiting(observer, b.get_server_pid())

    await eventually(b_waits)
    await claiming.commit()

    assert payloads(first) == ["a1"]
    assert (await second)["token"] is None
    await ack(a, first)
    assert payloads(await claim(b, 1, scan_floor=(await second)["next_scan_floor"])) == ["a2"]


async def test_messages_left_by_another_claimer_stay_above_the_scan_floor(connect: Connect) -> None:
    """A claimer that examines many messages and takes one hides the others from nobody."""
    a, b = await connect(), await connect()
    for n in range(10):
        await publish(a, f"m{n}", key=f"k{n}")
    async with a.transaction():
        await claim(a, 1)
        await publish(b, "new", key="new")
        second = await claim(b, 1)

    assert payloads(second) == ["new"]
    assert len((await claim(b, 20, scan_floor=second["next_scan_floor"]))["ids"]) == 9


async def test_dead_letters_without_a_key_can_be_redriven_into_an_ordered_topic(conn: Any) -> None:
    """A message without a key takes part in no order."""
    await conn.execute("select postbus.create_topic('u')")
    await publish(conn, "old", topic="u")
    claimed = await claim(conn, topic="u")
    await conn.execute("select postbus.dead_letter($1, $2, 'no')", claimed["token"], claimed["ids"])
    await conn.execute("""select postbus.set_topic('u', '{"ordered": true}')""")
    await conn.execute("select postbus.redrive('u')")
    for _ in range(2):
        claimed = await claim(conn, topic="u")
        assert payloads(claimed) == ["old"]
        await conn.execute("select postbus.release($1, $2)", claimed["token"], claimed["ids"])


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_settling_with_an_old_snapshot_is_refused(conn: Any, isolation: Any) -> None:
    """Order per key needs READ COMMITTED; any other level is an error, so that no key is left behind."""
    await publish(conn, "a1", key="a")
    claimed = await claim(conn)
    transaction = conn.transaction(isolation=isolation)
    await transaction.start()
    with pytest.raises(asyncpg.PostgresError, match="order of keys cannot be kept in a transaction"):
        await conn.fetch("select postbus.ack($1, $2)", claimed["token"], claimed["ids"])
    await transaction.rollback()

    assert await states(conn) == {"leased": 1}


async def test_purge_beside_a_claim_keeps_the_key(connect: Connect) -> None:
    """A purge that waits for a claimer sees what the claimer took, so the key stays with it."""
    a, purger = await connect(), await connect()
    await publish(a, "a1", key="a")
    first = await claim(a)
    await publish(a, "a2", key="a")
    await claim(a)  # parks a2
    claiming = a.transaction()
    await claiming.start()
    await ack(a, first)
    second = await claim(a)  # takes a2, not committed
    purging = asyncio.create_task(purger.fetchval("select postbus.purge_topic('t')"))
    observer = await connect()

    async def purger_waits() -> None:
        assert await is_waiting(observer, purger.get_server_pid())

    await eventually(purger_waits)
    await claiming.commit()
    await purging
    await publish(a, "a3", key="a")

    assert payloads(second) == ["a2"]
    assert (await claim(a))["token"] is None
    await ack(a, second)
    assert payloads(await claim(a)) == ["a3"]


async def test_message_from_before_the_order_passes_on_no_key(connect: Connect) -> None:
    """Settling such a message does not affect the message of its key that is in hand."""
    slow, conn = await connect(), await connect()
    await conn.execute("select postbus.create_topic('u')")
    transaction = slow.transaction()
    await transaction.start()
    await publish(slow, "u0", topic="u", key="k")
    await conn.execute("""select postbus.set_topic('u', '{"ordered": true}')""")
    await publish(conn, "o1", "o2", topic="u", key="k")
    first = await claim(conn, topic="u")
    await transaction.commit()
    second = await claim(conn, topic="u")
    await ack(conn, second)

    assert (payloads(first), payloads(second)) == (["o1"], ["u0"])
    assert (await claim(conn, topic="u"))["token"] is None


async def _publish_in_turns(connect: Connect, name: int, published: dict[str, list[str]], done: list[int]) -> None:
    conn = await connect()
    rng = random.Random(name)
    for n in range(60):
        key = rng.choice("abcde")
        transaction = conn.transaction()
        await transaction.start()
        if rng.random() < 0.5:
            await conn.fetchval("select pg_current_xact_id()")
        await conn.execute("select pg_advisory_xact_lock(ascii($1))", key)  # the application's own row lock
        text = f"{key}-{name}-{n}"
        await publish(conn, text, key=key, priority=rng.choice([4, 4, 6]))
        if rng.random() < 0.1:
            await transaction.rollback()
        else:
            published[key].append(text)  # before the commit, but nobody else has the key's lock
            await transaction.commit()
    done.append(name)


async def _consume_with_failures(
    connect: Connect, name: int, got: dict[str, list[str]], in_hand: set[str], done: list[int]
) -> None:
    conn = await connect()
    rng = random.Random(name)
    floor, idle = None, 0
    while idle < 5:
        claimed = await claim(conn, rng.choice([1, 3, 10]), scan_floor=floor)
        floor = claimed["next_scan_floor"]
        if claimed["token"] is None:
            idle += len(done) == 4 and not in_hand
            await asyncio.sleep(0.003)
            continue
        idle = 0
        for key in claimed["keys"]:
            assert key not in in_hand, "two messages of one key at a time"
            in_hand.add(key)
        await asyncio.sleep(rng.random() * 0.003)
        for message_id, key, text in zip(claimed["ids"], claimed["keys"], payloads(claimed), strict=True):
            if rng.random() < 0.2 and claimed["attempts"][claimed["ids"].index(message_id)] < 3:
                in_hand.discard(key)
                await conn.fetch("select * from postbus.retry($1, $2, '1 ms')", claimed["token"], [message_id])
            else:
                got[key].append(text)
                in_hand.discard(key)
                assert await conn.fetchval("select postbus.ack($1, $2)", claimed["token"], [message_id]) == []


async def test_order_holds_among_many_publishers_claimers_and_failures(connect: Connect) -> None:
    """Each key's messages are settled in the order of their commits, one at a time, none lost or doubled."""
    published: dict[str, list[str]] = {key: [] for key in "abcde"}
    got: dict[str, list[str]] = {key: [] for key in "abcde"}
    in_hand: set[str] = set()
    done: list[int] = []
    await asyncio.gather(
        *(_publish_in_turns(connect, name, published, done) for name in range(4)),
        *(_consume_with_failures(connect, name, got, in_hand, done) for name in range(3)),
    )

    assert got == published
