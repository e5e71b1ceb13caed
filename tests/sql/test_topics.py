"""Topics, dead letters and the sweep, in SQL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from support.fix_database import Connect
from support.queue_sql import ack, claim, payloads, publish, states


async def topic(conn: Any, name: str = "t") -> Any:
    return await conn.fetchrow("select * from postbus.topics where name = $1", name)


async def bury(conn: Any, *texts: str, reason: str = "no", **options: Any) -> list[int]:
    """Publish messages and make dead letters of them."""
    ids = await publish(conn, *texts, **options)
    claimed = await claim(conn, len(texts))
    await conn.execute("select postbus.dead_letter($1, $2, $3, 'boom')", claimed["token"], claimed["ids"], reason)
    return ids


async def refused(conn: Any, code: str, sql: str, *args: Any) -> asyncpg.PostgresError:
    """Check that the statement fails with our code and names a remedy."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        await conn.fetch(sql, *args)
    assert caught.value.sqlstate == code
    assert caught.value.hint
    return caught.value


async def test_topic_has_the_options_it_was_created_with(conn: Any) -> None:
    """Every option at a value other than its default is stored and shown."""
    await conn.execute(
        """select postbus.create_topic('t', '{"ordered": true, "lease": "90s", "max_attempts": 7,
           "retry_initial": "2s", "retry_factor": 1.5, "retry_max": "10 min", "retry_jitter": 0.5, "retention": "24h",
           "dedup_window": "1h", "max_payload_bytes": 1000, "notify": true, "semantics": "QUEUE"}')"""
    )
    shown = dict(await topic(conn))
    expected = {
        "ordered": True, "lease": timedelta(seconds=90), "max_attempts": 7, "retry_initial": timedelta(seconds=2),
        "retry_factor": 1.5, "retry_max": timedelta(minutes=10), "retry_jitter": 0.5, "retention": timedelta(days=1),
        "dedup_window": timedelta(hours=1), "max_payload_bytes": 1000, "notify": True, "semantics": "QUEUE",
        "configured": True, "waiting": 0,
    }  # fmt: skip
    assert shown | expected == shown


@pytest.mark.parametrize(
    "options",
    [
        '{"colour": "red"}', '{"lease": "soon"}', '{"lease": "0s"}', '{"lease": null}', '{"max_attempts": 0}',
        '{"max_attempts": "many"}', '{"retry_factor": 0.5}', '{"retry_jitter": 2}', '{"retention": "-1h"}',
        '{"retry_initial": "2h", "retry_max": "1h"}', '{"dedup_window": "0s"}', '{"max_payload_bytes": 0}',
        '{"semantics": "PIGEON"}', '{"ordered": "perhaps"}', "[]", '"x"', "null",
    ],
)  # fmt: skip
async def test_bad_topic_options_are_refused(conn: Any, options: str) -> None:
    """The error names the option, and nothing is created."""
    await refused(conn, "PB402", "select postbus.create_topic('t', $1)", options)
    assert await topic(conn) is None


async def test_existing_topic_cannot_be_created_again(conn: Any) -> None:
    """The error code tells a conflict from other failures."""
    await conn.execute("select postbus.create_topic('t')")
    await refused(conn, "PB409", "select postbus.create_topic('t')")


async def test_used_topic_can_be_configured_later(conn: Any) -> None:
    """A topic that was only published to is listed, and can get its options afterwards."""
    await publish(conn, "one")
    assert (await topic(conn))["configured"] is False

    await conn.execute("""select postbus.set_topic('t', '{"max_attempts": 3}')""")

    shown = await topic(conn)
    assert (shown["configured"], shown["max_attempts"], shown["waiting"]) == (True, 3, 1)


@pytest.mark.parametrize("function", ["set_topic('t', '{}')", "pause_topic('t')", "delete_topic('t')", "redrive('t')"])
async def test_unknown_topic_is_not_found(conn: Any, function: str) -> None:
    """The error for a missing topic says how to create it."""
    error = await refused(conn, "PB404", f"select postbus.{function}")
    assert "create" in (error.hint or "")


