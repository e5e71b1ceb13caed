"""States of messages stay true when groups end, join late, return or seek back."""

from __future__ import annotations

from typing import Any

import pytest

from support.log_sql import (
    advance,
    claim_deferred,
    create_topic,
    cursor_of,
    defer,
    let_die,
    pass_all,
    publish_many,
    read,
    settle_deferred,
    subscribe,
    sweep,
    take,
)
from support.pop_sql import ack, pop
from support.queue_sql import publish

TRACKING = pytest.mark.parametrize("tracking", ["REFERENCE_COUNTING", "OFFSET_WATERMARK"])
Told = tuple[list[str], list[str], str]


async def state(conn: Any, id: int) -> Told:
    """Return the required groups, the completed groups and the status of a message, the same from every view."""
    row = await conn.fetchrow("select required, completed, status from postbus.message_state('t', $1)", id)
    listed = await conn.fetchrow("select required, completed, status from postbus.message_states where id = $1", id)
    counted = await conn.fetchrow(
        "select coalesce(required_consumer_groups, 0) as required, completed_consumer_groups as completed, status "
        "from postbus_outbox.outbox where id = $1",
        id,
    )
    assert row == listed
    assert tuple(counted) == (len(row["required"]), len(row["completed"]), row["status"])
    return row["required"], row["completed"], row["status"]


async def statuses(conn: Any, id: int) -> dict[str, str]:
    rows = await conn.fetch("select group_name, status from postbus.deliveries_of('t', $1)", id)
    listed = await conn.fetch("select group_name, status from postbus.deliveries where id = $1 order by group_name", id)
    assert rows == listed
    return dict(rows)


async def tracked(conn: Any) -> list[tuple[str, str]]:
    """Return all rows of the tracking table of a fan-out outbox."""
    rows = await conn.fetch(
        "select group_name, status from postbus_outbox.outbox_consumer_groups order by 1, message_id"
    )
    return [tuple(row) for row in rows]


async def end(conn: Any, storage: int, group: str, how: str) -> None:
    if how == "DEAD":
        assert await let_die(conn, storage) >= 1
    elif how == "CANCELLED":
        await conn.execute("select postbus.set_group_state('t', $1, 'CANCELLED')", group)
    else:
        assert await conn.fetchval("select removed from postbus.remove_group('t', $1, force => true)", group)


async def fold(conn: Any, storage: int) -> None:
    await conn.execute("update postbus.cursor set fenced_at = null, at = at - interval '10 minutes'")
    await conn.execute("update postbus.segment set published_at = published_at - interval '11 minutes'")
    await sweep(conn, storage)


async def return_from_dead(conn: Any, group: str) -> None:
    await conn.execute("select postbus.subscribe('t', $1)", group)


@TRACKING
@pytest.mark.parametrize("how", ["DEAD", "CANCELLED", "removed"])
async def test_completed_messages_stay_completed_when_their_group_ends(conn: Any, tracking: str, how: str) -> None:
    """This holds after the ledger was folded, and for a late group, which gets the messages once more."""
    storage = await create_topic(conn, tracking=tracking)
    ids = await publish_many(conn, "before the group")
    group = await subscribe(conn, "g")
    ids += await publish_many(conn, *"ab")
    await pass_all(conn, group)
    ids += await publish_many(conn, "after")
    await end(conn, storage, "g", how)
    done = (["g"], ["g"], "COMPLETED")
    expected = [([], [], "PENDING"), done, done, ([], [], "PENDING")]

    for _ in range(2):
        assert [await state(conn, id) for id in ids] == expected
        assert await tracked(conn) == [("g", "COMPLETED")] * 2
        assert await conn.fetchval("select messages from postbus.zero_subscription_messages()") == 1
        await fold(conn, storage)
    late = await subscribe(conn, "late", "FROM_BEGINNING")
    assert [await state(conn, id) for id in ids] == [
        (["late"], [], "PENDING"), done, done, (["late"], [], "PENDING")
    ]  # fmt: skip
    assert await pass_all(conn, late) == 4, "it gets all of them"
    assert [(await state(conn, id))[2] for id in ids] == ["COMPLETED"] * 4
    assert await conn.fetchval("select count(*) from postbus.zero_subscription_messages()") == 0


