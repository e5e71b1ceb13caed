"""Popping messages on request, from queues and for groups, in order per key."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from support.fix_database import Connect
from support.log_sql import advance, claim_deferred, create_topic, publish_many, read, refused, subscribe, sweep, take
from support.pop_sql import ack, pop, retry
from support.queue_sql import publish

SOON = timedelta(seconds=31)
"""Beyond a lease."""


async def a_group(conn: Any, *payloads: str, keys: list[str | None] | None = None, **options: Any) -> int:
    """Create group g of topic t, with messages before it."""
    await create_topic(conn, **options)
    group = await subscribe(conn)
    if payloads:
        await publish_many(conn, *payloads, keys=keys)
    return group


async def later(conn: Any, by: timedelta) -> Any:
    return await conn.fetchval("select clock_timestamp() + $1", by)


async def left(conn: Any) -> int:
    """Return how many messages are buffered or in hand."""
    count: int = await conn.fetchval("select count(*) from postbus.deferred")
    return count


async def test_queue_is_popped_without_a_group(conn: Any) -> None:
    """The call, the answer and the settlements are the same as for groups."""
    ids = await publish(conn, "one", "two", topic="q")

    popped = await pop(conn, 5, topic="q", group=None)

    assert popped.messages == ["one", "two"]
    assert popped.ids == ids
    assert await ack(conn, popped) == []


async def test_group_gets_each_message_once(conn: Any) -> None:
    """An acknowledged message does not come again, and no row of it stays."""
    await a_group(conn, "one", "two", "three")

    first = await pop(conn, 2)
    second = await pop(conn, 2)

    assert (first.messages, second.messages) == (["one", "two"], ["three"])
    assert await ack(conn, first) == []
    assert await ack(conn, second) == []
    assert (await pop(conn, 2)).messages == []
    assert await left(conn) == 0


async def test_groups_have_independent_positions(conn: Any) -> None:
    """Each group gets all messages."""
    await create_topic(conn)
    await subscribe(conn, "g")
    await subscribe(conn, "h")
    await publish_many(conn, "one")

    assert (await pop(conn, group="g")).messages == ["one"]
    assert (await pop(conn, group="h")).messages == ["one"]


async def test_message_with_an_expired_lease_comes_again(conn: Any) -> None:
    """It comes as the next attempt, and the first pop's settlement changes nothing and says so."""
    await a_group(conn, "one")
    first = await pop(conn)

    second = await pop(conn, as_of=await later(conn, SOON))

    assert second.messages == ["one"]
    assert second.attempts == [2]
    assert await ack(conn, first) == first.ids
    assert await ack(conn, second) == []


async def test_pop_lease_is_extended(conn: Any) -> None:
    """The function is the same as for queues."""
    await a_group(conn, "one")
    popped = await pop(conn, lease=timedelta(seconds=5))

    lost = await conn.fetchval("select postbus.extend(array[$1::uuid], '10 minutes')", popped.token)

    assert lost == []
    assert (await pop(conn, as_of=await later(conn, SOON))).messages == []


async def test_message_that_kills_its_consumers_is_given_up(conn: Any) -> None:
    """After `max_attempts` leases that ended without an answer, it is a dead letter of the group."""
    await a_group(conn, "deadly", max_attempts=2)
    await pop(conn)
    await pop(conn, as_of=await later(conn, SOON))

    third = await pop(conn, as_of=await later(conn, timedelta(hours=1)))

    assert third.messages == []
    row = await conn.fetchrow("select group_name, reason, attempts from postbus.dead_letters")
    assert tuple(row) == ("g", "the lease ended 2 times without an answer", 2)
    assert await left(conn) == 0


async def test_key_goes_to_one_pop_at_a_time(conn: Any) -> None:
    """Other pops get other keys, and the next message of the key comes when the one in hand is settled."""
    await a_group(conn, "a1", "a2", "b1", keys=["a", "a", "b"])

    first = await pop(conn, 1)
    second = await pop(conn, 5)

    assert (first.messages, second.messages) == (["a1"], ["b1"])
    await ack(conn, first)
    assert (await pop(conn, 5)).messages == ["a2"]


async def test_messages_without_a_key_are_popped_concurrently(conn: Any) -> None:
    """Any number of pops share them."""
    await a_group(conn, "one", "two", "three")

    assert [(await pop(conn)).messages for _ in range(3)] == [["one"], ["two"], ["three"]]


