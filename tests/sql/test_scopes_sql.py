"""Scopes: which topics they contain, where groups start in these, and how groups leave them."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.log_sql import (
    advance,
    create_topic,
    cursor_of,
    publish_many,
    read,
    read_all,
    refused,
    rotate,
    subscribe,
    subscribe_scope,
    take,
)
from support.scoping import age

_COUNT = "select count(*) from postbus.subscription where group_name = $1 and state <> 'CANCELLED'"


async def starts_with(conn: Any, subscription: int, topic: str) -> list[str]:
    """Return everything a group has before it in a topic with one lane."""
    return (await read_all(conn, await cursor_of(conn, subscription), topic=topic))[0]


async def starts_of(conn: Any, group: str = "g") -> dict[str, Any]:
    """Return how the group's subscriptions started, by topic."""
    rows = await conn.fetch(
        "select topic, start from postbus.groups where group_name = $1 and state <> 'CANCELLED'", group
    )
    return {row["topic"]: row["start"] for row in rows}


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("orders.*", ["orders.eu", "orders.x-y_z:1/2"], ["orders", "orders.eu.de", "ordersxeu", "my.orders.eu"]),
        ("orders.#", ["orders", "orders.eu", "orders.eu.de"], ["ordersx", "my.orders"]),
        ("*.paid", ["orders.paid"], ["paid", "a.b.paid", "orders.paid.x"]),
        ("#.paid", ["paid", "orders.paid", "a.b.paid"], ["orders.unpaid"]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "a.b", "z"]),
        ("#", ["a", "a.b"], []),
        ("*.*", ["a.b"], ["a", "a.b.c"]),
    ],
)
async def test_pattern_matches_names_by_words(conn: Any, pattern: str, fits: list[str], does_not: list[str]) -> None:
    """A `*` is exactly one word, and a `#` any number of words."""
    for name in (*fits, *does_not):
        await create_topic(conn, name)

    assert sorted(await subscribe_scope(conn, pattern=pattern)) == sorted(fits)