@TRACKING
async def test_late_group_is_required_for_messages_not_completed(conn: Any, tracking: str) -> None:
    """A message that one of two groups had not settled waits for the late group as well."""
    await create_topic(conn, tracking=tracking)
    a, b = await subscribe(conn, "a"), await subscribe(conn, "b")
    [one] = await publish(conn, "one")
    await pass_all(conn, a)
    await pass_all(conn, b)
    [two] = await publish(conn, "two")
    await pass_all(conn, a)
    late = await subscribe(conn, "late", "FROM_BEGINNING")
    await pass_all(conn, b)
    assert await state(conn, one) == (["a", "b"], ["a", "b"], "COMPLETED")
    assert await state(conn, two) == (["a", "b", "late"], ["a", "b"], "PROCESSING")
    await pass_all(conn, late)
    everybody = ["a", "b", "late"]
    assert [await state(conn, id) for id in (one, two)] == [(everybody, everybody, "COMPLETED")] * 2


@TRACKING
async def test_overlapping_deaths_complete_messages_lacking_only_dead_groups(conn: Any, tracking: str) -> None:
    """A group that returns while another one is DEAD is required for messages that nobody completed, and not for
    others."""
    storage = await create_topic(conn, tracking=tracking)
    a, _, c = [await subscribe(conn, name) for name in "abc"]
    [one] = await publish(conn, "one")
    await pass_all(conn, a)
    await conn.execute("update postbus.subscription set seen_at = seen_at + interval '1 hour' where group_name <> 'b'")
    assert await let_die(conn, storage) == 1
    assert await state(conn, one) == (["a", "c"], ["a"], "PROCESSING")
    await conn.execute("update postbus.subscription set seen_at = clock_timestamp() where group_name = 'c'")
    assert await let_die(conn, storage) == 1
    assert await state(conn, one) == (["a"], ["a"], "COMPLETED")
    await return_from_dead(conn, "b")
    [two] = await publish(conn, "two")
    await return_from_dead(conn, "c")
    assert await state(conn, one) == (["a"], ["a"], "COMPLETED")
    assert await state(conn, two) == (["a", "b", "c"], [], "PENDING"), (
        "published while c was DEAD, and completed by nobody"
    )
    await pass_all(conn, c)
    assert await state(conn, one) == (["a", "c"], ["a", "c"], "COMPLETED"), "it has settled it all the same"


@TRACKING
async def test_deferred_message_is_not_completed_by_the_end_of_its_group(conn: Any, tracking: str) -> None:
    """The cursor had passed the message, but it was not settled: its rows in the tracking table stay as they were."""
    await create_topic(conn, tracking=tracking)
    group = await subscribe(conn, "g")
    failed, behind, done = await publish_many(conn, *"abc", keys=["k", "k", "other"])
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    assert await defer(conn, lane, result, "retry", "park") == ["retried", "parked"]
    await advance(conn, [lane], result.next, 3)
    before = [("g", "FAILED"), ("g", "PENDING"), ("g", "COMPLETED")]
    assert await tracked(conn) == before
    assert await state(conn, failed) == (["g"], [], "PROCESSING")
    for how in ("CANCELLED", "removed"):
        await end(conn, 0, "g", how)
        assert [(await statuses(conn, id))["g"] for id in (failed, behind, done)] == ["ABANDONED"] * 2 + ["COMPLETED"]
        assert [await state(conn, id) for id in (failed, behind)] == [([], [], "PENDING")] * 2
        assert await tracked(conn) == before
        assert await conn.fetchval("select count(*) from postbus.zero_subscription_messages()") == 0