async def test_pop_takes_several_messages_of_a_key_in_order(conn: Any) -> None:
    """One consumer works through the batch of a key."""
    await a_group(conn, *"12345", keys=["a"] * 5)

    assert (await pop(conn, 3)).messages == ["1", "2", "3"]
    assert (await pop(conn, 3)).messages == []


async def test_failed_message_takes_its_key_along(conn: Any) -> None:
    """Messages of its key in hand behind it are returned, so that none is handled before it."""
    await a_group(conn, "a1", "a2", "b1", "a3", keys=["a", "a", "b", "a"])
    popped = await pop(conn, 4)
    a1, a2, b1, a3 = popped.ids

    assert await retry(conn, popped, a1) == {a1: "retried"}

    assert await ack(conn, popped, a2, a3) == [a2, a3]
    assert await ack(conn, popped, b1) == []
    again = await pop(conn, 4)
    assert again.messages == ["a1", "a2", "a3"]
    assert again.attempts == [2, 1, 1]


async def test_failed_message_lets_its_key_pass_with_on_failure_pass(conn: Any) -> None:
    """Later messages of the key stay in hand."""
    await create_topic(conn)
    await subscribe(conn, on_failure="pass")
    await publish_many(conn, "a1", "a2", keys=["a", "a"])
    popped = await pop(conn, 2)

    await retry(conn, popped, popped.ids[0])

    assert await ack(conn, popped, popped.ids[1]) == []
    assert (await pop(conn, 2)).messages == ["a1"]


async def test_retry_with_on_failure_pass_lets_its_key_go_on(conn: Any) -> None:
    """Later messages of the key are popped in order meanwhile, also by pops that ask for the key."""
    await create_topic(conn)
    await subscribe(conn, on_failure="pass")
    await publish_many(conn, "a1", "a2", "a3", keys=["a"] * 3)
    await retry(conn, await pop(conn, 1), delay=timedelta(minutes=1))

    second, third = await pop(conn, 1), await pop(conn, 1)
    assert (second.messages, third.messages) == (["a2"], [])
    await ack(conn, second)
    await ack(conn, third := await pop(conn, 1, key="a"))
    await publish_many(conn, "a4", keys=["a"])

    assert third.messages == ["a3"]
    assert (await pop(conn, 5)).messages == ["a4"]
    assert (await pop(conn, 5, as_of=await later(conn, timedelta(seconds=61)))).messages[:1] == ["a1"]


async def test_popped_retry_waits_for_its_delay(conn: Any) -> None:
    """A pop that finds nothing says how long to wait."""
    await a_group(conn, "one")
    await retry(conn, await pop(conn), delay=timedelta(minutes=1))

    empty = await pop(conn)

    assert empty.messages == []
    assert empty.next_due is not None
    assert timedelta(seconds=50) < empty.next_due <= timedelta(minutes=1)
    assert (await pop(conn, as_of=await later(conn, timedelta(minutes=2)))).messages == ["one"]


async def test_exhausted_message_is_given_up(conn: Any) -> None:
    """One retry too many makes a dead letter, and the next message of the key is popped."""
    await a_group(conn, "bad", "good", keys=["a", "a"], max_attempts=1)
    popped = await pop(conn, 1)

    assert await retry(conn, popped) == {popped.ids[0]: "dead"}

    assert await conn.fetchval("select last_error from postbus.dead_letters") == "it failed"
    assert (await pop(conn, 1)).messages == ["good"]


async def test_dead_letter_goes_back_to_its_group_alone(conn: Any) -> None:
    """After a redrive it is popped again, and another group does not get it twice."""
    await a_group(conn, "one")
    await subscribe(conn, "h")
    popped = await pop(conn)
    lost = await conn.fetchval("select postbus.dead_letter($1, $2, 'no good')", popped.token, popped.ids)
    assert lost == []

    await conn.execute("select postbus.redrive('t', group_name => 'g')")

    assert (await pop(conn)).messages == ["one"]
    assert (await pop(conn, group="h")).messages == []


async def test_released_message_counts_as_never_popped(conn: Any) -> None:
    """The attempt does not count, and the order is kept."""
    await a_group(conn, "1", "2", "3", keys=["a", "a", "a"])
    popped = await pop(conn, 2)

    lost = await conn.fetchval("select postbus.release($1, $2)", popped.token, popped.ids)

    assert lost == []
    again = await pop(conn, 3)
    assert (again.messages, again.attempts) == (["1", "2", "3"], [1, 1, 1])