async def test_topic_with_messages_is_not_deleted(conn: Any) -> None:
    """Deleting needs an empty topic, or `force`, which deletes everything in it."""
    await bury(conn, "dead")
    await publish(conn, "one", dedup_key="d")
    await refused(conn, "PB408", "select postbus.delete_topic('t')")
    claimed = await claim(conn)
    await refused(conn, "PB408", "select postbus.delete_topic('t')")
    await ack(conn, claimed)
    await refused(conn, "PB408", "select postbus.delete_topic('t')")  # the dead letter

    await conn.execute("select postbus.delete_topic('t', force => true)")

    assert await topic(conn) is None
    assert await states(conn) == {}
    assert await conn.fetchval("select count(*) from postbus.dedup") == 0


@pytest.mark.parametrize(("columns", "are_counted"), [("name, semantics, retention", False), ("waiting", True)])
async def test_view_does_not_count_messages_unless_asked(conn: Any, columns: str, are_counted: bool) -> None:
    """Pausing a topic with a million messages reads its semantics, and must not spend time on counting them."""
    plan = await conn.fetch(f"explain select {columns} from postbus.topics where name = 't'")
    assert any(" on queued " in line for (line,) in plan) is are_counted


async def test_purge_deletes_waiting_messages(conn: Any) -> None:
    """A purge deletes messages that wait, due or scheduled, and leaves leased ones; a dry run only counts."""
    await publish(conn, "leased")
    await claim(conn)
    await publish(conn, "now 1", "now 2")
    await publish(conn, "later", delay=timedelta(hours=1))

    assert await conn.fetchval("select postbus.purge_topic('t', dry_run => true)") == 3
    assert await conn.fetchval("select postbus.purge_topic('t')") == 3
    assert await states(conn) == {"leased": 1}


async def test_redrive_puts_all_dead_letters_back(conn: Any) -> None:
    """Redriven messages start over with the same id and a first attempt."""
    ids = await bury(conn, "one", "two", key="k", headers='{"a": "b"}', correlation_id="c", priority=7)

    assert await conn.fetchval("select postbus.redrive('t', dry_run => true)") == 2
    assert await states(conn) == {"dead": 2}
    assert await conn.fetchval("select postbus.redrive('t')") == 2

    claimed = await claim(conn)
    assert (claimed["ids"], claimed["attempts"], payloads(claimed)) == (ids, [1, 1], ["one", "two"])
    assert (claimed["keys"], claimed["correlation_ids"], claimed["priorities"]) == (
        ["k"] * 2,
        ["c"] * 2,
        [7] * 2,
    )
    assert claimed["headers"] == ['{"a": "b"}'] * 2


async def test_redrive_can_be_filtered(conn: Any) -> None:
    """Ids, reason, key, time and number choose which dead letters are put back."""
    (a,) = await bury(conn, "a", reason="timeout of x", key="ka")
    (b,) = await bury(conn, "b", reason="bad data", key="kb")
    (c,) = await bury(conn, "c", reason="timeout of y", key="kc")
    await conn.execute("update postbus.dead_letter set died_at = died_at - interval '1 day' where id = $1", a)

    async def matches(filters: str) -> int:
        return int(await conn.fetchval(f"select postbus.redrive('t', {filters}, dry_run => true)"))

    assert await matches("reason_like => '%timeout%'") == 2
    assert await matches("reason_like => '%boom%'") == 3  # the last error counts too
    assert await matches("key => 'kb'") == 1
    assert await matches("died_before => now() - interval '1 hour'") == 1
    assert await matches("died_after => now() - interval '1 hour'") == 2
    assert await matches("max_count => 2") == 2
    assert await conn.fetchval("select postbus.redrive('t', ids => $1)", [a, c]) == 2
    assert await conn.fetchval("select id from postbus.dead_letters") == b