async def test_popped_and_buffered_messages_are_tracked(conn: Any) -> None:
    """They are PENDING once they are taken from the log; messages that nobody has read have no row."""
    await create_topic(conn)
    await subscribe(conn, "g")
    await publish_many(conn, *"abc", keys=["k", "k", "other"])
    assert await tracked(conn) == []
    await pop(conn)
    assert await tracked(conn) == [("g", "PENDING")] * 3


@TRACKING
@pytest.mark.parametrize("how", ["purged", "CANCELLED", "removed"])
async def test_dead_letter_stays_failed(conn: Any, tracking: str, how: str) -> None:
    """Removing the dead letter or its group does not complete the message."""
    await create_topic(conn, tracking=tracking)
    group = await subscribe(conn, "g")
    [id] = await publish(conn, "one")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    await defer(conn, lane, result, "dead")
    await advance(conn, [lane], result.next, 1)
    assert await state(conn, id) == (["g"], [], "FAILED")
    if how == "purged":
        await conn.execute("select postbus.purge_dead_letters('t', group_name => 'g')")
    else:
        await end(conn, 0, "g", how)
    assert await state(conn, id) == (["g"], [], "FAILED")
    assert await tracked(conn) == [("g", "FAILED")]


@TRACKING
async def test_redriven_message_is_completed_by_its_next_attempt(conn: Any, tracking: str) -> None:
    """A group that joined after the message was given up is required for it, because it was not completed."""
    await create_topic(conn, tracking=tracking)
    group = await subscribe(conn, "g")
    [id] = await publish(conn, "one")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    await defer(conn, lane, result, "dead")
    await advance(conn, [lane], result.next, 1)
    late = await subscribe(conn, "late", "FROM_BEGINNING")
    assert await state(conn, id) == (["g", "late"], [], "PROCESSING")
    await conn.execute("select postbus.redrive('t', group_name => 'g')")
    await claim_deferred(conn, lane)
    await settle_deferred(conn, lane, [id], "done")
    assert await state(conn, id) == (["g", "late"], ["g"], "PROCESSING")
    await pass_all(conn, late)
    assert await state(conn, id) == (["g", "late"], ["g", "late"], "COMPLETED")


@TRACKING
async def test_completed_message_that_fails_after_a_seek_back_stays_completed(conn: Any, tracking: str) -> None:
    """A later failure or dead letter does not undo the first completion."""
    await create_topic(conn, tracking=tracking)
    group = await subscribe(conn, "g")
    [id] = await publish(conn, "one")
    await pass_all(conn, group)
    await conn.execute("select postbus.seek('t', 'g', 'FROM_BEGINNING')")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    await defer(conn, lane, result, "retry")
    await advance(conn, [lane], result.next, 1)
    assert await state(conn, id) == (["g"], ["g"], "COMPLETED")
    await claim_deferred(conn, lane)
    await settle_deferred(conn, lane, [id], "dead")
    assert await state(conn, id) == (["g"], ["g"], "COMPLETED")


@TRACKING
async def test_buffered_message_is_skipped_when_its_group_seeks_past_it(conn: Any, tracking: str) -> None:
    """An earlier pop moved the message from the log to the pull buffer, and nobody had it in hand."""
    await create_topic(conn, tracking=tracking)
    await subscribe(conn, "g")
    first, second = await publish_many(conn, *"ab", keys=["k", "other"])
    popped = await pop(conn)
    assert popped.ids == [first]
    await conn.execute("select postbus.seek('t', 'g', 'FROM_NOW')")
    assert await statuses(conn, second) == {"g": "SKIPPED"}