def fits(pattern: list[str], words: list[str]) -> bool:
    """Apply the rule itself, word by word."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return fits(pattern[1:], words) or (bool(words) and fits(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and fits(pattern[1:], words[1:])


async def test_short_patterns_match_exactly_by_the_rule(conn: Any) -> None:
    """Every pattern of up to three words matches exactly the names of up to four words that the rule says."""
    patterns = [one for n in (1, 2, 3) for one in itertools.product("ab*#", repeat=n) if {"*", "#"} & {*one}]
    names = [one for n in (1, 2, 3, 4) for one in itertools.product("ab", repeat=n)]
    pairs = list(itertools.product(patterns, names))
    rows = await conn.fetch(
        "select name || '.' ~ postbus.pattern_regex(pattern) "
        "from unnest($1::text[], $2::text[]) as one (pattern, name)",
        [".".join(pattern) for pattern, _ in pairs],
        [".".join(name) for _, name in pairs],
    )
    for (pattern, name), row in zip(pairs, rows, strict=True):
        assert row[0] == fits([*pattern], [*name]), (pattern, name)


async def test_only_logs_are_in_a_scope(conn: Any) -> None:
    """A QUEUE of the namespace has no groups; when it becomes PUB_SUB it joins."""
    await conn.execute("select postbus.create_topic('q', $1)", json.dumps({"namespace": "ns"}))
    assert await subscribe_scope(conn, namespace="ns") == {}

    await conn.execute("select postbus.move_topic('q', options => '{\"lanes\": 1}')")
    assert await conn.fetchval(_COUNT, "g") == 1
    assert list(await subscribe_scope(conn, namespace="ns")) == ["q"]


@pytest.mark.parametrize("label", ["namespace", "task"])
async def test_labelled_topic_joins_and_unlabelled_topic_stays_subscribed(conn: Any, label: str) -> None:
    """A topic that gets the label joins; one that loses it stays subscribed until it is cancelled."""
    await create_topic(conn, "a", **{label: "billing"})
    await create_topic(conn, "b")
    await subscribe_scope(conn, **{label: "billing"})
    assert await conn.fetchval(f"select {label} from postbus.topics where name = 'a'") == "billing"

    await conn.execute("select postbus.set_topic('b', $1)", json.dumps({label: "billing"}))
    assert sorted(await starts_of(conn)) == ["a", "b"]
    for nothing in (None, ""):
        await conn.execute("select postbus.set_topic('a', $1)", json.dumps({label: nothing}))
        assert await conn.fetchval(f"select {label} from postbus.topics where name = 'a'") is None
    assert sorted(await subscribe_scope(conn, **{label: "billing"})) == ["a", "b"]


async def test_mode_new_starts_within_the_look_back(conn: Any) -> None:
    """Messages within the look-back count and older ones do not; another look-back is another start."""
    await create_topic(conn)
    await publish_many(conn, "old")
    await age(conn, 60)
    await publish_many(conn, "young")
    await age(conn, 3)

    assert await starts_with(conn, (await subscribe_scope(conn, "a", pattern="#", mode="new"))["t"], "t") == ["young"]
    none = await subscribe_scope(conn, "b", pattern="#", mode="new", look_back=timedelta(0))
    assert await starts_with(conn, none["t"], "t") == []
    long = await subscribe_scope(conn, "c", pattern="#", mode="new", look_back=timedelta(minutes=2))
    assert await starts_with(conn, long["t"], "t") == ["old", "young"]


@pytest.mark.parametrize("storage", ["shared", "own"])
async def test_mode_new_gets_every_commit_after_the_record(conn: Any, storage: str) -> None:
    """Commits that the record has not seen count, whatever their time and partition."""
    kept = await create_topic(conn, storage=storage)
    await publish_many(conn, "old")
    await rotate(conn, kept)
    group = (await subscribe_scope(conn, pattern="#", mode="new"))["t"]
    await publish_many(conn, "later")
    await conn.execute("update postbus.segment set published_at = published_at - interval '1 hour'")
    assert await starts_with(conn, group, "t") == ["later"]


async def test_topic_that_enters_the_scope_starts_at_the_record(conn: Any) -> None:
    """Messages published between the record and the change of namespace are not skipped."""
    await create_topic(conn, "t")
    await publish_many(conn, "before")
    await age(conn, 60)
    await subscribe_scope(conn, namespace="ns", mode="new")
    await publish_many(conn, "between")
    await age(conn, 600)

    await conn.execute("""select postbus.set_topic('t', '{"namespace": "ns"}')""")
    [group] = await conn.fetch("select id from postbus.subscription")
    assert await starts_with(conn, group["id"], "t") == ["between"]
    assert await conn.fetchval("select lag from postbus.groups") == 1


async def test_mode_timestamp_applies_to_topics_that_join_later(conn: Any) -> None:
    """The group starts at that time in every topic, also when the time is in the future."""
    await create_topic(conn, "t")
    await publish_many(conn, "old")
    await age(conn, 60)
    await publish_many(conn, "young")
    since = datetime.now(UTC) - timedelta(seconds=30)
    for group, at in (("past", since), ("future", since + timedelta(hours=1))):
        await subscribe_scope(conn, group, namespace="ns", mode="timestamp", start_at=at)
    await conn.execute("""select postbus.set_topic('t', '{"namespace": "ns"}')""")

    ids = {row["group_name"]: row["id"] for row in await conn.fetch("select * from postbus.subscription")}
    assert await starts_with(conn, ids["past"], "t") == ["young"]
    assert await starts_with(conn, ids["future"], "t") == []


async def test_most_specific_record_decides(conn: Any) -> None:
    """A topic's own record precedes a namespace's, that a task's, and that a pattern's."""
    now = datetime.now(UTC)
    await subscribe_scope(conn, pattern="#", mode="all")
    await subscribe_scope(conn, task="work", mode="timestamp", start_at=now)
    await subscribe_scope(conn, namespace="ns", mode="new")
    await create_topic(conn, "by-pattern")
    await create_topic(conn, "by-task", task="work")
    await create_topic(conn, "by-namespace", task="work", namespace="ns")
    assert await starts_of(conn) == {
        "by-pattern": "FROM_BEGINNING",
        "by-task": "FROM_TIMESTAMP",
        "by-namespace": "FROM_NOW",
    }

    await create_topic(conn, "own")
    await conn.execute("delete from postbus.subscription")  # as if it had never existed
    await conn.execute(
        "insert into postbus.scope (group_name, topic, mode, start_at, snapshot) "
        "values ('g', 'own', 'timestamp', $1, '9:9:')",
        now,
    )
    await subscribe_scope(conn, pattern="#")
    assert (await starts_of(conn))["own"] == "FROM_TIMESTAMP"


async def test_first_mode_of_a_scope_stays(conn: Any) -> None:
    """A second call with another mode changes only the handling of failures and of history."""
    await create_topic(conn)
    await subscribe_scope(conn, namespace="ns", mode="new", look_back=timedelta(seconds=9))
    before = await conn.fetchrow("select mode, start_at, recorded_at, snapshot::text from postbus.scope")

    await subscribe_scope(conn, namespace="ns", mode="all", on_failure="pass", catch_up='{"preset": "aggressive"}')
    assert await conn.fetchrow("select mode, start_at, recorded_at, snapshot::text from postbus.scope") == before
    await create_topic(conn, "later", namespace="ns")
    assert await conn.fetchrow("select on_failure, catch_up ->> 'preset' from postbus.subscription") == (
        "pass",
        "aggressive",
    )


async def test_topic_joins_in_the_transaction_that_creates_it(conn: Any) -> None:
    """It accepts messages at once, even if it blocks writes without groups, and the group is required for all of
    them."""
    await subscribe_scope(conn, namespace="ns", mode="new")
    async with conn.transaction():
        await publish_many(conn, "a queue's", topic="q")  # the transaction has written
        await create_topic(conn, namespace="ns", block_writes_on_zero_subscriptions=True)
        [id] = await publish_many(conn, "first")
    [group] = await conn.fetch("select id from postbus.subscription")
    assert await starts_with(conn, group["id"], "t") == ["first"]
    assert await conn.fetchval("select required from postbus.message_state('t', $1)", id) == ["g"]


async def test_topic_joins_in_a_transaction_that_has_written(conn: Any) -> None:
    """The transaction's messages from before and after the change all come, each once."""
    await subscribe_scope(conn, namespace="ns", mode="all")
    await create_topic(conn)
    async with conn.transaction():
        await publish_many(conn, "before")
        await conn.execute("""select postbus.set_topic('t', '{"namespace": "ns"}')""")
        await publish_many(conn, "after")
    await publish_many(conn, "later")
    [group] = await conn.fetch("select id from postbus.subscription")
    assert await starts_with(conn, group["id"], "t") == ["before", "after", "later"]


