"""A dump restored into another server: transaction ids start over there, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from faults.servers.installation import bin_dir
from postbus.embedded import EmbeddedPostgres
from support.log_sql import (
    advance,
    create_topic,
    cursor_of,
    defer,
    let_die,
    partitions_of,
    publish_many,
    read,
    read_all,
    refused,
    rotate,
    subscribe,
    subscribe_scope,
    sweep,
    take,
)
from support.pop_sql import pop
from support.queue_sql import publish
from support.scoping import age

Restore = Callable[[], Awaitable[Any]]


@pytest.fixture(scope="module")
def other_server(server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A server with a data folder of its own."""
    folder = Path(tempfile.gettempdir()) / f"postbus-test-{secrets.token_hex(8)}"
    version = server.version
    with EmbeddedPostgres.start(folder, version=version, bin_dir=bin_dir(version)) as postgres:
        yield postgres
    shutil.rmtree(folder, ignore_errors=True)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


@pytest.fixture
async def restore(
    dsn: str, other_server: EmbeddedPostgres, client_program: Callable[[str], str]
) -> AsyncIterator[Restore]:
    """Dumps the test's database, restores it into the other server, and connects to it there."""
    root: Any = await asyncpg.connect(other_server.dsn())
    name = f"restored_{secrets.token_hex(8)}"
    made: list[Any] = []

    async def dump_and_restore() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/dump"
            await _run(
                client_program("pg_dump"), "--format=custom", "--no-privileges", f"--file={file}", f"--dbname={dsn}"
            )
            await root.execute(f"create database {name} template template0")
            await _run(
                client_program("pg_restore"),
                "--no-owner",
                "--exit-on-error",
                f"--dbname={other_server.dsn(name)}",
                file,
            )
        made.append(await asyncpg.connect(other_server.dsn(name)))
        return made[0]

    yield dump_and_restore
    for conn in made:
        await conn.close()
    await root.execute(f"drop database if exists {name} with (force)")
    await root.close()


async def _refused(act: Awaitable[Any]) -> None:
    remedy = await refused(act, "PB507")
    assert remedy == "run: postbus rebase; for a copy that runs beside the original: postbus rebase --as-copy"


async def _rebase(conn: Any) -> int:
    count: int = await conn.fetchval("select postbus.rebase()")
    return count


async def _take_all(conn: Any, group: int, topic: str = "t") -> list[str]:
    """The messages that a worker gets for a group: it takes the lanes, reads and moves on."""
    found = []
    worker = f"worker {secrets.token_hex(4)}"
    for lane in await take(conn, worker, group):
        messages, cursor = await read_all(conn, lane.cursor, 2, lanes=(lane.lane,), topic=topic)
        assert await advance(conn, [lane], cursor, len(messages)) == []
        found += messages
    await conn.execute("select postbus.leave_groups($1, array[$2::bigint])", worker, group)
    return found


async def _burn_ids(conn: Any) -> None:
    """Let a server's transaction ids be far ahead of the other's."""
    await conn.execute("""
        create temp table if not exists burned (n int);
        do $$ begin for i in 1 .. 30000 loop
            begin insert into burned values (1); raise exception 'x'; exception when raise_exception then null; end;
        end loop; end $$
    """)


async def test_states_of_messages_survive_a_restore(conn: Any, restore: Restore) -> None:
    """Messages that were completed in the original are completed here, also by groups that are gone."""
    await _burn_ids(conn)
    storage = await create_topic(conn)
    gone, moved, _behind = [await subscribe(conn, name) for name in ("gone", "moved", "behind")]
    await publish_many(conn, *"ab")
    assert len(await _take_all(conn, gone)) == 2
    await conn.execute("select postbus.remove_group('t', 'gone', force => true)")
    await publish_many(conn, *"cd")
    assert len(await _take_all(conn, moved)) == 4
    await conn.execute("select postbus.seek('t', 'moved', 'FROM_BEGINNING')")
    await conn.execute("select postbus.set_group_state('t', 'behind', 'CANCELLED')")
    late = await subscribe(conn, "late", "FROM_BEGINNING")
    await publish(conn, "after")
    await sweep(conn, storage)
    states = "select id, required, completed, status from postbus.message_states order by id"
    deliveries = "select id, group_name, status, required from postbus.deliveries order by 1, 2"
    before = [await conn.fetch(query) for query in (states, deliveries)]
    assert [row["status"] for row in before[0]] == ["COMPLETED"] * 4 + ["PENDING"]

    there = await restore()
    await _rebase(there)
    assert [await there.fetch(query) for query in (states, deliveries)] == before
    await publish(there, "published there")
    assert [row["status"] for row in await there.fetch(states)] == ["COMPLETED"] * 4 + ["PENDING"] * 2
    for group in (moved, late):
        await _take_all(there, group)
    assert [row["status"] for row in await there.fetch(states)] == ["COMPLETED"] * 6