@TRACKING
async def test_late_group_is_required_for_a_message_in_hand(conn: Any, tracking: str) -> None:
    """The cursor has passed a popped message, but it was settled only after the group joined."""
    await create_topic(conn, tracking=tracking)
    await subscribe(conn, "g")
    [id] = await publish(conn, "one")
    popped = await pop(conn)
    late = await subscribe(conn, "late", "FROM_BEGINNING")
    assert await ack(conn, popped) == []
    assert await state(conn, id) == (["g", "late"], ["g"], "PROCESSING")
    await pass_all(conn, late)
    assert await state(conn, id) == (["g", "late"], ["g", "late"], "COMPLETED")


async def test_settlement_committed_after_a_group_joined_leaves_it_required(conn: Any, connect: Any) -> None:
    """The joining group sees only committed settlements."""
    await create_topic(conn)
    a = await subscribe(conn, "a")
    [id] = await publish(conn, "one")
    worker = await connect()
    [lane] = await take(conn, "w", a)
    result = await read(conn, lane.cursor)
    settling = worker.transaction()
    await settling.start()
    await advance(worker, [lane], result.next, 1)
    await subscribe(conn, "late", "FROM_BEGINNING")
    await settling.commit()
    assert await state(conn, id) == (["a", "late"], ["a"], "PROCESSING")


@TRACKING
async def test_late_group_is_required_for_messages_a_reset_group_skipped(conn: Any, tracking: str) -> None:
    """A group that joins is not required for messages settled before, but for those that were skipped."""
    await create_topic(conn, tracking=tracking)
    a, b = await subscribe(conn, "a"), await subscribe(conn, "b")
    [done] = await publish(conn, "settled by both")
    await pass_all(conn, a)
    await pass_all(conn, b)
    [skipped] = await publish(conn, "skipped by b")
    await conn.execute("select postbus.seek('t', 'b', 'FROM_NOW')")
    await pass_all(conn, a)
    assert await state(conn, skipped) == (["a"], ["a"], "COMPLETED")
    [open_one] = await publish(conn, "open at b")
    await pass_all(conn, a)
    await conn.execute("select postbus.seek('t', 'b', 'FROM_NOW')")
    await conn.execute("select postbus.seek('t', 'b', 'FROM_MESSAGE_ID', start_id => $1)", open_one)
    await conn.execute("select postbus.seek('t', 'b', 'FROM_BEGINNING')")
    assert await state(conn, open_one) == (["a"], ["a"], "COMPLETED"), "b had skipped it for a moment"
    [last] = await publish(conn, "last")
    await pass_all(conn, a)
    late = await subscribe(conn, "late", "FROM_BEGINNING")
    await pass_all(conn, b)
    both = (["a", "b"], ["a", "b"], "COMPLETED")
    assert [await state(conn, id) for id in (done, skipped, open_one)] == [both] * 3
    assert await state(conn, last) == (["a", "b", "late"], ["a", "b"], "PROCESSING")
    await pass_all(conn, late)
    assert (await state(conn, last))[2] == "COMPLETED"


async def test_flapping_group_leaves_a_bounded_history(conn: Any) -> None:
    """Adjacent stretches are merged, and joinings without a meaning any more are removed."""
    storage = await create_topic(conn, lanes=2)
    a, flapping = await subscribe(conn, "a"), await subscribe(conn, "flapping")
    ids = []
    for n in range(12):
        ids += await publish_many(conn, *"ab", keys=["x", "y"])
        await pass_all(conn, a)
        await conn.execute("update postbus.subscription set seen_at = seen_at + interval '1 hour' where id = $1", a)
        assert await let_die(conn, storage) == 1
        await return_from_dead(conn, "flapping")
        if n % 3:
            await pass_all(conn, flapping)
    count = "select (select count(*) from postbus.stretch), (select count(*) from postbus.joining)"
    stretches, joinings = await conn.fetchrow(count)
    assert stretches <= 2 * (1 + 4), "of each lane one of a, and some of the other group"
    assert joinings <= 2 * 4
    assert {(await state(conn, id))[2] for id in ids} == {"COMPLETED"}