async def test_history_beyond_the_bound_becomes_a_catch_up(conn: Any) -> None:
    """This holds too for a topic that joins by a change of its labels."""
    bounded = '{"beside_from": 1, "max_messages": 2}'
    await subscribe_scope(conn, namespace="ns", catch_up=bounded)
    for topic in ("a", "b"):
        await create_topic(conn, topic)
        await publish_many(conn, "1", "2", "3", topic=topic)
        await conn.execute("""select postbus.set_topic($1, '{"namespace": "ns"}')""", topic)
        await publish_many(conn, "4", topic=topic)
        ids = [
            row["id"]
            for row in await conn.fetch(
                "select id from postbus.subscription where topic_id = postbus.topic_id($1) order by id", topic
            )
        ]
        assert [await starts_with(conn, one, topic) for one in ids] == [["4"], ["2", "3"]]


async def test_cancelled_topic_stays_out_of_the_scope(conn: Any) -> None:
    """A second call, a change and the sweep do not let the group rejoin; subscribing to the topic does."""
    await create_topic(conn, "a", namespace="ns")
    await create_topic(conn, "b", namespace="ns")
    await subscribe_scope(conn, namespace="ns")
    await conn.execute("select postbus.set_group_state('a', 'g', 'CANCELLED')")

    assert list(await subscribe_scope(conn, namespace="ns")) == ["b"]
    await conn.execute("""select postbus.set_topic('a', '{"task": "t"}')""")
    await conn.execute("select postbus.sweep_subscriptions_as_of(clock_timestamp() + interval '1 year')")
    assert list(await subscribe_scope(conn, namespace="ns")) == ["b"]

    assert list(await subscribe_scope(conn, topic="a", mode="new")) == ["a"]
    assert sorted(await subscribe_scope(conn, namespace="ns")) == ["a", "b"]
    await conn.execute("select postbus.set_group_state('a', 'g', 'CANCELLED')")
    assert await conn.fetchval("select count(*) from postbus.scope where topic = 'a'") == 0, (
        "its own record is forgotten"
    )
    await conn.execute("select postbus.forget_scope('g', namespace => 'ns')")
    assert sorted(await subscribe_scope(conn, namespace="ns")) == ["a", "b"], "it was subscribed again"


