"""Claiming, settling and the return of expired leases, in SQL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from support.queue_sql import claim, payloads, publish, states


async def test_message_is_claimed_once(conn: Any) -> None:
    """A message that one member has leased is not given to another."""
    await publish(conn, "one")

    first = await claim(conn, member="a")
    second = await claim(conn, member="b")

    assert payloads(first) == ["one"]
    assert second["token"] is None


async def test_expired_lease_is_claimed_by_another_member(conn: Any) -> None:
    """A message whose lease has ended goes to the next member that asks, as its second attempt."""
    await publish(conn, "one")
    first = await claim(conn, member="a")

    await conn.execute("select postbus.return_expired_as_of(as_of => $1)", first["ends_at"])
    second = await claim(conn, member="b")

    assert second["ids"] == first["ids"]
    assert second["attempts"] == [2]


async def test_ack_without_retention_deletes_the_message(conn: Any) -> None:
    """With a retention of zero, nothing is left of a finished message."""
    await publish(conn, "one", "two")
    claimed = await claim(conn)

    lost = await conn.fetchval("select postbus.ack($1, $2)", claimed["token"], claimed["ids"])

    assert lost == []
    assert await states(conn) == {}


@pytest.mark.parametrize("whole", [True, False])
async def test_ack_with_retention_keeps_the_message(conn: Any, whole: bool) -> None:
    """Finished messages stay until the first sweep after their retention."""
    await conn.execute("""select postbus.create_topic('t', '{"retention": "1 hour"}')""")
    await publish(conn, "one", "two")
    claimed = await claim(conn)
    if whole:
        await conn.fetchval("select postbus.ack_leases(array[$1::uuid])", claimed["token"])
    else:
        await conn.fetchval("select postbus.ack($1, $2)", claimed["token"], claimed["ids"])
    assert await states(conn) == {"finished": 2}

    await conn.execute("select postbus.sweep_as_of(as_of => clock_timestamp() + interval '59 minutes')")
    assert await states(conn) == {"finished": 2}
    await conn.execute("select postbus.sweep_as_of(as_of => clock_timestamp() + interval '61 minutes')")
    assert await states(conn) == {}


async def test_part_of_a_lease_can_be_acked(conn: Any) -> None:
    """Acknowledging some messages of a lease leaves the others leased, and `ack_leases` settles the rest."""
    one, two, three = await publish(conn, "one", "two", "three")
    claimed = await claim(conn)

    assert await conn.fetchval("select postbus.ack($1, $2)", claimed["token"], [two]) == []
    assert await states(conn) == {"leased": 2}
    assert await conn.fetchval("select postbus.ack($1, $2)", claimed["token"], [two]) == [two]
    assert await conn.fetchval("select postbus.ack_leases(array[$1::uuid])", claimed["token"]) == []
    assert await states(conn) == {}
    assert await conn.fetchval("select postbus.ack($1, $2)", claimed["token"], [one, three]) == [one, three]


async def test_highest_priority_comes_first(conn: Any) -> None:
    """Messages come by priority, then in the order of publishing."""
    await publish(conn, "usual 1", "usual 2")
    await publish(conn, "low", priority=0)
    await publish(conn, "high 1", "high 2", priority=9)

    first = await claim(conn, 3)
    second = await claim(conn, 3, scan_floor=first["next_scan_floor"])

    assert payloads(first) == ["high 1", "high 2", "usual 1"]
    assert payloads(second) == ["usual 2", "low"]


async def test_high_priority_overtakes_a_backlog_behind_the_scan_floor(conn: Any) -> None:
    """The scan floor hides no message that arrives later with another priority."""
    await publish(conn, *(f"usual {n}" for n in range(10)))
    first = await claim(conn, 5)
    await publish(conn, "high", priority=7)
    await publish(conn, "low", priority=1)

    second = await claim(conn, 20, scan_floor=first["next_scan_floor"])

    assert payloads(second) == ["high", *(f"usual {n}" for n in range(5, 10)), "low"]


async def test_delayed_message_waits_until_due(conn: Any) -> None:
    """A claim returns no delayed message, and says when the next one is due."""
    await publish(conn, "later", delay=timedelta(hours=1))

    early = await claim(conn)
    due = await claim(
        conn, scan_floor=early["next_scan_floor"], as_of=await conn.fetchval("select now() + interval '61 min'")
    )

    assert early["token"] is None
    assert timedelta(minutes=59) < early["next_due"] <= timedelta(hours=1)
    assert payloads(due) == ["later"]
    assert due["attempts"] == [1]


async def test_deliver_at_in_the_past_means_now(conn: Any) -> None:
    """A message that is scheduled for the past is due at once."""
    await publish(conn, "now", deliver_at=await conn.fetchval("select now() - interval '1 day'"))

    assert payloads(await claim(conn)) == ["now"]


async def test_retry_waits_for_its_delay(conn: Any) -> None:
    """A retried message comes back after its delay, as the next attempt, and keeps its error."""
    (one,) = await publish(conn, "one")
    claimed = await claim(conn)

    said = await conn.fetch("select * from postbus.retry($1, $2, '10 s', 'boom')", claimed["token"], claimed["ids"])

    assert [tuple(row) for row in said] == [(one, "retried")]
    assert (await claim(conn))["token"] is None
    assert await conn.fetchval("select last_error from postbus.messages") == "boom"
    again = await claim(conn, as_of=await conn.fetchval("select clock_timestamp() + interval '11 s'"))
    assert (again["ids"], again["attempts"]) == ([one], [2])


async def test_retry_delay_grows_by_the_topics_policy(conn: Any) -> None:
    """Without an explicit delay, each wait is longer than the one before, up to the maximum."""
    await conn.execute(
        """select postbus.create_topic('t', '{"retry_initial": "1s", "retry_factor": 3, "retry_max": "20s",
           "retry_jitter": 0}')"""
    )
    waits = await conn.fetch(
        "select postbus.backoff(t, n) as wait from postbus.topic t, generate_series(1, 5) as n where t.name = 't'"
    )

    assert [row["wait"].total_seconds() for row in waits] == [1, 3, 9, 20, 20]


