"""A QUEUE becomes PUB_SUB: the queue's messages are handled first, and none is lost or handled twice."""

from __future__ import annotations

from typing import Any

import pytest

from support.fix_database import Connect
from support.log_sql import claim_deferred, create_topic, read, refused, settle_deferred, subscribe, take
from support.queue_sql import ack, claim, payloads, publish


async def create_queue(conn: Any, **options: Any) -> None:
    named = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
    await conn.execute(f"select postbus.create_topic('t', jsonb_build_object({named}))")


async def move(conn: Any, *groups: str, **options: Any) -> Any:
    named = "".join(f", {name} => ${n}" for n, name in enumerate(options, 2))
    return await conn.fetchrow(
        f"select * from postbus.move_topic('t', $1, '{{\"lanes\": 1}}'{named})", list(groups), *options.values()
    )


async def go_on(conn: Any) -> Any:
    return await conn.fetchrow("select * from postbus.continue_moves('t')")


async def states(conn: Any) -> list[str]:
    return [row[0] for row in await conn.fetch("select state from postbus.groups order by group_name")]


async def id_of(conn: Any, group: str = "g") -> int:
    return int(await conn.fetchval("select id from postbus.subscription where group_name = $1", group))


async def test_groups_wait_until_the_queue_is_empty(conn: Any) -> None:
    """Waiting, leased and retried messages are all settled before the first new one is delivered."""
    await create_queue(conn)
    await publish(conn, "old 1", "old 2")
    held = await claim(conn, 1)
    left = await move(conn, "g", "h")
    assert (left["waiting"], left["leased"]) == (1, 1)
    [new] = await publish(conn, "new")

    assert (await go_on(conn))["ended_at"] is None
    assert await states(conn) == ["PAUSED", "PAUSED"]
    await conn.execute("select postbus.retry($1, $2, '0'::interval)", held["token"], held["ids"])
    assert (await go_on(conn))["retrying"] == 1
    rest = await claim(conn)
    assert sorted(payloads(rest)) == ["old 1", "old 2"]
    assert rest["moved"]
    assert (await go_on(conn))["leased"] == 2
    await ack(conn, rest)

    assert (await go_on(conn))["ended_at"] is not None
    assert await states(conn) == ["ACTIVE", "ACTIVE"]
    for group in ("g", "h"):
        [lane] = await take(conn, "w", await id_of(conn, group))
        assert (await read(conn, lane.cursor)).ids == [new]
    assert (await claim(conn))["ids"] is None


async def test_open_transaction_that_published_is_waited_for(conn: Any, connect: Any) -> None:
    """It sent one message to the queue and sends the next one to the log, and they are handled in this order."""
    await create_queue(conn, ordered="true")
    writer = await connect()
    open_transaction = writer.transaction()
    await open_transaction.start()
    await publish(writer, "one", key="k")
    await move(conn, "g")
    await publish(writer, "two", key="k")

    state = await go_on(conn)
    assert (state["waiting"], state["transactions"], state["ended_at"]) == (0, 1, None)
    await open_transaction.commit()
    assert (await go_on(conn))["waiting"] == 1
    first = await claim(conn)
    assert (payloads(first), first["ordered"]) == (["one"], True)
    await ack(conn, first)
    assert (await go_on(conn))["ended_at"] is not None
    [lane] = await take(conn, "w", await id_of(conn))
    assert (await read(conn, lane.cursor)).messages == ["two"]


async def test_prepared_transaction_is_waited_for(connect_alone: Connect) -> None:
    """It is found whether it was prepared before the first check or after it."""
    conn, writer = await connect_alone(), await connect_alone()
    await create_queue(conn)
    await writer.execute("begin")
    await publish(writer, "one")
    await move(conn, "g")
    assert (await go_on(conn))["transactions"] == 1
    await writer.execute("prepare transaction 'moving'")
    assert (await go_on(conn))["transactions"] == 1
    await writer.execute("commit prepared 'moving'")
    state = await go_on(conn)
    assert (state["waiting"], state["transactions"], state["ended_at"]) == (1, 0, None)


async def test_transactions_that_begin_later_are_not_waited_for(conn: Any, connect: Any) -> None:
    """They see that the topic is a log, and publish to the log."""
    await create_queue(conn)
    await move(conn, "g")
    first_look, later = await connect(), await connect()
    before = later.transaction()
    await before.start()
    await publish(later, "to the log")
    assert (await go_on(first_look))["transactions"] == 1, "begun before the first look: it may be an old one"
    other = await connect()
    after = other.transaction()
    await after.start()
    await publish(other, "to the log, too")
    await before.commit()
    assert (await go_on(conn))["ended_at"] is not None
    await after.commit()