async def test_scope_can_be_forgotten(conn: Any) -> None:
    """Existing subscriptions stay or are cancelled with it, and later topics no longer join."""
    await create_topic(conn, "a", namespace="ns")
    for group, cancel in (("stays", False), ("goes", True)):
        await subscribe_scope(conn, group, namespace="ns")
        forgotten = await conn.fetchval(
            "select postbus.forget_scope($1, namespace => 'ns', cancel => $2)", group, cancel
        )
        assert forgotten == 1
    await create_topic(conn, "b", namespace="ns")
    assert await conn.fetchval(_COUNT, "stays") == 1
    assert await conn.fetchval(_COUNT, "goes") == 0
    assert "postbus groups scopes" in await refused(
        conn.execute("select postbus.forget_scope('goes', namespace => 'ns')"), "PB406"
    )


async def test_deleted_topic_takes_its_scope_records_along(conn: Any) -> None:
    """A topic recreated under the same name is another one, and a wider scope includes it."""
    for topic in ("a", "b"):
        await create_topic(conn, topic, namespace="ns")
    await subscribe_scope(conn, "own", topic="a", mode="new")
    await subscribe_scope(conn, "wide", namespace="ns", mode="new")
    await conn.execute("select postbus.delete_topic('a', true)")
    await create_topic(conn, "a", namespace="ns")

    assert await conn.fetchval(_COUNT, "own") == 0
    assert await conn.fetchval(_COUNT, "wide") == 2


async def test_removed_group_rejoins_by_its_wider_scope(conn: Any) -> None:
    """Removal forgets the subscription and the topic's own record, but not the wider scope."""
    await create_topic(conn, "a", namespace="ns")
    await subscribe_scope(conn, topic="a", mode="new")
    await subscribe_scope(conn, namespace="ns", mode="all")
    await conn.execute("select postbus.remove_group('a', 'g')")
    assert await conn.fetchval(_COUNT, "g") == 0

    await subscribe_scope(conn, namespace="ns")
    assert await starts_of(conn) == {"a": "FROM_BEGINNING"}


async def test_scope_is_paused_as_a_whole(conn: Any) -> None:
    """Topics that join a PAUSED scope begin PAUSED; CANCELLED and DEAD subscriptions are left alone."""
    for topic in ("a", "b", "c"):
        await create_topic(conn, topic, namespace="ns")
    await subscribe_scope(conn, namespace="ns")
    await conn.execute("select postbus.set_group_state('b', 'g', 'CANCELLED')")
    await conn.execute("update postbus.subscription set state = 'DEAD' where topic_id = postbus.topic_id('c')")
    set_state = "select postbus.set_scope_state('g', $1, namespace => 'ns')"
    states = "select topic, state from postbus.groups where state <> 'CANCELLED' order by topic"

    assert await conn.fetchval(set_state, "PAUSED") == 1
    assert [tuple(row) for row in await conn.fetch(states)] == [("a", "PAUSED"), ("c", "DEAD")]
    await conn.execute("select postbus.set_group_state('c', 'g', 'CANCELLED')")
    await create_topic(conn, "d", namespace="ns")
    assert [tuple(row) for row in await conn.fetch(states)] == [("a", "PAUSED"), ("d", "PAUSED")]
    assert await conn.fetchval(set_state, "ACTIVE") == 2
    assert "PAUSED or ACTIVE" in await refused(conn.execute(set_state, "CANCELLED"), "PB433")