async def test_auto_acked_message_is_gone(conn: Any) -> None:
    """Delivery is at most once: there is no token and nothing to settle."""
    await a_group(conn, "1", "2", keys=["a", "a"])

    popped = await pop(conn, 5, auto_ack=True)

    assert (popped.messages, popped.token) == (["1", "2"], None)
    assert await left(conn) == 0
    await publish(conn, "q1", topic="q")
    assert (await pop(conn, topic="q", group=None, auto_ack=True)).messages == ["q1"]
    assert await conn.fetchval("select count(*) from postbus.lease") == 0


async def test_pop_can_ask_for_a_key(conn: Any) -> None:
    """Messages of other keys stay for other pops."""
    await a_group(conn, "a1", "b1", "b2", "a2", keys=["a", "b", "b", "a"], lanes="named")

    assert (await pop(conn, 5, key="b")).messages == ["b1", "b2"]
    assert (await pop(conn, 5, key="c")).messages == []
    assert (await pop(conn, 5)).messages == ["a1", "a2"]


async def test_named_lanes_require_a_key(conn: Any) -> None:
    """A message without a key is refused, alone and in bulk, and nothing is half done."""
    await a_group(conn, lanes="named")

    for act in (publish(conn, "one"), publish_many(conn, "one", "two", keys=["a", None])):
        assert await refused(act, "PB402") == "give a key: it names the lane"

    assert (await pop(conn)).messages == []
    assert await refused(conn.execute("select postbus.set_topic('t', '{\"lanes\": 8}')"), "PB408")


async def test_each_key_gets_its_share_of_a_pop(conn: Any) -> None:
    """A key with many messages does not keep other keys waiting."""
    await a_group(conn, *(f"a{n}" for n in range(50)), "b0", "c0", keys=[*["a"] * 50, "b", "c"])

    popped = await pop(conn, 6)

    assert {"b0", "c0"} <= set(popped.messages)
    assert popped.messages[:3] == ["a0", "a1", "a2"]


async def test_longest_waiting_key_comes_first(conn: Any) -> None:
    """With a hundred keys and pops of one message, each key has its turn before any has its second."""
    keys: list[str | None] = [f"k{n % 100}" for n in range(300)]
    await a_group(conn, *map(str, range(300)), keys=keys, lanes="named")
    served: list[str | None] = []
    for _ in range(200):
        popped = await pop(conn)
        served += popped.keys
        await ack(conn, popped)

    assert sorted(map(str, served[:100])) == sorted({str(key) for key in keys})
    assert sorted(map(str, served[100:])) == sorted({str(key) for key in keys})


async def test_empty_pop_writes_nothing(conn: Any) -> None:
    """It uses no transaction id, so many consumers may wait."""
    await a_group(conn)

    async with conn.transaction():
        await pop(conn)
        assert await conn.fetchval("select pg_current_xact_id_if_assigned()") is None


async def test_pop_is_a_heartbeat(conn: Any) -> None:
    """A pop renews `seen_at` of its group."""
    group = await a_group(conn)
    await conn.execute("update postbus.subscription set seen_at = clock_timestamp() - interval '2 minutes'")

    await pop(conn)

    assert await conn.fetchval(
        "select seen_at > clock_timestamp() - interval '1 minute' from postbus.subscription where id = $1", group
    )


async def test_paused_group_gets_nothing(conn: Any) -> None:
    """After it is resumed, no message is missing."""
    await a_group(conn, "one")
    await conn.execute("select postbus.set_group_state('t', 'g', 'PAUSED')")
    assert (await pop(conn)).messages == []
    await conn.execute("select postbus.set_group_state('t', 'g', 'ACTIVE')")

    assert (await pop(conn)).messages == ["one"]


async def test_pop_leaves_lanes_to_their_worker(conn: Any) -> None:
    """A pop takes nothing from a worker's lanes; when the worker is gone, it continues at the worker's position."""
    group = await a_group(conn, "one", "two")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor, 1)

    assert (await pop(conn, 5)).messages == []
    await advance(conn, [lane], result.next, len(result.messages))
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", group)

    assert (await pop(conn, 5)).messages == ["one", "two"][len(result.messages) :]