async def test_redrive_with_an_unknown_id_is_refused(conn: Any) -> None:
    """If one id is not a dead letter of the topic, none is put back."""
    ids = await bury(conn, "one")
    error = await refused(conn, "PB405", "select postbus.redrive('t', ids => $1)", [*ids, 4711])
    assert "4711" in str(error)
    assert await states(conn) == {"dead": 1}


async def test_redrive_at_a_rate_spreads_messages(conn: Any) -> None:
    """With a rate of two per second, the n-th message is due after n/2 seconds."""
    await bury(conn, "one", "two", "three")
    await conn.execute("select postbus.redrive('t', rate => 2)")
    dues = [row["at"] for row in await conn.fetch("select at from postbus.messages order by id")]

    assert [due - dues[0] for due in dues] == [timedelta(seconds=n / 2) for n in range(3)]
    await refused(conn, "PB402", "select postbus.redrive('t', rate => 0)")


async def test_dead_letters_can_be_purged(conn: Any) -> None:
    """Purging dead letters is final, and ids that are gone are named."""
    one, two, _ = await bury(conn, "one", "two", "three")
    assert await conn.fetchval("select postbus.purge_dead_letters('t', $1)", [one]) == 1
    await refused(conn, "PB405", "select postbus.purge_dead_letters('t', $1)", [one, two])
    assert await conn.fetchval("select postbus.purge_dead_letters('t', dry_run => true)") == 2
    assert await conn.fetchval("select postbus.purge_dead_letters('t')") == 2
    assert await states(conn) == {}


async def test_errors_are_truncated(conn: Any) -> None:
    """An error of any length is cut at 4000 characters."""
    await publish(conn, "one")
    claimed = await claim(conn)
    await conn.execute(
        "select postbus.dead_letter($1, $2, 'no', repeat('x', 100000))", claimed["token"], claimed["ids"]
    )
    assert await conn.fetchval("select length(last_error) from postbus.dead_letters") == 4000


async def test_sweep_forgets_dedup_keys_after_their_window(conn: Any) -> None:
    """A deduplication key is forgotten when its window is over, not before."""
    await publish(conn, "one", dedup_key="d")
    await conn.execute("select postbus.sweep_as_of(as_of => clock_timestamp() + interval '23 hours')")
    assert await conn.fetchval("select count(*) from postbus.dedup") == 1
    await conn.execute("select postbus.sweep_as_of(as_of => clock_timestamp() + interval '25 hours')")
    assert await conn.fetchval("select count(*) from postbus.dedup") == 0


async def test_only_one_process_sweeps_at_a_time(connect: Connect) -> None:
    """A second sweep returns at once and removes nothing."""
    a, b = await connect(), await connect()
    await publish(a, "one", dedup_key="d")
    later = "as_of => clock_timestamp() + interval '25 hours'"
    async with a.transaction():
        assert await a.fetchval(f"select dedup_keys from postbus.sweep_as_of({later})") == 1
        assert await b.fetchval(f"select dedup_keys from postbus.sweep_as_of({later})") == 0


async def test_sweep_works_in_batches(conn: Any) -> None:
    """A sweep that did not finish reports `more`, so that the sweeper continues."""
    for n in range(5):
        await publish(conn, "one", dedup_key=f"d{n}")
    later = "as_of => clock_timestamp() + interval '25 hours', max_count => 3"
    assert await conn.fetchval(f"select more from postbus.sweep_as_of({later})") is True
    assert await conn.fetchval(f"select more from postbus.sweep_as_of({later})") is False
    assert await conn.fetchval("select count(*) from postbus.dedup") == 0


async def test_view_shows_json_payloads_as_json(conn: Any) -> None:
    """Payloads that jsonb can hold are shown as JSON; others are null there, and bytes beside it."""
    await conn.execute("""select postbus.publish('t', '{"a": 1}'::jsonb)""")
    await conn.execute("select postbus.publish('t', $1::bytea, content_type => 'application/json')", b'"\\u0000"')
    await publish(conn, "text")
    shown = await conn.fetch("select payload_json from postbus.messages order by id")
    assert [row[0] for row in shown] == ['{"a": 1}', None, None]