async def test_history_of_groups_is_removed_with_the_messages(conn: Any) -> None:
    """Stretches of ended groups and joinings are removed when no message they describe is retained."""
    storage = await create_topic(conn)
    group = await subscribe(conn, "g")
    await publish(conn, "one")
    await pass_all(conn, group)
    await subscribe(conn, "late", "FROM_BEGINNING")
    for name in ("g", "late"):
        await end(conn, storage, name, "removed")
    assert await conn.fetchval("select count(*) from postbus.stretch") == 2
    await conn.execute("update postbus.log_partition set epoch = epoch + 3")
    await conn.execute("select postbus.forget_stretches()")
    assert await conn.fetchval("select count(*) from postbus.stretch") == 0
    assert await conn.fetchval("select count(*) from postbus.joining") == 0


@TRACKING
async def test_seek_back_does_not_complete_a_message_in_hand(conn: Any, tracking: str) -> None:
    """The log passes over a message in hand; it is completed or given up when its holder says so."""
    await create_topic(conn, tracking=tracking)
    await subscribe(conn, "g")
    first, second = await publish_many(conn, *"ab")
    popped = await pop(conn, 2)
    await conn.execute("select postbus.seek('t', 'g', 'FROM_BEGINNING')")
    assert (await pop(conn)).ids == [], "it finds what is in hand"
    assert [await state(conn, id) for id in (first, second)] == [(["g"], [], "PENDING")] * 2
    assert await ack(conn, popped, first) == []
    assert await conn.fetchval("select postbus.dead_letter($1, array[$2::bigint], 'no')", popped.token, second) == []
    assert await state(conn, first) == (["g"], ["g"], "COMPLETED")
    assert await state(conn, second) == (["g"], [], "FAILED")


@TRACKING
async def test_message_in_hand_at_a_seek_back_was_not_completed(conn: Any, tracking: str) -> None:
    """This holds although all other groups have settled it."""
    await create_topic(conn, tracking=tracking)
    other = await subscribe(conn, "other")
    await subscribe(conn, "g")
    [id] = await publish(conn, "one")
    await pass_all(conn, other)
    await pop(conn)
    await conn.execute("select postbus.seek('t', 'g', 'FROM_BEGINNING')")
    assert await state(conn, id) == (["g", "other"], ["other"], "PROCESSING")


@TRACKING
async def test_deferred_message_is_not_completed_by_the_return_of_its_group(conn: Any, tracking: str) -> None:
    """The group died before its cursor passed the message that had failed."""
    storage = await create_topic(conn, tracking=tracking)
    group = await subscribe(conn, "g")
    done, failed, given_up, last = await publish_many(conn, *"abcd")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor, 1)
    assert result.during is not None
    await advance(conn, [lane], result.during, 1, done=result.at[0])
    result = await read(conn, await cursor_of(conn, group))
    assert await defer(conn, lane, result, "retry", "dead") == ["retried", "dead"]
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", group)
    await let_die(conn, storage)
    await return_from_dead(conn, "g")
    for is_past in (False, True):
        if is_past:
            await pass_all(conn, group)
        assert (await state(conn, failed))[2] == "PROCESSING"
        assert (await state(conn, given_up))[2] == "FAILED"
        assert (await state(conn, done))[2] == "COMPLETED"
    assert (await state(conn, last))[2] == "COMPLETED"


@TRACKING
@pytest.mark.parametrize("how", ["late group", "force-complete", "return"])
async def test_messages_settled_ahead_of_the_cursor_stay_completed(conn: Any, tracking: str, how: str) -> None:
    """A process that leaves records them; the group's position does not show it."""
    storage = await create_topic(conn, tracking=tracking)
    group = await subscribe(conn, "g")
    _, ahead = await publish_many(conn, *"ab")
    [lane] = await take(conn, "w", group)
    second = (await read(conn, lane.cursor)).at[1]
    await conn.execute(
        "select postbus.note_done(array[$1::uuid], '{0}', array[$2::bigint], array[$3::int], array[$3::int + 1])",
        lane.token, *second,
    )  # fmt: skip
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", group)
    done = (["g"], ["g"], "COMPLETED")
    assert await state(conn, ahead) == done
    if how == "late group":
        await subscribe(conn, "late", "FROM_BEGINNING")
    elif how == "force-complete":
        await conn.execute("select postbus.force_complete('t', '0 s')")
    else:
        await let_die(conn, storage)
        await conn.execute("select postbus.resurrect(array[$1::bigint], with_catch_up => false)", group)
    assert await state(conn, ahead) == done
    await fold(conn, storage)
    assert await state(conn, ahead) == done