async def test_worker_continues_where_pops_stopped(conn: Any) -> None:
    """The worker handles buffered messages, and a popped message stays with its pop until the lease ends."""
    group = await a_group(conn, "one", "two")
    popped = await pop(conn)
    [lane] = await take(conn, "w", group)

    assert [row["payload"] for row in await claim_deferred(conn, lane)] == [b"two"]
    assert (await read(conn, lane.cursor)).messages == []
    after = await claim_deferred(conn, lane, as_of=await later(conn, SOON))
    assert b"one" in [row["payload"] for row in after]
    assert await ack(conn, popped) == popped.ids


async def test_bulk_is_popped_in_parts(conn: Any) -> None:
    """Messages keep their order and content type, however they were published."""
    await create_topic(conn, segment_size=7)
    await subscribe(conn)
    await conn.execute(
        "select postbus.publish_many('t', array(select convert_to(n::text, 'utf8') from generate_series(1, 40) as n), "
        "content_types => array(select case when n % 2 = 0 then 'text/plain' else 'application/json' end "
        "from generate_series(1, 40) as n))"
    )
    got: list[str] = []
    while (popped := await pop(conn, 9)).messages:
        got += popped.messages
        await ack(conn, popped)

    assert got == [str(n) for n in range(1, 41)]


async def test_pop_stops_at_max_bytes(conn: Any) -> None:
    """At least one message always comes."""
    await a_group(conn, "x" * 100, "y" * 100, "z" * 100)

    assert len((await pop(conn, 10, max_bytes=150)).messages) == 2
    assert len((await pop(conn, 10, max_bytes=1)).messages) == 1


async def test_scan_floor_skips_settled_messages(conn: Any) -> None:
    """Rows that became due long ago are not searched, and a message that is freed counts as due now."""
    await a_group(conn, "a1", "a2", keys=["a", "a"])
    popped = await pop(conn, 1)
    assert popped.scan_floor is not None
    await conn.execute("update postbus.deferred set due_at = due_at - interval '1 hour' where parked")
    await ack(conn, popped)

    assert (await pop(conn, scan_floor=popped.scan_floor)).messages == ["a2"]


async def test_pop_in_a_writing_transaction_takes_from_the_pull_buffer(conn: Any) -> None:
    """Only a transaction of its own may move messages into the buffer, so that none is skipped."""
    await a_group(conn, "one", "two")
    first = await pop(conn, 1)
    async with conn.transaction():
        await ack(conn, first)
        assert (await pop(conn, 1)).messages == ["two"]


async def test_receipts_name_the_popping_member(conn: Any) -> None:
    """A message in hand is pending with its holder, and later settled with member and time."""
    await a_group(conn, "one")
    popped = await pop(conn, member="carol")
    [held] = await conn.fetch("select * from postbus.deliveries_of('t', $1)", popped.ids[0])

    await ack(conn, popped)
    [done] = await conn.fetch("select * from postbus.deliveries_of('t', $1)", popped.ids[0])

    assert (held["status"], held["holder"]) == ("PENDING", "carol")
    assert (done["status"], done["worker"], done["attempts"]) == ("COMPLETED", "carol", 1)
    assert await conn.fetchval("select status from postbus.message_state('t', $1)", popped.ids[0]) == "COMPLETED"


async def test_lag_counts_buffered_messages(conn: Any) -> None:
    """From publishing to ack, a message counts as lag or as in flight."""
    await a_group(conn, "one", "two", "three")
    popped = await pop(conn, 1)

    row = await conn.fetchrow("select lag, retrying, in_flight, pending, lag_seconds from postbus.groups")

    assert (row["lag"], row["retrying"], row["in_flight"], row["pending"]) == (2, 0, 1, 3)
    assert row["lag_seconds"] > 0
    await ack(conn, popped)
    assert await conn.fetchval("select pending from postbus.groups") == 2


async def test_message_is_not_in_flight_after_its_lease(conn: Any) -> None:
    """The consumer is gone, so nobody has the message in hand, and it is still pending."""
    await a_group(conn, "one", "two")
    await pop(conn, 1)
    await conn.execute("update postbus.deferred set due_at = clock_timestamp() where token is not null")

    row = await conn.fetchrow("select in_flight, pending from postbus.groups")

    assert (row["in_flight"], row["pending"]) == (0, 2)


async def test_seek_forward_empties_the_pull_buffer(conn: Any) -> None:
    """After a seek back, the group gets its messages again, each once."""
    await a_group(conn, "one", "two", "three")
    await pop(conn, 1)

    await conn.execute("select postbus.seek('t', 'g', 'FROM_NOW')")
    assert (await pop(conn, 5)).messages == []
    await conn.execute("select postbus.seek('t', 'g', 'FROM_BEGINNING')")

    assert (await pop(conn, 5)).messages == ["two", "three"]  # one is in hand