async def test_the_order_of_deaths_and_joinings_survives_a_restore(conn: Any, restore: Restore) -> None:
    """It tells what was completed when, and for whom: what waits at a group that has returned was not."""
    await _burn_ids(conn)
    storage = await create_topic(conn)
    group = await subscribe(conn, "g")
    [first] = await publish(conn, "fails")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor)
    await defer(conn, lane, result, "retry")
    await advance(conn, [lane], result.next, 1)
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", group)
    await let_die(conn, storage)
    await publish(conn, "for nobody")
    await conn.execute("select postbus.subscribe('t', 'g')")
    other = await subscribe(conn, "other", "FROM_BEGINNING")
    await _take_all(conn, other)
    await subscribe(conn, "late", "FROM_BEGINNING")
    await conn.execute("select postbus.remove_group('t', 'late', force => true)")
    await let_die(conn, storage)
    await publish(conn, "for nobody, either")
    await conn.execute("select postbus.resurrect(array[id], false) from postbus.subscription where group_name = 'g'")
    states = "select id, required, completed, status from postbus.message_states order by id"
    deliveries = "select id, group_name, status, required from postbus.deliveries order by 1, 2"
    nobody = "select messages from postbus.zero_subscription_messages()"
    before = [await conn.fetch(query) for query in (states, deliveries, nobody)]
    assert tuple(before[0][0]) == (first, ["g", "other"], ["other"], "PROCESSING")
    assert [row["messages"] for row in before[2]] == [1]

    there = await restore()
    await _rebase(there)
    assert [await there.fetch(query) for query in (states, deliveries, nobody)] == before


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_history_completes_only_what_it_had_read_before_a_restore(
    conn: Any, restore: Restore, is_over: bool
) -> None:
    """Not what was published after it began, though it comes to its end: nobody had done that."""
    await _burn_ids(conn)
    storage = await create_topic(conn)
    await publish_many(conn, *"ab")
    group = await subscribe(conn, "g", "FROM_BEGINNING", catch_up='{"beside_from": 0}')
    history = await conn.fetchval("select id from postbus.subscription where catch_up_of = $1", group)
    await publish(conn, "after")
    assert len(await _take_all(conn, history)) == 2
    if is_over:
        await sweep(conn, storage)
        assert await conn.fetchval("select status from postbus.catch_up") == "COMPLETED"
    states = "select status from postbus.message_states order by id"
    expected = ["COMPLETED", "COMPLETED", "PENDING"]
    assert [row["status"] for row in await conn.fetch(states)] == expected

    there = await restore()
    await _rebase(there)
    assert [row["status"] for row in await there.fetch(states)] == expected
    assert await _take_all(there, group) == ["after"]
    assert [row["status"] for row in await there.fetch(states)] == ["COMPLETED"] * 3