async def test_subscribing_a_scope_revives_a_dead_group(conn: Any) -> None:
    """The answer says how many messages the group missed."""
    await create_topic(conn, namespace="ns")
    await subscribe_scope(conn, namespace="ns")
    await publish_many(conn, "1", "2")
    await conn.execute("update postbus.subscription set state = 'DEAD'")
    row = await conn.fetchrow("select * from postbus.subscribe_scope('g', namespace => 'ns')")
    assert (row["state"], row["is_new"], row["missed"], row["skipped"]) == ("ACTIVE", False, 2, 0)


async def test_group_topics_lists_the_topics_to_pop_from(conn: Any) -> None:
    """Only topics of the scope with an ACTIVE group count, and asking records nothing."""
    for topic in ("a", "b", "c"):
        await create_topic(conn, topic, namespace="ns")
    ask = "select topic_name from postbus.group_topics('g', namespace => 'ns')"
    assert await conn.fetch(ask) == []
    await subscribe(conn, topic="a")
    await subscribe_scope(conn, topic="b", key="k")
    await conn.execute("select postbus.set_group_state('a', 'g', 'PAUSED')")

    assert [row["topic_name"] for row in await conn.fetch(ask)] == ["b"]
    assert await conn.fetchval("select keys from postbus.group_topics('g', topic => 'b', key => 'k')") == ["k"]
    assert await conn.fetch("select keys from postbus.group_topics('g', topic => 'b', key => 'x')") == []
    assert await conn.fetchval("select count(*) from postbus.scope") == 1


async def test_scope_is_not_recorded_in_a_transaction_that_has_written(conn: Any) -> None:
    """Such a transaction has no position of now, but may check that all topics are subscribed."""
    await create_topic(conn, namespace="ns")
    async with conn.transaction():
        await publish_many(conn, "x")
        assert "transaction of its own" in await refused(_nested(conn, "g"), "PB431")
    await subscribe_scope(conn, namespace="ns")
    async with conn.transaction():
        await publish_many(conn, "x")
        assert list(await subscribe_scope(conn, namespace="ns")) == ["t"]


async def _nested(conn: Any, group: str) -> None:
    async with conn.transaction():
        await subscribe_scope(conn, group, namespace="ns")


_LONG = "x" * 201


@pytest.mark.parametrize(
    ("scope", "code"),
    [
        ({}, "PB402"),
        ({"topic": "t", "namespace": "ns"}, "PB402"),
        ({"namespace": "ns", "task": "t"}, "PB402"),
        ({"namespace": "ns", "key": "k"}, "PB402"),
        ({"topic": "t", "key": "k" * 1001}, "PB402"),
        ({"topic": "t", "key": "k", "catch_up": '{"max_messages": 10}'}, "PB402"),
        ({"namespace": "no name"}, "PB401"),
        ({"task": ""}, "PB401"),
        ({"task": _LONG}, "PB401"),
        ({"pattern": "orders"}, "PB401"),
        ({"pattern": "ord*"}, "PB401"),
        ({"pattern": "a..#"}, "PB401"),
        ({"pattern": f"*.{_LONG}"}, "PB401"),
        ({"topic": "no such"}, "PB401"),
        ({"topic": "unknown"}, "PB432"),
        ({"topic": "t", "mode": "old"}, "PB402"),
        ({"topic": "t", "mode": None}, "PB402"),
        ({"topic": "t", "mode": "timestamp"}, "PB402"),
        ({"topic": "t", "mode": "new", "start_at": datetime(2030, 1, 1, tzinfo=UTC)}, "PB402"),
        ({"topic": "t", "mode": "new", "look_back": timedelta(seconds=-1)}, "PB402"),
        ({"topic": "t", "mode": "new", "look_back": None}, "PB402"),
        ({"topic": "t", "on_failure": "stop"}, "PB402"),
        ({"topic": "t", "catch_up": '{"speed": 1}'}, "PB402"),
    ],
    ids=str,
)
async def test_bad_scopes_are_refused(conn: Any, scope: dict[str, Any], code: str) -> None:
    """The error has a remedy, and nothing is recorded."""
    await create_topic(conn)
    assert await refused(subscribe_scope(conn, **{"mode": "all"} | scope), code)
    assert await conn.fetchval("select count(*) from postbus.scope") == 0