@TRACKING
async def test_late_group_is_required_for_messages_of_a_returned_group(conn: Any, tracking: str) -> None:
    """The group died with the message and lives again, so the message was not completed when the late group joined."""
    storage = await create_topic(conn, tracking=tracking)
    a, _, _ = [await subscribe(conn, name) for name in "abc"]
    [first, second] = await publish_many(conn, *"mn", keys=["k", "k"])
    await pass_all(conn, a)
    assert (await pop(conn, group="b")).ids == [first]
    await conn.execute("update postbus.subscription set seen_at = seen_at + interval '1 hour' where group_name <> 'b'")
    await conn.execute("update postbus.deferred set due_at = clock_timestamp() - interval '1 second'")
    assert await let_die(conn, storage) == 1
    await return_from_dead(conn, "b")
    await end(conn, storage, "c", "CANCELLED")
    await subscribe(conn, "late", "FROM_BEGINNING")
    assert await state(conn, second) == (["a", "b", "late"], ["a"], "PROCESSING")


async def test_messages_skipped_by_a_returning_group_had_a_group(conn: Any) -> None:
    """They were before the group while it lived, so they do not count as zero-subscription messages."""
    storage = await create_topic(conn)
    group = await subscribe(conn, "g", "FROM_BEGINNING")
    [id] = await publish(conn, "one")
    await let_die(conn, storage)
    await conn.execute("select postbus.resurrect(array[$1::bigint], with_catch_up => false)", group)
    assert await state(conn, id) == ([], [], "PENDING")
    assert await conn.fetchval("select count(*) from postbus.zero_subscription_messages()") == 0


async def test_cancelled_catch_up_is_not_required_for_its_buffered_messages(conn: Any) -> None:
    """They are not tried any more, like unread history, but are again when the catch-up resumes."""
    await create_topic(conn)
    first, second = await publish_many(conn, *"ab")
    await subscribe(conn, "g", "FROM_BEGINNING", catch_up='{"beside_from": 0}')
    assert (await pop(conn)).ids == [first]
    for is_wanted in (False, True):
        await conn.execute("select postbus.set_catch_up('t', 'g', $1)", is_wanted)
        assert await state(conn, second) == (["g"] if is_wanted else [], [], "PENDING")


async def give_up(conn: Any, subscription: int, id: int) -> None:
    """Read up to a message and give it up."""
    [lane] = await take(conn, "w", subscription)
    result = await read(conn, lane.cursor)
    result = result.after(result.ids.index(id))
    assert await defer(conn, lane, result, "dead") == ["dead"]
    await advance(conn, [lane], result.next, len(result.messages))
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", subscription)


@TRACKING
async def test_message_redriven_before_the_log_reaches_it_is_not_completed(conn: Any, tracking: str) -> None:
    """The group has sought back before the message, and the log passes over it because it is deferred."""
    await create_topic(conn, tracking=tracking)
    group = await subscribe(conn, "g")
    [id] = await publish(conn, "one")
    await give_up(conn, group, id)
    await conn.execute("select postbus.seek('t', 'g', 'FROM_BEGINNING')")
    await conn.execute("select postbus.redrive('t', group_name => 'g')")
    await pass_all(conn, group)
    assert await state(conn, id) == (["g"], [], "PROCESSING")
    [lane] = await take(conn, "w", group)
    await claim_deferred(conn, lane)
    await settle_deferred(conn, lane, [id], "done")
    assert await state(conn, id) == (["g"], ["g"], "COMPLETED")