async def test_force_complete_removes_buffered_messages(conn: Any) -> None:
    """They count as skipped; a message in hand stays there, and later messages come."""
    await a_group(conn, "one", "two", "three")
    popped = await pop(conn, 1)
    for dry_run in (True, False):
        told = await conn.fetchrow("select * from postbus.force_complete('t', '0 s', dry_run => $1)", dry_run)
        assert tuple(told) == ("g", 2)
    await publish_many(conn, "four")

    assert (await pop(conn, 5)).messages == ["four"]
    assert await ack(conn, popped) == []


async def test_return_without_catch_up_empties_the_pull_buffer(conn: Any) -> None:
    """The group continues with messages published from then on."""
    group = await a_group(conn, "one", "two")
    await ack(conn, await pop(conn, 1))
    await conn.execute("update postbus.subscription set state = 'DEAD'")

    told = await conn.fetchrow("select missed, skipped from postbus.resurrect(array[$1::bigint], false)", group)

    assert tuple(told) == (1, 1)
    await publish_many(conn, "three")
    assert (await pop(conn, 5)).messages == ["three"]


async def test_catch_up_history_is_popped_too(conn: Any) -> None:
    """A group that starts with a long history gets it beside new messages."""
    await create_topic(conn)
    await publish_many(conn, *map(str, range(20)))
    await subscribe(conn, start="FROM_BEGINNING", catch_up=json.dumps({"beside_from": 5}))
    await publish_many(conn, "now")
    got: list[str] = []
    while (popped := await pop(conn, 4)).messages:
        got += popped.messages
        await ack(conn, popped)

    assert sorted(got) == sorted([*map(str, range(20)), "now"])


@pytest.mark.parametrize("is_swept", [False, True])
async def test_late_commits_of_a_key_come_after_the_message_in_hand(
    conn: Any, connect: Connect, is_swept: bool
) -> None:
    """Their sequences are lower than those of messages of their key that are in hand or retried."""
    storage = await create_topic(conn)
    await subscribe(conn)
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    await publish_many(slow, "late 1", "late 2", keys=["k", "k"])
    await publish_many(conn, "one", "two", keys=["k", "k"])
    in_hand = await pop(conn, 1)
    assert in_hand.messages == ["one"]
    await transaction.commit()
    for _ in range(2):
        assert (await pop(conn, 1)).messages == []
        if is_swept:
            await sweep(conn, storage)

    await retry(conn, in_hand)
    got: list[str] = []
    while (popped := await pop(conn, 1)).messages:
        got += popped.messages
        await ack(conn, popped)
    assert got == ["late 1", "late 2", "one", "two"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_small_pops_get_history_and_new_messages(conn: Any, key: str | None) -> None:
    """Both parts of the group have more buffered messages than a pop asks for."""
    await create_topic(conn)
    await publish_many(conn, *map(str, range(20)), keys=["k"] * 20)
    await subscribe(conn, start="FROM_BEGINNING", catch_up=json.dumps({"beside_from": 5}))
    await publish_many(conn, "now", keys=["k"])
    await retry(conn, await pop(conn, 2))
    assert await conn.fetchval("select count(distinct subscription_id) from postbus.deferred") == 2
    options = {} if key is None else {"key": key}
    got: list[str] = []
    while (popped := await pop(conn, 1, **options)).messages:
        got += popped.messages
        await ack(conn, popped)

    assert sorted(got) == sorted([*map(str, range(20)), "now"])


@pytest.mark.parametrize(
    ("options", "code"),
    [({"count": 0}, "PB402"), ({"lease": timedelta(0)}, "PB402"), ({"group": "nobody"}, "PB406")],
)
async def test_bad_pops_are_refused(conn: Any, options: dict[str, Any], code: str) -> None:
    """The error names the remedy."""
    await a_group(conn)
    assert await refused(pop(conn, **options), code)


async def test_queue_has_no_groups_and_no_keys_to_ask_for(conn: Any) -> None:
    """Both parameters are refused before anything is taken."""
    await publish(conn, "one", topic="q")

    assert "leave the group out" in await refused(pop(conn, topic="q", group="g"), "PB432")
    assert await refused(pop(conn, topic="q", group=None, key="a"), "PB402")
    assert (await pop(conn, topic="q", group=None)).messages == ["one"]