async def test_a_restored_database_is_refused_until_it_is_rebased(conn: Any, restore: Restore) -> None:
    """Subscribing, leasing and reading name the command to run; after it each group gets what it had not had."""
    await _burn_ids(conn)
    await create_topic(conn)
    done, fresh, middle = [await subscribe(conn, name) for name in ("done", "fresh", "middle")]
    await publish(conn, "one", "two")
    await publish_many(conn, "three", "four")
    assert len(await _take_all(conn, done)) == 4
    [lane] = await take(conn, "w", middle)
    result = await read(conn, lane.cursor)
    assert result.during is not None
    await advance(conn, [lane], result.during, 3, result.at[2])
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", middle)
    await sweep(conn, 2)
    await publish(conn, "not counted yet")

    there = await restore()
    await _refused(subscribe(there, "done"))
    await _refused(subscribe(there, "new"))
    await _refused(there.fetch("select * from postbus.lease_lanes('w', array[$1::bigint], '{}')", done))
    await _refused(read(there, await cursor_of(there, done)))
    await publish(there, "published there")
    assert await _rebase(there) == 3

    assert await subscribe(there, "done") == done
    await sweep(there, 2)
    lags = dict(await there.fetch("select group_name, lag from postbus.groups"))
    assert lags == {"done": 2, "fresh": 6, "middle": 3}
    new = ["not counted yet", "published there"]
    assert await _take_all(there, done) == new
    assert await _take_all(there, fresh) == ["one", "two", "three", "four", *new]
    assert await _take_all(there, middle) == ["four", *new]
    await publish(there, "later")
    for group in (done, fresh, middle):
        assert await _take_all(there, group) == ["later"]
    await sweep(there, 2)
    assert {row[0] for row in await there.fetch("select lag from postbus.groups")} == {0}


async def test_a_server_with_higher_transaction_ids_is_noticed_too(conn: Any, restore: Restore) -> None:
    """The server is told by its identity; what was unseen comes, though its ids look old there."""
    await create_topic(conn, lanes=4)
    group = await subscribe(conn)
    await publish_many(conn, *"abcd", keys=["a", "b", "c", "d"])
    there = await restore()
    ours = await conn.fetchval("select pg_current_xact_id()::text::int")
    while await there.fetchval("select pg_current_xact_id()::text::int") <= ours + 1000:  # others use our server, too
        await _burn_ids(there)

    await _refused(there.fetch("select * from postbus.lease_lanes('w', array[$1::bigint], '{}')", group))
    await _rebase(there)
    assert sorted(await _take_all(there, group)) == list("abcd")


async def test_a_restored_database_is_noticed_without_special_rights(conn: Any, restore: Restore) -> None:
    """Where nobody may ask for the server's identity, as on managed servers, the restored table tells."""
    await create_topic(conn)
    group = await subscribe(conn)
    await conn.execute("update postbus.cluster set identifier = null")
    there = await restore()
    await _refused(there.fetch("select * from postbus.lease_lanes('w', array[$1::bigint], '{}')", group))
    await _rebase(there)
    assert await subscribe(there) == group


async def test_what_commits_late_and_what_lies_behind_is_not_lost(conn: Any, connect: Any, restore: Restore) -> None:
    """A message below the group's position that it has not seen is delivered; that may bring others again."""
    await create_topic(conn)
    group = await subscribe(conn)
    slow = await connect()
    transaction = slow.transaction()
    await transaction.start()
    await publish(slow, "late")
    await publish(conn, "early")
    assert await _take_all(conn, group) == ["early"]
    await transaction.commit()
    there = await restore()
    await _rebase(there)

    found = await _take_all(there, group)
    assert found[0] == "late"
    assert set(found) <= {"late", "early"}


async def test_a_publisher_that_waits_for_the_rebase_is_not_lost(
    conn: Any, restore: Restore, other_server: Any
) -> None:
    """A message of a publisher that already had a position when the rebase began is delivered after it."""
    await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one")
    await _take_all(conn, group)
    there = await restore()
    name = await there.fetchval("select current_database()")
    publisher: Any = await asyncpg.connect(other_server.dsn(name))
    try:
        transaction = there.transaction()
        await transaction.start()
        await there.execute("lock table postbus.segment in exclusive mode")
        publishing = asyncio.create_task(publish(publisher, "waited"))
        while not await there.fetchval("select cardinality(pg_blocking_pids($1)) > 0", publisher.get_server_pid()):
            await asyncio.sleep(0.001)
        await _rebase(there)
        await publish(there, "two")
        await transaction.commit()
        await publishing
        assert sorted(await _take_all(there, group)) == ["two", "waited"]
    finally:
        await publisher.close()