@TRACKING
async def test_redriving_a_message_given_up_twice_does_not_complete_it(conn: Any, tracking: str) -> None:
    """It was given up before the seek back and after it, so it was never completed."""
    await create_topic(conn, tracking=tracking)
    group = await subscribe(conn, "g")
    [id] = await publish(conn, "one")
    await give_up(conn, group, id)
    await conn.execute("select postbus.seek('t', 'g', 'FROM_BEGINNING')")
    await give_up(conn, group, id)
    await conn.execute("select postbus.redrive('t', group_name => 'g')")
    assert await state(conn, id) == (["g"], [], "PROCESSING")
    [lane] = await take(conn, "w", group)
    await claim_deferred(conn, lane)
    await settle_deferred(conn, lane, [id], "done")
    assert await state(conn, id) == (["g"], ["g"], "COMPLETED")


async def with_history(conn: Any, storage: int, group: int) -> int:
    """Let a group settle everything, seek back, die and return with a catch-up. Returns the catch-up's subscription."""
    await pass_all(conn, group)
    await conn.execute("select postbus.seek('t', 'g', 'FROM_BEGINNING')")
    await let_die(conn, storage)
    await conn.execute("select postbus.subscribe('t', 'g', catch_up => '{\"beside_from\": 0}')")
    history: int = await conn.fetchval("select id from postbus.subscription where catch_up_of = $1", group)
    return history


@TRACKING
@pytest.mark.parametrize("how", ["redriven", "moved"])
async def test_failure_in_a_catch_up_does_not_undo_the_groups_completion(conn: Any, tracking: str, how: str) -> None:
    """The message is then deferred at the group itself: a redriven letter, or a retry of a cancelled catch-up."""
    storage = await create_topic(conn, tracking=tracking)
    group = await subscribe(conn, "g")
    [id] = await publish(conn, "one")
    history = await with_history(conn, storage, group)
    if how == "redriven":
        await give_up(conn, history, id)
        await conn.execute("select postbus.redrive('t', group_name => 'g')")
    else:
        [lane] = await take(conn, "w", history)
        result = await read(conn, lane.cursor)
        await defer(conn, lane, result, "retry")
        await advance(conn, [lane], result.next, 1)
        await conn.execute("select postbus.seek('t', 'g', 'FROM_NOW')")
    assert await conn.fetchval("select count(*) from postbus.deferred where subscription_id = $1", group) == 1
    assert await state(conn, id) == (["g"], ["g"], "COMPLETED")
    await subscribe(conn, "late", "FROM_BEGINNING")
    assert await state(conn, id) == (["g"], ["g"], "COMPLETED")


@TRACKING
@pytest.mark.parametrize("how", ["redriven", "moved"])
async def test_message_that_failed_in_a_catch_up_is_completed_by_its_group(conn: Any, tracking: str, how: str) -> None:
    """It is not completed before, even if other groups have settled it, and a late group is required for it."""
    storage = await create_topic(conn, tracking=tracking)
    group, other = [await subscribe(conn, name) for name in ("g", "other")]
    await let_die(conn, storage)
    await return_from_dead(conn, "other")
    [id] = await publish(conn, "one")
    await conn.execute("select postbus.subscribe('t', 'g', catch_up => '{\"beside_from\": 0}')")
    history = await conn.fetchval("select id from postbus.subscription where catch_up_of = $1", group)
    await pass_all(conn, other)
    if how == "redriven":
        await give_up(conn, history, id)
        await conn.execute("select postbus.redrive('t', group_name => 'g')")
    else:
        [lane] = await take(conn, "w", history)
        result = await read(conn, lane.cursor)
        await defer(conn, lane, result, "retry")
        await advance(conn, [lane], result.next, 1)
        await conn.execute("select postbus.seek('t', 'g', 'FROM_NOW')")
    assert await state(conn, id) == (["g", "other"], ["other"], "PROCESSING")
    late = await subscribe(conn, "late", "FROM_BEGINNING")
    assert await state(conn, id) == (["g", "late", "other"], ["other"], "PROCESSING")
    [lane] = await take(conn, "w", group)
    await claim_deferred(conn, lane)
    await settle_deferred(conn, lane, [id], "done")
    assert await state(conn, id) == (["g", "late", "other"], ["g", "other"], "PROCESSING")
    await pass_all(conn, late)
    assert await state(conn, id) == (["g", "late", "other"], ["g", "late", "other"], "COMPLETED")