async def test_too_many_attempts_make_a_dead_letter(conn: Any) -> None:
    """The last failing attempt makes a dead letter with its reason, error and number of attempts."""
    await conn.execute("""select postbus.create_topic('t', '{"max_attempts": 2}')""")
    (one,) = await publish(conn, "one")
    for expected in ("retried", "dead"):
        claimed = await claim(conn)
        said = await conn.fetchrow("select * from postbus.retry($1, $2, '0 s', 'boom')", claimed["token"], [one])
        assert said["outcome"] == expected

    dead = await conn.fetchrow("select * from postbus.dead_letters")
    assert (dead["id"], dead["attempts"], dead["reason"], dead["last_error"]) == (
        one,
        2,
        "failed 2 times",
        "boom",
    )


async def test_message_that_kills_its_process_becomes_a_dead_letter(conn: Any) -> None:
    """Attempts are counted before the handler runs, so expired leases count too."""
    await conn.execute("""select postbus.create_topic('t', '{"max_attempts": 3}')""")
    await publish(conn, "poison")
    now = await conn.fetchval("select clock_timestamp()")
    for _ in range(3):
        claimed = await claim(conn, as_of=now)
        assert claimed["token"] is not None
        await conn.execute("select postbus.return_expired_as_of(as_of => $1)", claimed["ends_at"])
        now = claimed["ends_at"] + timedelta(minutes=1)

    assert (await claim(conn, as_of=now))["token"] is None
    assert "ended 3 times" in await conn.fetchval("select reason from postbus.dead_letters")