async def test_a_dump_made_while_a_leaf_was_begun(conn: Any, restore: Restore) -> None:
    """Sequences are dumped as they are, so the epoch may be ahead of the partitions: rebase and sweep mend that."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one")
    there = await restore()
    await there.fetchval("select nextval('postbus.log_epoch_2')")
    await _rebase(there)
    await publish(there, "two")
    await there.fetchval("select nextval('postbus.log_epoch_2')")
    await sweep(there, storage)
    await publish(there, "three")

    assert await partitions_of(there, storage) == [1, 2]
    assert await _take_all(there, group) == ["one", "two", "three"]


async def test_the_sweep_leaves_a_restored_database_alone(conn: Any, restore: Restore) -> None:
    """Before the rebase it drops nothing; after it groups count as seen just now."""
    storage = await create_topic(conn, retention="1 min", zero_subscription_retention="1 min")
    group = await subscribe(conn)
    await publish(conn, "one")
    await rotate(conn, storage)
    await sweep(conn, storage)
    there = await restore()
    for later in (timedelta(0), timedelta(hours=1), timedelta(hours=2)):
        assert await sweep(there, storage, later) == (0, None, [], 0, 0, False, 0)
    await there.execute("update postbus.subscription set seen_at = seen_at - interval '1 day'")
    await _rebase(there)
    await sweep(there, storage, timedelta(minutes=4))

    assert await there.fetchval("select state from postbus.subscription") == "ACTIVE"
    assert await _take_all(there, group) == ["one"]
    assert (await sweep(there, storage, timedelta(minutes=4)))["dropped"] == ["segment_1_1"]
    assert await there.fetchval("select count(*) from postbus.loss") == 0


@pytest.mark.parametrize("as_copy", [False, True])
async def test_a_restored_database_keeps_the_identity_of_its_messages_unless_it_is_a_copy(
    conn: Any, restore: Restore, as_copy: bool
) -> None:
    """It goes on instead of the original, or beside it; what is published there is new in any case."""
    identities = "select array_agg(event_id order by id) from postbus.log"
    await create_topic(conn)
    await publish(conn, "one", "two")
    before = await conn.fetchval(identities)

    there = await restore()
    assert await there.fetchval(identities) == before, "also before somebody decides what this database is"
    await there.execute("select postbus.rebase($1)", as_copy)
    await publish(there, "three")
    await publish(conn, "three")

    here, found = await conn.fetchval(identities), await there.fetchval(identities)
    assert (found[:2] == before) is not as_copy
    assert len({*here, *found}) == (6 if as_copy else 4), "the third is another message in each of the two"


async def test_rebase_on_the_same_server_loses_nothing(conn: Any) -> None:
    """It may be run at any time, twice too."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish(conn, "one", "two")
    [lane] = await take(conn, "w", group)
    result = await read(conn, lane.cursor, 1)
    await advance(conn, [lane], result.next, 1)
    await rotate(conn, storage)
    await publish(conn, "three")
    assert [await _rebase(conn), await _rebase(conn)] == [1, 1]
    await publish(conn, "four")
    assert await advance(conn, [lane], result.next, 1) == [1], "whoever held a lane has lost it"
    await conn.execute("select postbus.sign_off('w')")

    assert await _take_all(conn, group) == ["two", "three", "four"]


async def test_scopes_hold_in_a_restored_database(conn: Any, restore: Restore) -> None:
    """A group that started with `new` loses nothing, and topics that join there start at its record."""
    for topic in ("known", "later"):
        await create_topic(conn, topic)
        await publish_many(conn, f"{topic} old", topic=topic)
    await age(conn, 60)
    await conn.execute("""select postbus.set_topic('known', '{"namespace": "ns"}')""")
    group = (await subscribe_scope(conn, namespace="ns", mode="new"))["known"]
    for topic in ("known", "later"):
        await publish_many(conn, f"{topic} new", topic=topic)
    await conn.execute("update postbus.segment set published_at = published_at - interval '1 hour' where topic_id = $1",
                       await conn.fetchval("select postbus.topic_id('known')"))  # fmt: skip

    there = await restore()
    await _refused(subscribe_scope(there, namespace="ns"))
    await _rebase(there)
    await there.execute("""select postbus.set_topic('later', '{"namespace": "ns"}')""")
    ids = await subscribe_scope(there, namespace="ns")
    assert ids["known"] == group
    assert await _take_all(there, group, "known") == ["known new"]
    assert await _take_all(there, ids["later"], "later") == ["later new"]