@TRACKING
async def test_completed_message_stays_so_when_a_returning_group_skips_it(conn: Any, tracking: str) -> None:
    """The group reads new messages only, but its catch-up reads again messages that others completed meanwhile."""
    storage = await create_topic(conn, tracking=tracking)
    [id] = await publish(conn, "one")
    group = await subscribe(conn, "g", "FROM_BEGINNING", catch_up='{"beside_from": 0}')
    await let_die(conn, storage)
    other = await subscribe(conn, "other", "FROM_BEGINNING")
    await pass_all(conn, other)
    assert await state(conn, id) == (["other"], ["other"], "COMPLETED")
    await conn.execute("select postbus.resurrect(array[$1::bigint], with_catch_up => false)", group)
    assert await statuses(conn, id) == {"g": "PENDING", "other": "COMPLETED"}
    assert await state(conn, id) == (["other"], ["other"], "COMPLETED")


@TRACKING
async def test_message_given_up_ahead_of_a_catch_up_stays_failed(conn: Any, tracking: str) -> None:
    """Its group died before its cursor passed the message, and returned with a catch-up that passes over it."""
    storage = await create_topic(conn, tracking=tracking)
    group = await subscribe(conn, "g")
    first, given_up = await publish_many(conn, *"ab")
    [lane] = await take(conn, "w", group)
    result = (await read(conn, lane.cursor)).after(1)
    assert await defer(conn, lane, result, "dead") == ["dead"]
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", group)
    await let_die(conn, storage)
    await conn.execute("select postbus.subscribe('t', 'g', catch_up => '{\"beside_from\": 0}')")
    history = await conn.fetchval("select id from postbus.subscription where catch_up_of = $1", group)
    for is_past in (False, True):
        if is_past:
            await pass_all(conn, history)
        assert await state(conn, first) == (["g"], ["g"] if is_past else [], "COMPLETED" if is_past else "PENDING")
        assert await state(conn, given_up) == (["g"], [], "FAILED")


@TRACKING
@pytest.mark.parametrize("where", ["group", "history"])
async def test_late_group_does_not_complete_a_message_redriven_ahead_of_a_cursor(
    conn: Any, tracking: str, where: str
) -> None:
    """The cursor of the group that gave it up has not passed the message yet, so it is deferred and not completed."""
    storage = await create_topic(conn, tracking=tracking)
    group = reader = await subscribe(conn, "g")
    _, given_up = await publish_many(conn, *"ab")
    if where == "history":
        await let_die(conn, storage)
        await conn.execute("select postbus.subscribe('t', 'g', catch_up => '{\"beside_from\": 0}')")
        reader = await conn.fetchval("select id from postbus.subscription where catch_up_of = $1", group)
    [lane] = await take(conn, "w", reader)
    await defer(conn, lane, (await read(conn, lane.cursor)).after(1), "dead")
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", reader)
    await conn.execute("select postbus.redrive('t', group_name => 'g')")
    await subscribe(conn, "late", "FROM_BEGINNING")
    for is_past in (False, True):
        if is_past:
            await pass_all(conn, reader)
        assert await state(conn, given_up) == (["g", "late"], [], "PROCESSING")