async def test_late_message_of_an_old_snapshot_goes_to_the_first_group(conn: Any, connect: Any) -> None:
    """A REPEATABLE READ transaction from before the change publishes to the queue, and no other group gets the
    message."""
    await create_queue(conn)
    old = await connect()
    transaction = old.transaction(isolation="repeatable_read")
    await transaction.start()
    await old.fetchval("select 1")
    await move(conn, "g", "h")
    assert (await go_on(conn))["ended_at"] is not None
    await publish(old, "late", key="k")
    await transaction.commit()

    assert (await go_on(conn))["waiting"] == 0
    [lane] = await take(conn, "w", await id_of(conn))
    [row] = await claim_deferred(conn, lane)
    assert (row["payload"], row["key"], row["attempts"]) == (b"late", "k", 1)
    assert await settle_deferred(conn, lane, [row["id"]], "done") == ["done"]
    [other] = await take(conn, "w", await id_of(conn, "h"))
    assert await claim_deferred(conn, other) == []


async def test_scheduled_message_is_not_waited_for_and_comes_when_due(conn: Any) -> None:
    """The first group gets it then, although it is stored in the queue."""
    await create_queue(conn)
    await conn.execute("select postbus.publish('t', 'later'::text, key => 'k', delay => '1 day')")
    assert (await move(conn, "g"))["scheduled"] == 1
    assert (await go_on(conn))["ended_at"] is not None
    [lane] = await take(conn, "w", await id_of(conn))
    assert await claim_deferred(conn, lane) == []
    await conn.execute("update postbus.delayed set due_at = due_at - interval '1 day'")
    await conn.execute("select postbus.sweep()")
    assert [row["payload"] for row in await claim_deferred(conn, lane)] == [b"later"]


async def test_handed_over_messages_keep_their_order_and_attempts(conn: Any) -> None:
    """The first message of a key stays first after a failure, and messages in the log wait behind all of them."""
    await create_queue(conn, ordered="true")
    await publish(conn, "a1", "a2", "a3", key="a")
    await publish(conn, "b1", key="b")
    held = await claim(conn, 1)
    assert payloads(held) == ["a1"]
    await move(conn, "g", hand_over=True)
    await publish(conn, "a4", key="a")
    assert (await go_on(conn))["leased"] == 1, "what is in hand is waited for"
    await conn.execute("select postbus.retry($1, $2, '0'::interval)", held["token"], held["ids"])
    assert (await go_on(conn))["ended_at"] is not None

    [lane] = await take(conn, "w", await id_of(conn))
    waiting = await conn.fetch("select key from postbus.deferred_of(array[$1::uuid])", lane.token)
    assert sorted(row["key"] for row in waiting) == ["a", "a", "a", "b"]
    got = []
    while rows := await claim_deferred(conn, lane):
        got += [(row["payload"].decode(), row["attempts"]) for row in rows]
        await settle_deferred(conn, lane, [row["id"] for row in rows], "done")
    assert [one for one in got if one[0] != "b1"] == [("a1", 2), ("a2", 1), ("a3", 1)]
    assert ("b1", 1) in got
    assert (await read(conn, lane.cursor)).messages == ["a4"]


async def test_message_released_during_the_hand_over_is_still_first(conn: Any, connect: Any) -> None:
    """A consumer claims the first message of a key while the others are handed over, and releases it."""
    await create_queue(conn, ordered="true")
    await publish(conn, "a1", "a2", key="a")
    await move(conn, "g", hand_over=True)
    claiming = await connect()
    transaction = claiming.transaction()
    await transaction.start()
    held = await claim(claiming, 1)
    assert (await go_on(conn))["ended_at"] is None
    await transaction.commit()
    assert payloads(held) == ["a1"]
    await conn.execute("select postbus.release($1, $2)", held["token"], held["ids"])
    state = await go_on(conn)
    assert state["ended_at"] is not None
    [lane] = await take(conn, "w", await id_of(conn))
    assert [row["payload"] for row in await claim_deferred(conn, lane)] == [b"a1"]


async def test_dead_letters_of_the_queue_are_redriven_to_the_named_group(conn: Any) -> None:
    """The queue had no group, so the redrive has to name one."""
    await create_queue(conn)
    [id] = await publish(conn, "one", key="k")
    held = await claim(conn)
    await conn.execute("select postbus.dead_letter($1, $2, 'no')", held["token"], held["ids"])
    await move(conn, "g", "h")
    await go_on(conn)
    assert "--group" in await refused(conn.execute("select postbus.redrive('t')"), "PB402")
    assert await conn.fetchval("select postbus.redrive('t', ids => array[$1::bigint], group_name => 'h')", id) == 1
    [lane] = await take(conn, "w", await id_of(conn, "h"))
    assert [row["payload"] for row in await claim_deferred(conn, lane)] == [b"one"]
    assert await conn.fetchval("select count(*) from postbus.dead_letter") == 0