async def test_a_topic_joins_no_scope_until_a_restored_database_is_rebased(conn: Any, restore: Restore) -> None:
    """By a change of its options, or by being created: groups would begin at positions of the dumped server."""
    await _burn_ids(conn)
    await create_topic(conn)
    await subscribe_scope(conn, namespace="ns", mode="all")
    there = await restore()
    await publish(there, "published there")
    joins = """select postbus.set_topic('t', '{"namespace": "ns"}')"""
    for call in (joins, """select postbus.create_topic('new', '{"namespace": "ns", "semantics": "PUB_SUB"}')"""):
        await _refused(there.fetch(call))
    await there.fetch("""select postbus.create_topic('elsewhere', '{"semantics": "PUB_SUB"}')""")
    await _rebase(there)
    await there.fetch(joins)
    assert (await pop(there)).messages == ["published there"]


async def test_a_queue_goes_on_in_its_order_in_a_restored_database(conn: Any, restore: Restore) -> None:
    """Messages from before the dump do not wait until nothing new is published any more."""
    await _burn_ids(conn)
    await publish(conn, "one", "two", topic="q")
    there = await restore()
    await _rebase(there)
    await publish(there, "three", topic="q")
    got = []
    while (popped := await pop(there, topic="q", group=None)).messages:
        got += popped.messages
    assert got == ["one", "two", "three"]


async def test_groups_that_pull_are_refused_until_a_restored_database_is_rebased(conn: Any, restore: Restore) -> None:
    """Every call of a pulling group names the command to run; after it the group gets what it had not had."""
    await _burn_ids(conn)
    await create_topic(conn, namespace="n")
    await subscribe_scope(conn, "g", namespace="n", mode="all")
    await publish(conn, "one", "two")
    assert (await pop(conn)).messages == ["one"]

    there = await restore()
    [group] = await there.fetchrow("select id from postbus.subscription")
    await publish(there, "three")
    for call in (
        "pop('t', 'g')",
        "pop_scope('g', 'n')",
        "send_heartbeat('g', 't')",
        "seek('t', 'g', 'FROM_NOW')",
        "force_complete('t', '0 s')",
        f"resurrect(array[{group}::bigint])",
    ):
        await _refused(there.fetch(f"select * from postbus.{call}"))
    await _rebase(there)

    assert (await pop(there, 9)).messages == ["two", "three"]


@pytest.mark.parametrize("is_ahead", [False, True])
async def test_every_way_in_is_refused_until_a_restored_database_is_rebased(
    conn: Any, restore: Restore, is_ahead: bool
) -> None:
    """Every call that takes or stores a position, whether the other server's transaction ids are higher or lower."""
    await create_topic(conn, lanes=1, namespace="n")
    group = await subscribe(conn)
    await conn.execute("select postbus.create_topic('q', '{}')")
    await publish(conn, "one", "two")
    [lane] = await take(conn, "w", group)
    assert (await read(conn, lane.cursor, 1)).messages == ["one"]
    await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", group)
    dead = await subscribe(conn, "dead")
    await conn.execute("update postbus.subscription set state = 'DEAD' where id = $1", dead)
    if not is_ahead:
        await _burn_ids(conn)

    there = await restore()
    if is_ahead:
        await _burn_ids(there)
    array = f"array[{group}::bigint]"
    beat = f"group_heartbeat(array[{dead}::bigint], '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}')"
    cursor = lane.cursor.replace("'", "''")
    for call in (
        "subscribe('t', 'new')",
        "subscribe('t', 'g')",
        "subscribe_scope('new', namespace => 'n')",
        "subscribe_scope('g', topic => 't')",
        f"lease_lanes('w2', {array}, '{{}}')",
        f"read_log('t', array[0], '{cursor}', 10)",
        f"advance({array}, '{{0}}', '{{{lane.token}}}', '{{1}}', array['{cursor}'], '{{null}}', '{{null}}', '{{0}}')",
        "seek('t', 'g', 'FROM_BEGINNING')",
        "pop('t', 'g')",
        "pop('t', 'dead')",
        "force_complete('t', '0 s')",
        f"resurrect(array[{dead}::bigint])",
        "move_topic('q', array['g'])",
        beat,
    ):
        await _refused(there.fetch(f"select * from postbus.{call}"))
    # Nothing is lost by these: they take no position, and what they bring is found by its number.
    await publish(there, "three")
    assert len(await there.fetch("select * from postbus.log where topic = 't'")) == 3
    assert len(await there.fetch("select * from postbus.retained('t')")) == 3
    await there.fetch("select * from postbus.groups")

    await _rebase(there)
    assert await _take_all(there, group) == ["one", "two", "three"]
    for call in ("subscribe('t', 'new')", "pop('t', 'dead', max_count => 9)", "force_complete('t', '0 s')", beat):
        await there.fetch(f"select * from postbus.{call}")