@pytest.mark.parametrize("label", ["namespace", "task"])
@pytest.mark.parametrize("name", ["no name", _LONG, "-x"])
async def test_labels_follow_the_rules_for_names(conn: Any, label: str, name: str) -> None:
    """The rules are those for topic names."""
    assert "200 letters" in await refused(create_topic(conn, **{label: name}), "PB402")


async def read_some(conn: Any, group: int, count: int) -> Any:
    """Let a worker settle the first messages of a topic. Returns its lane."""
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor, count)
    assert result.during
    await advance(conn, [lane], result.during, count, result.at[count - 1])
    return lane


async def retried(conn: Any, group: int) -> list[tuple[str, bool]]:
    """Return a group's deferred messages: payloads, and whether they are parked behind others of their key."""
    rows = await conn.fetch("select * from postbus.deferred where subscription_id = $1 order by sequence, id", group)
    return [(row["payload"].decode(), row["parked"]) for row in rows]


async def test_added_key_starts_at_its_own_record(conn: Any) -> None:
    """Messages before the group's position are deferred, and later ones come from the log."""
    await create_topic(conn)
    await publish_many(conn, "a1", "b1", "b2", "c1", "b3", keys=["a", "b", "b", "c", "b"])
    group = (await subscribe_scope(conn, topic="t", key="a"))["t"]
    lane = await read_some(conn, group, 4)

    await subscribe_scope(conn, topic="t", key="b")
    assert await conn.fetchval("select keys from postbus.subscription") == ["a", "b"]
    assert await retried(conn, group) == [("b1", False), ("b2", True)]
    assert await advance(conn, [lane], lane.cursor) == [1], "who was at work has lost the lane"
    [again] = await take(conn, "w", group)
    assert (await read(conn, again.cursor)).messages == ["b3"]
    await subscribe_scope(conn, topic="t", key="b")
    assert len(await retried(conn, group)) == 2, "and that once"
    assert await conn.fetch("select * from postbus.inconsistencies()") == []


async def test_added_key_with_a_later_start_skips_its_older_messages(conn: Any) -> None:
    """A group that is behind gets only those messages of the key that the key's record includes."""
    await create_topic(conn)
    group = (await subscribe_scope(conn, topic="t", key="a"))["t"]
    await publish_many(conn, "b old", "a old", keys=["b", "a"])
    await age(conn, 60)
    await publish_many(conn, "b young", keys=["b"])
    await subscribe_scope(conn, topic="t", key="b", mode="new")

    assert await retried(conn, group) == []
    [lane] = await take(conn, "w", group)
    settled = await conn.fetch("select id from postbus.deferred_of(array[$1::uuid]) where is_done", lane.token)
    result = await read(conn, lane.cursor)
    passed = {row["id"] for row in settled}
    left = [payload for payload, id in zip(result.messages, result.ids, strict=True) if id not in passed]
    assert left == ["a old", "b young"]


async def test_key_that_starts_at_a_message_gets_none_before_it(conn: Any) -> None:
    """This holds within one segment too, on both sides of the group's position."""
    await create_topic(conn)
    ids = await publish_many(conn, "b1", "b2", "a1", "b3", "b4", "b5", keys=["b", "b", "a", "b", "b", "b"])
    group = (await subscribe_scope(conn, topic="t", key="a"))["t"]
    await read_some(conn, group, 4)
    await subscribe_scope(conn, topic="t", key="b", mode="message", start_id=ids[1])
    assert await retried(conn, group) == [("b2", False), ("b3", True)]

    other = (await subscribe_scope(conn, "other", topic="t", key="a"))["t"]
    await subscribe_scope(conn, "other", topic="t", key="b", mode="message", start_id=ids[4])
    [lane] = await take(conn, "w", other)
    settled = await conn.fetch("select id from postbus.deferred_of(array[$1::uuid]) where is_done", lane.token)
    assert sorted(row["id"] for row in settled) == [ids[0], ids[1], ids[3]]