async def test_settlement_with_a_lost_lease_changes_nothing(conn: Any) -> None:
    """Ack, retry, dead-letter, release and extend report the lost lease and do nothing else."""
    (one,) = await publish(conn, "one")
    old = await claim(conn, member="a")
    await conn.execute("select postbus.return_expired_as_of(as_of => $1)", old["ends_at"])
    new = await claim(conn, member="b")
    token = old["token"]

    assert await conn.fetchval("select postbus.ack($1, $2)", token, [one]) == [one]
    assert await conn.fetchval("select postbus.ack_leases(array[$1::uuid])", token) == [token]
    assert await conn.fetchval("select outcome from postbus.retry($1, $2)", token, [one]) == "lost"
    assert await conn.fetchval("select postbus.dead_letter($1, $2, 'no')", token, [one]) == [one]
    assert await conn.fetchval("select postbus.release($1, $2)", token, [one]) == [one]
    assert await conn.fetchval("select postbus.extend(array[$1::uuid], '1 min')", token) == [token]
    assert await states(conn) == {"leased": 1}
    assert await conn.fetchval("select postbus.ack($1, $2)", new["token"], [one]) == []


async def test_extended_lease_ends_later(conn: Any) -> None:
    """An extended lease is not returned at its original end."""
    await publish(conn, "one")
    claimed = await claim(conn)

    assert await conn.fetchval("select postbus.extend(array[$1::uuid], '1 hour')", claimed["token"]) == []

    assert await conn.fetchval("select postbus.return_expired_as_of(as_of => $1)", claimed["ends_at"]) == 0
    assert await states(conn) == {"leased": 1}


async def test_released_message_keeps_its_attempts(conn: Any) -> None:
    """Giving back an untouched message does not use up an attempt."""
    await publish(conn, "one")
    claimed = await claim(conn)
    await conn.execute("select postbus.release($1, $2)", claimed["token"], claimed["ids"])

    assert (await claim(conn))["attempts"] == [1]


async def test_claim_stops_at_max_bytes(conn: Any) -> None:
    """A claim takes no more payload than asked for, but at least one message."""
    await publish(conn, *("x" * 1000 for _ in range(5)))

    first = await claim(conn, 10, max_bytes=2500)
    second = await claim(conn, 10, max_bytes=1, scan_floor=first["next_scan_floor"])
    rest = await claim(conn, 10, scan_floor=second["next_scan_floor"])

    assert [len(one["ids"]) for one in (first, second, rest)] == [3, 1, 1]
    assert (first["more"], second["more"], rest["more"]) == (True, True, False)


async def test_idle_claim_writes_nothing(conn: Any) -> None:
    """A claim that finds nothing uses no transaction id."""
    async with conn.transaction():
        await claim(conn)
        assert await conn.fetchval("select pg_current_xact_id_if_assigned()") is None


async def test_paused_topic_delivers_nothing(conn: Any) -> None:
    """Messages of a paused topic wait until it is resumed."""
    await publish(conn, "one")
    await conn.execute("select postbus.pause_topic('t')")
    assert (await claim(conn))["token"] is None

    await conn.execute("select postbus.resume_topic('t')")
    assert payloads(await claim(conn)) == ["one"]


@pytest.mark.parametrize(("name", "value"), [("max_count", 0), ("lease", timedelta(0))])
async def test_claim_with_zero_count_or_zero_lease_is_refused(conn: Any, name: str, value: Any) -> None:
    """The error code says that the parameter is invalid."""
    count = value if name == "max_count" else 1
    options = {} if name == "max_count" else {name: value}
    with pytest.raises(asyncpg.PostgresError) as caught:
        await claim(conn, count, **options)
    assert caught.value.sqlstate == "PB402"


@pytest.mark.parametrize("function", ["ack($1, $2)", "release($1, $2)", "dead_letter($1, $2, 'no')"])
@pytest.mark.parametrize("ids", [None, [None]])
async def test_null_ids_settle_nothing(conn: Any, function: str, ids: Any) -> None:
    """A null id names no message: the lease keeps its messages."""
    await publish(conn, "one", "two")
    claimed = await claim(conn)
    await conn.fetchval(f"select postbus.{function}", claimed["token"], ids)

    assert await states(conn) == {"leased": 2}


async def test_claim_returns_the_length_of_its_lease(conn: Any) -> None:
    """The length is the requested one or the topic's, however long the claim took."""
    await publish(conn, "one", "two")

    assert (await claim(conn, 1))["lease_length"] == timedelta(seconds=30)
    assert (await claim(conn, 1, lease=timedelta(seconds=5)))["lease_length"] == timedelta(seconds=5)