async def test_dry_run_changes_nothing(conn: Any) -> None:
    """It reports how many messages would be left in the queue."""
    await create_queue(conn, ordered="true")
    await publish(conn, "one", key="k", priority=7)
    before = await conn.fetch("select t.*, t.xmin::text from postbus.topic t order by id")
    left = await move(conn, "g", dry_run=True)
    assert (left["waiting"], left["scheduled"], left["prioritised"]) == (1, 0, 1)
    assert await conn.fetch("select t.*, t.xmin::text from postbus.topic t order by id") == before
    assert await conn.fetchval("select count(*) from postbus.subscription") == 0
    assert await conn.fetchval("select count(*) from postbus.log_storage") == 0
    assert await go_on(conn) is None


async def test_move_may_be_repeated_until_the_queue_is_empty(conn: Any) -> None:
    """A repeated move can hand over to the first group, or to another one if the first was cancelled."""
    await create_queue(conn)
    await publish(conn, "one")
    await move(conn, "first", "second")
    await move(conn, "first", "second")
    await refused(move(conn, "third"), "PB406")
    await refused(conn.execute("select postbus.set_group_state('t', 'first', 'ACTIVE')"), "PB433")
    assert (await go_on(conn))["ended_at"] is None, "nobody handed over"
    await conn.execute("select postbus.set_group_state('t', 'first', 'CANCELLED')")
    assert "name a group" in await refused(move(conn, hand_over=True), "PB402")

    await move(conn, "second", hand_over=True)
    assert (await go_on(conn))["ended_at"] is not None
    heir = "select group_name from postbus.subscription where id = (select subscription_id from postbus.deferred)"
    assert await conn.fetchval(heir) == "second"


async def test_bad_moves_are_refused(conn: Any) -> None:
    """The error names the command that helps."""
    assert "topics create" in await refused(move(conn, "g"), "PB404")
    await create_queue(conn)
    await refused(move(conn, "no spaces here"), "PB401")
    assert "name a group" in await refused(move(conn, hand_over=True), "PB402")
    await conn.execute("select postbus.pause_topic('t')")
    assert "resume" in await refused(move(conn, "g"), "PB408")
    await conn.execute("select postbus.resume_topic('t')")
    await move(conn, "g", "g")
    assert await states(conn) == ["PAUSED"]
    await go_on(conn)
    assert "groups list" in await refused(move(conn, "g"), "PB432")
    back = """select postbus.set_topic('t', '{"semantics": "QUEUE", "tracking": null}')"""
    assert "another name" in await refused(conn.execute(back), "PB408")


async def test_message_uncommitted_while_options_changed_can_be_claimed(conn: Any, connect: Any) -> None:
    """An idle queue may become PUB_SUB by its options alone, and an open transaction loses nothing."""
    await create_queue(conn)
    writer = await connect()
    open_transaction = writer.transaction()
    await open_transaction.start()
    await publish(writer, "one")
    await conn.execute("""select postbus.set_topic('t', '{"semantics": "PUB_SUB"}')""")
    await open_transaction.commit()
    assert payloads(await claim(conn)) == ["one"]


async def test_pub_sub_topic_without_a_queue_cannot_be_claimed_from(conn: Any) -> None:
    """The error refers to groups."""
    await create_topic(conn)
    assert "group" in await refused(claim(conn), "PB432")


async def test_writes_are_not_blocked_while_groups_wait_for_the_queue(conn: Any) -> None:
    """A waiting group counts as a subscription."""
    await create_queue(conn)
    await publish(conn, "old")
    await move(conn, "g")
    await conn.execute("""select postbus.set_topic('t', '{"block_writes_on_zero_subscriptions": true}')""")
    await publish(conn, "new")
    await conn.execute("select postbus.set_group_state('t', 'g', 'CANCELLED')")
    await refused(publish(conn, "newer"), "PB430")


@pytest.mark.parametrize("state", ["PAUSED", "CANCELLED"])
async def test_new_subscription_does_not_wait_for_the_queue(conn: Any, state: str) -> None:
    """A group that subscribes on its own gets new messages, whatever is left in the queue."""
    await create_queue(conn)
    await publish(conn, "old")
    await move(conn, "g")
    if state == "CANCELLED":
        await conn.execute("select postbus.set_group_state('t', 'g', 'CANCELLED')")
    new = await subscribe(conn, "new")
    await publish(conn, "new")
    [lane] = await take(conn, "w", new)
    assert (await read(conn, lane.cursor)).messages == ["new"]