async def test_key_record_adds_what_the_groups_start_left_out(conn: Any) -> None:
    """A key's record only adds messages, and none that the group already had comes again."""
    await create_topic(conn)
    await publish_many(conn, "a old", "b old", keys=["a", "b"])
    await age(conn, 60)
    group = (await subscribe_scope(conn, topic="t", mode="new"))["t"]
    await publish_many(conn, "a new", "b new", keys=["a", "b"])
    await read_some(conn, group, 2)

    await subscribe_scope(conn, topic="t", key="a", mode="all")
    assert await retried(conn, group) == [("a old", False)]
    assert await conn.fetchval("select keys from postbus.subscription") is None
    await conn.execute("delete from postbus.deferred")
    await subscribe_scope(conn, topic="t", key="a", mode="all")
    await subscribe_scope(conn, topic="t", key="b", mode="new")
    assert await retried(conn, group) == []


@pytest.mark.parametrize("wider", [{"topic": "t"}, {"namespace": "ns"}], ids=str)
async def test_group_with_keys_is_widened_to_all_keys(conn: Any, wider: dict[str, Any]) -> None:
    """A record for the topic, or a wider one, brings all other keys and messages without a key."""
    await create_topic(conn, namespace="ns")
    await publish_many(conn, "a1", "b1", "none", "b2", keys=["a", "b", None, "b"])
    group = (await subscribe_scope(conn, topic="t", key="a"))["t"]
    await read_some(conn, group, 4)

    await subscribe_scope(conn, **wider, mode="all")
    assert await conn.fetchval("select keys from postbus.subscription") is None
    assert await retried(conn, group) == [("b1", False), ("none", False), ("b2", True)]


async def test_key_with_more_history_than_beside_from_is_refused(conn: Any) -> None:
    """Nothing changes, and the remedy is a group of its own."""
    await create_topic(conn)
    bounded = {"topic": "t", "catch_up": '{"beside_from": 2}'}
    group = (await subscribe_scope(conn, key="a", **bounded))["t"]
    await publish_many(conn, "a", "b", "b", "b", keys=["a", "b", "b", "b"])
    await read_some(conn, group, 4)
    assert "group of its own" in await refused(subscribe_scope(conn, key="b", **bounded), "PB402")
    assert await conn.fetchval("select keys from postbus.subscription") == ["a"]
    assert await conn.fetchval("select count(*) from postbus.scope") == 1


async def test_pop_takes_only_the_keys_of_the_group(conn: Any) -> None:
    """Other keys are skipped, and an added key starts at its own record."""
    await create_topic(conn)
    await publish_many(conn, "a1", "b1", "c1", keys=["a", "b", "c"])
    await subscribe_scope(conn, topic="t", key="a")

    async def popped() -> list[str]:
        rows = await conn.fetch("select payloads from postbus.pop('t', 'g', max_count => 10, auto_ack => true)")
        return [payload.decode() for row in rows for payload in row["payloads"] or ()]

    assert await popped() == ["a1"]
    await subscribe_scope(conn, topic="t", key="b")
    await publish_many(conn, "a2", "b2", "c2", keys=["a", "b", "c"])
    assert await popped() == ["b1", "a2", "b2"]


async def test_groups_with_different_records_reach_the_same_position(conn: Any) -> None:
    """After reading the history their cursors are equal, so that reads can be shared."""
    await create_topic(conn)
    await publish_many(conn, "1")
    groups = [(await subscribe_scope(conn, group, pattern="#", mode="new"))["t"] for group in ("a", "b")]
    await publish_many(conn, "2")
    first = await read(conn, await cursor_of(conn, groups[0]))
    target = await conn.fetchval("select (($1::text)::postbus.log_cursor).seen::text", first.next)
    second = await read(conn, await cursor_of(conn, groups[1]), target=target)
    assert first.messages == second.messages == ["1", "2"]
    assert first.next == second.next