async def test_session_that_was_checked_notices_that_the_schema_was_restored_under_it(conn: Any) -> None:
    """Its table has another oid then, whatever the session remembers."""
    await create_topic(conn, lanes=1)
    group = await subscribe(conn)
    cursor = await cursor_of(conn, group)
    await read(conn, cursor, 1)
    await conn.execute("update postbus.cluster set table_oid = '1'::oid")
    await _refused(conn.fetch("select * from postbus.pop('t', 'g')"))


@pytest.mark.parametrize("is_pulling", [False, True])
async def test_catch_up_goes_on_after_the_rebase_with_nothing_skipped(
    conn: Any, restore: Restore, is_pulling: bool
) -> None:
    """A group that was in the middle of its history when the dump was made gets all of it, and what came since."""
    await _burn_ids(conn)
    await create_topic(conn, lanes=1)
    numbers = [str(n) for n in range(40)]
    for n in numbers:
        await publish(conn, n)
    options = json.dumps({"beside_from": 10})
    group = await conn.fetchval(
        "select subscription_id from postbus.subscribe('t', 'g', 'FROM_BEGINNING', catch_up => $1)", options
    )
    history = await conn.fetchval("select id from postbus.subscription where catch_up_of = $1", group)
    await publish(conn, "live")
    if is_pulling:
        popped = await pop(conn, 7)
        done = popped.messages
        assert await conn.fetchval("select postbus.ack_leases(array[$1::uuid])", popped.token) == []
    else:
        [lane] = await take(conn, "w", history)
        result = await read(conn, lane.cursor, 7)
        done = result.messages
        assert await advance(conn, [lane], result.next, 7) == []
        await conn.execute("select postbus.leave_groups('w', array[$1::bigint])", history)
    assert len(done) == 7

    there = await restore()
    await publish(there, "later")
    await _rebase(there)

    if is_pulling:
        got = []
        while some := (await pop(there, 10)).messages:
            got += some
    else:
        got = await _take_all(there, history) + await _take_all(there, group)
    assert set(done) | set(got) == {*numbers, "live", "later"}
    assert [n for n in numbers if got.count(n) > 1] == []


@pytest.mark.timeout(600)
async def test_database_with_the_largest_messages_is_dumped_restored_and_read(conn: Any, restore: Restore) -> None:
    """Wherever a message of 64 MiB is: waiting, leased, finished, given up, in the log, or waiting for a group."""
    payload = b"0123456789abcdef" * (1 << 22)
    options = {"max_payload_bytes": len(payload), "retention": "1 day", "max_attempts": 1}
    await conn.execute("select postbus.create_topic('q', $1)", json.dumps(options))
    await create_topic(conn, max_payload_bytes=len(payload))
    group = await subscribe(conn)

    async def send(topic: str) -> None:
        await conn.execute("select postbus.publish($1, $2::bytea)", topic, payload)

    async def claim() -> Any:
        await send("q")
        return await conn.fetchrow("select token, ids from postbus.claim('q', 'w', 1, max_bytes => 1)")

    await conn.execute("select postbus.ack_leases(array[$1::uuid])", (await claim())["token"])
    await conn.execute("select postbus.dead_letter($1::uuid, $2, 'no')", *await claim())
    await claim()
    await send("q")
    await send("t")
    await send("t")
    assert len((await pop(conn, 1)).messages) == 1

    other = await restore()
    await _rebase(other)

    for table, column in (
        ("queued", "payload"),
        ("dead_letter", "payload"),
        ("deferred", "payload"),
        ("lease", "(messages[1]).payload"),
        ("finished", "(messages[1]).payload"),
        ("segment", "payloads[1]"),
    ):
        found = await other.fetchval(f"select md5({column}) from postbus.{table} limit 1")
        assert found == hashlib.md5(payload).hexdigest(), table
    assert len((await pop(other, 2)).messages) == 1
    assert group
