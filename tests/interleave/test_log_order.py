"""The log loses nothing, doubles nothing and keeps the order per key, in whatever order transactions commit."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from support.fix_database import Connect
from support.log_sql import (
    Lane,
    advance,
    create_topic,
    cursor_of,
    publish_many,
    read,
    read_all,
    rotate,
    subscribe,
    sweep,
    take,
    vanish,
)
from support.queue_sql import is_waiting, publish

Read = Callable[[Any, str, int], Awaitable[tuple[list[str], str]]]

_TAKE_NEW_POSITIONS = """
    create or replace function postbus.next_position(
        seen postbus.log_position, "sequence" bigint, snapshot pg_snapshot, found integer
    ) returns postbus.log_position
    language sql volatile
    return case when found = 0 and sequence - (seen).sequence < 1000 then null
                else row(sequence, pg_current_xact_id(), snapshot)::postbus.log_position end
"""


@pytest.fixture(params=["kept positions", "new positions"])
async def connect(connect: Connect, request: pytest.FixtureRequest) -> Connect:
    """Connect to a database whose readers keep a position's sequence as long as they may, or never."""
    if request.param == "new positions":
        await (await connect()).execute(_TAKE_NEW_POSITIONS)
    return connect


async def _open(connect: Connect, isolation: Any = "read_committed") -> tuple[Any, Any]:
    """Return a session with an open transaction."""
    conn = await connect()
    transaction = conn.transaction(isolation=isolation)
    await transaction.start()
    return conn, transaction


# Named interleavings


async def test_late_commit_below_the_position_is_delivered(connect: Connect) -> None:
    """A message whose sequence was assigned before others comes when its transaction commits."""
    reader, quick = await connect(), await connect()
    await create_topic(reader)
    group = await subscribe(reader)
    slow, late = await _open(connect)
    await publish(slow, "late")
    await publish(quick, "early")

    first, cursor = await read_all(reader, await cursor_of(reader, group))
    await late.commit()
    second, _ = await read_all(reader, cursor)

    assert (first, second) == (["early"], ["late"])


async def test_late_publish_with_an_early_transaction_id_is_delivered(connect: Connect) -> None:
    """Its transaction id is older than what was read and its sequence is newer, so it is looked up by the id."""
    reader, quick = await connect(), await connect()
    await create_topic(reader)
    group = await subscribe(reader)
    slow, late = await _open(connect)
    await slow.fetchval("select pg_current_xact_id()")
    await publish(quick, "early")
    first, cursor = await read_all(reader, await cursor_of(reader, group))
    await publish(slow, "late")
    await publish(quick, "between")
    second, cursor = await read_all(reader, cursor)
    await late.commit()

    third, _ = await read_all(reader, cursor)

    assert (first, second, third) == (["early"], ["between"], ["late"])


@pytest.mark.parametrize("first_ends", ["a", "b"])
async def test_crossed_ids_and_sequences_are_delivered_at_the_commit(connect: Connect, first_ends: str) -> None:
    """Of two transactions, the one with the older id may have the higher sequence; each message comes once."""
    reader = await connect()
    await create_topic(reader)
    group = await subscribe(reader)
    a, a_ends = await _open(connect)
    b, b_ends = await _open(connect)
    await a.fetchval("select pg_current_xact_id()")
    await publish(b, "b")
    await publish(a, "a")
    order = [("a", a_ends), ("b", b_ends)]
    if first_ends == "b":
        order.reverse()

    cursor = await cursor_of(reader, group)
    for name, transaction in order:
        await transaction.commit()
        found, cursor = await read_all(reader, cursor)
        assert found == [name]


async def test_keys_serialised_by_a_row_lock_keep_that_order(connect: Connect) -> None:
    """Order is by sequence: the transaction with the older id that had to wait comes second."""
    reader = await connect()
    await create_topic(reader)
    group = await subscribe(reader)
    await reader.execute("create table k (n int); insert into k values (0)")
    a, a_ends = await _open(connect)
    b, b_ends = await _open(connect)
    await a.fetchval("select pg_current_xact_id()")
    await b.execute("update k set n = 1")
    await publish(b, "b first", key="k")
    waiting = asyncio.create_task(a.execute("update k set n = 2"))
    while not await is_waiting(reader, a.get_server_pid()):
        await asyncio.sleep(0.001)
    await b_ends.commit()
    await waiting
    await publish(a, "a second", key="k")
    await a_ends.commit()

    assert (await read_all(reader, await cursor_of(reader, group)))[0] == ["b first", "a second"]


async def test_open_transaction_delays_only_its_own_messages(connect: Connect) -> None:
    """While one transaction stays open, all other messages come at once, read after read."""
    reader, quick = await connect(), await connect()
    await create_topic(reader)
    group = await subscribe(reader)
    slow, late = await _open(connect)
    await publish(slow, "late 1")
    cursor = await cursor_of(reader, group)
    for n in range(10):
        await publish(quick, f"{n}")
        found, cursor = await read_all(reader, cursor)
        assert found == [f"{n}"]
    await publish(slow, "late 2")
    await late.commit()

    assert (await read_all(reader, cursor))[0] == ["late 1", "late 2"]


async def test_from_now_delivers_transactions_that_were_open(connect: Connect) -> None:
    """A group gets every message that commits after it subscribed, whenever it was published."""
    reader = await connect()
    await create_topic(reader)
    early, early_ends = await _open(connect)
    idle, idle_ends = await _open(connect, "repeatable_read")
    await publish(early, "before")
    await idle.fetchval("select pg_current_xact_id()")
    await publish(reader, "committed before")
    group = await subscribe(reader)
    await publish(early, "after")
    await publish(idle, "early id")
    await early_ends.commit()
    await idle_ends.commit()

    assert (await read_all(reader, await cursor_of(reader, group)))[0] == ["before", "after", "early id"]


async def test_messages_published_after_subscribing_in_one_transaction_come(connect: Connect) -> None:
    """A position never shows the transaction that took it as ended, however many end around it."""
    reader = await connect()
    await create_topic(reader)
    is_over = False

    async def make_noise() -> None:
        conn = await connect()
        while not is_over:
            await conn.fetchval("select pg_current_xact_id()")

    noise = [asyncio.create_task(make_noise()) for _ in range(3)]
    try:
        for n in range(100):
            async with reader.transaction():
                group = await subscribe(reader, f"g{n}")
                await publish(reader, f"{n}")
            assert (await read_all(reader, await cursor_of(reader, group)))[0] == [f"{n}"]
    finally:
        is_over = True
        await asyncio.gather(*noise)


async def test_messages_published_after_a_read_in_one_transaction_come(connect: Connect) -> None:
    """They lie behind the position of that read."""
    reader = await connect()
    await create_topic(reader)
    group = await subscribe(reader)
    await publish(reader, "one")
    async with reader.transaction():
        first = await read(reader, await cursor_of(reader, group))
        await publish(reader, "two")

    assert first.messages == ["one"]
    assert (await read_all(reader, first.next))[0] == ["two"]


async def test_deduplicated_message_has_its_id_before_its_sequence(connect: Connect) -> None:
    """A publisher with a deduplication key takes a transaction id before a sequence, so nothing is missed."""
    reader, publisher, other = await connect(), await connect(), await connect()
    await create_topic(reader)
    group = await subscribe(reader)
    # The publisher stops where it takes the key, which another session holds.
    holder = other.transaction()
    await holder.start()
    await publish(other, "undone", dedup_key="d")
    publishing = asyncio.create_task(publish(publisher, "one", dedup_key="d"))
    while not await is_waiting(reader, publisher.get_server_pid()):
        await asyncio.sleep(0.001)
    number = await reader.fetchval("select last_value from postbus.segment_number")
    has_id = await reader.fetchval(
        "select backend_xid is not null from pg_stat_activity where pid = $1", publisher.get_server_pid()
    )
    await publish(reader, "mark")
    first, cursor = await read_all(reader, await cursor_of(reader, group))
    await holder.rollback()
    ids = await publishing
    second, _ = await read_all(reader, cursor)

    assert has_id
    assert ids[0] // 1024 <= number
    assert (first, second) == (["mark"], ["one"])


async def test_every_sequence_is_taken_after_a_transaction_id(conn: Any) -> None:
    """`publish` takes the transaction id first and then the sequence, with or without a deduplication key."""
    source = await conn.fetchval("select prosrc from pg_proc where oid = 'postbus.append_segment'::regproc")
    assert source.index("pg_current_xact_id()") < source.index("postbus.published_epoch(") < source.index("nextval(")
    for row in await conn.fetch("select prosrc from pg_proc where proname = 'publish'"):
        if "segment_number" in row["prosrc"]:
            assert row["prosrc"].index("pg_current_xact_id()") < row["prosrc"].index(
                "nextval('postbus.segment_number')"
            )


async def test_huge_transaction_is_read_in_batches(connect: Connect) -> None:
    """However large the transaction was, a read returns the requested number in order, and newer messages come
    after it."""
    reader, writer = await connect(), await connect()
    await create_topic(reader, segment_size=7)
    group = await subscribe(reader)
    texts = [f"{n}" for n in range(300)]
    async with writer.transaction():
        for at in range(0, 200, 50):
            await publish_many(writer, *texts[at : at + 50])
        await publish(writer, *texts[200:])
    cursor, found, sizes = await cursor_of(reader, group), [], []
    while True:
        result = await read(reader, cursor, 10)
        found += result.messages
        sizes.append(len(result.messages))
        cursor = result.next
        if len(sizes) == 5:
            await publish(writer, "new")
        if not result.more:
            break
    rest, _ = await read_all(reader, cursor)

    assert found + rest == [*texts, "new"]
    assert rest == ["new"], "new messages do not come in between"
    assert max(sizes) <= 16


@pytest.mark.parametrize("count", [1, 2, 3, 5])
async def test_batches_of_any_size_return_everything(connect: Connect, count: int) -> None:
    """Late transactions, two partitions, single messages and segments are all read completely."""
    reader, writer = await connect(), await connect()
    storage = await create_topic(reader)
    group = await subscribe(reader)
    slow, late = await _open(connect)
    await publish(slow, "late 1", "late 2")
    await publish(writer, "a")
    found, cursor = await read_all(reader, await cursor_of(reader, group))
    assert found == ["a"]
    await rotate(reader, storage)
    await publish(slow, "late 3")
    await publish_many(writer, "b", "c", "d", "e")
    await publish(writer, "f", "g", "h")
    await publish(slow, "late 4")
    await publish(writer, "i")
    await late.commit()

    assert (await read_all(reader, cursor, count))[0] == ["late 1", "late 2", "late 3", *"bcdefgh", "late 4", "i"]


async def test_read_is_bounded_by_bytes(connect: Connect) -> None:
    """A read stops at its limit of bytes, but always returns one segment."""
    reader = await connect()
    await create_topic(reader)
    group = await subscribe(reader)
    await publish(reader, *("x" * 1000 for _ in range(5)))

    result = await read(reader, await cursor_of(reader, group), max_bytes=1500)
    one = await read(reader, result.next, max_bytes=1)

    assert (len(result.messages), result.more) == (2, True)
    assert (len(one.messages), one.more) == (1, True)
    assert len((await read_all(reader, one.next))[0]) == 2


async def test_reading_resumes_in_the_middle_of_a_segment(connect: Connect) -> None:
    """A cursor that was moved by message continues with the next message of the segment."""
    reader = await connect()
    await create_topic(reader)
    group = await subscribe(reader)
    await publish_many(reader, *"abcde")
    await publish(reader, "f")
    [lane] = await take(reader, "w", group)
    result = await read(reader, lane.cursor)
    assert result.during is not None
    for index in range(6):
        done = result.at[index]
        assert await advance(reader, [lane], result.during, 1, done) == []
        rest, _ = await read_all(reader, await cursor_of(reader, group), 2)
        assert rest == list("abcdef")[index + 1 :]


async def test_group_can_read_up_to_the_position_of_another(connect: Connect) -> None:
    """With a target both groups reach the same position, without a transaction id."""
    reader, writer = await connect(), await connect()
    await create_topic(reader)
    a, b = await subscribe(reader, "a"), await subscribe(reader, "b")
    await publish(writer, "one")
    first = await read(reader, await cursor_of(reader, a))
    target = await reader.fetchval("select (($1::text::postbus.log_cursor).seen)::text", first.next)
    await publish(writer, "two")
    async with reader.transaction():
        second = await read(reader, await cursor_of(reader, b), target=target)
        assert await reader.fetchval("select pg_current_xact_id_if_assigned()") is None

    assert second.messages == ["one"]
    assert second.next == first.next
    assert (await read_all(reader, second.next))[0] == ["two"]


async def test_empty_read_takes_no_transaction_id(connect: Connect) -> None:
    """Polling an empty topic writes nothing, and leaves the cursor as it is."""
    reader = await connect()
    await create_topic(reader)
    cursor = await cursor_of(reader, await subscribe(reader))
    async with reader.transaction():
        result = await read(reader, cursor)
        assert await reader.fetchval("select pg_current_xact_id_if_assigned()") is None

    assert (result.messages, result.next, result.during, result.more) == ([], cursor, None, False)


async def test_read_that_skips_many_segments_of_others_moves_on(connect: Connect) -> None:
    """A lane without messages in a busy topic does not read the same segments of other lanes again."""
    reader, writer = await connect(), await connect()
    await create_topic(reader, lanes=2, segment_size=1)
    await create_topic(reader, "busy", lanes=2, segment_size=1)
    cursor = await cursor_of(reader, await subscribe(reader))
    await publish_many(writer, *("x" for _ in range(1100)), topic="busy")

    moved = await read(reader, cursor, lanes=(0,))
    await publish(writer, "one")
    found, _ = await read_all(reader, moved.next, lanes=(0, 1))

    assert moved.messages == []
    assert moved.next != cursor
    assert found == ["one"]


@pytest.mark.parametrize("storage", ["shared", "own"])
async def test_reads_in_one_transaction_find_an_added_partition(connect: Connect, storage: str) -> None:
    """A session with locks from before the partition was added reads it nevertheless."""
    conn, reader = await connect(), await connect()
    id = await create_topic(conn, storage=storage)
    cursor = await cursor_of(conn, await subscribe(conn))
    for text in ("a", "b"):  # with plans that are made, and with plans that are kept
        async with reader.transaction():
            for _ in range(7):
                result = await read(reader, cursor)
                assert result.messages == []
                cursor = result.next
            await publish(conn, text)
            await rotate(conn, id)
            await publish(conn, f"{text} in the new partition")
            result = await read(reader, cursor)
            cursor = result.next
        assert result.messages == [text, f"{text} in the new partition"]


async def test_message_published_while_a_position_is_taken_is_read(connect: Connect) -> None:
    """The partition is added and written between the sequence of a position and its snapshot, which shows it."""
    conn, reader = await connect(), await connect()
    storage = await create_topic(conn)
    cursor = await cursor_of(conn, await subscribe(conn))
    await publish(conn, "a")
    first, cursor = await read_all(reader, cursor)
    await conn.execute(
        """create or replace function postbus.last_sequence(storage_id integer) returns bigint
           language plpgsql volatile as $$
           declare
               _epoch bigint := postbus.published_epoch(storage_id);
               _position bigint := (_epoch << 43) + pg_sequence_last_value('postbus.segment_number');
           begin
               perform pg_advisory_xact_lock_shared(1);
               return _position;
           end $$"""
    )
    await conn.execute("select pg_advisory_lock(1)")

    await publish(conn, "b")
    reading = asyncio.create_task(read(reader, cursor))
    while not await is_waiting(conn, reader.get_server_pid()):
        await asyncio.sleep(0.01)
    await rotate(conn, storage)
    await publish(conn, "c")
    await conn.execute("select pg_advisory_unlock(1)")
    result = await reading
    last, _ = await read_all(reader, result.next)

    assert [*first, *result.messages, *last] == ["a", "b", "c"]


async def test_small_read_takes_no_transaction_id(connect_alone: Connect) -> None:
    """Sequence and id of a position are kept for a while, so that concurrent publishers do not count as late."""
    conn, reader = await connect_alone(), await connect_alone()
    await create_topic(conn)
    cursor = await cursor_of(conn, await subscribe(conn))

    async def takes_id(expected: list[str]) -> bool:
        nonlocal cursor
        async with reader.transaction():
            result = await read(reader, cursor)
            assert result.messages == expected
            cursor = result.next
            return bool(await reader.fetchval("select pg_current_xact_id_if_assigned() is not null"))

    taken, before = [], list[str]()
    for n in range(40):
        other, open_for_now = await _open(connect_alone)
        await publish(other, f"open {n}")
        await publish(conn, str(n))
        taken.append(await takes_id([*before, str(n)]))
        await open_for_now.commit()
        await other.close()
        before = [f"open {n}"]
    assert [n for n, one in enumerate(taken) if one] == [15, 31]
    assert not await takes_id(before)
    assert not await takes_id([])
    many = [str(n) for n in range(40)]
    await publish_many(conn, *many)
    assert await takes_id(many)


async def test_position_is_refused_to_a_transaction_that_has_written(connect: Connect) -> None:
    """A transaction with an id would miss messages: reading, subscribing and sweeping say so."""
    reader = await connect()
    storage = await create_topic(reader)
    cursor = await cursor_of(reader, await subscribe(reader))
    for act in (
        lambda: read(reader, cursor),
        lambda: subscribe(reader, "other"),
        lambda: reader.fetchval("select postbus.seek('t', 'g', 'FROM_NOW')"),
        lambda: sweep(reader, storage),
        lambda: reader.fetchval("select postbus.rebase()"),
    ):
        transaction = reader.transaction()
        await transaction.start()
        await reader.fetchval("select pg_current_xact_id()")
        with pytest.raises(asyncpg.PostgresError) as caught:
            await act()
        await transaction.rollback()
        assert caught.value.sqlstate == "PB431"
        assert "transaction of its own" in str(caught.value.hint)


async def test_target_position_is_refused_to_an_old_snapshot(connect: Connect) -> None:
    """In REPEATABLE READ a target may be newer than what the transaction sees."""
    reader, writer = await connect(), await connect()
    await create_topic(reader)
    a, b = await subscribe(reader, "a"), await subscribe(reader, "b")
    cursor = await cursor_of(reader, b)
    old, _ = await _open(connect, "repeatable_read")
    await old.fetchval("select 1 from postbus.topic")
    await publish(writer, "one")
    first = await read(reader, await cursor_of(reader, a))
    target = await reader.fetchval("select (($1::text::postbus.log_cursor).seen)::text", first.next)
    with pytest.raises(asyncpg.PostgresError, match="repeatable read"):
        await read(old, cursor, target=target)


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_reader_with_an_old_snapshot_loses_nothing(connect: Connect, isolation: Any) -> None:
    """A position may be taken in any isolation level, although its snapshot is older than its sequence."""
    reader, writer = await connect(), await connect()
    await create_topic(reader)
    cursor = await cursor_of(reader, await subscribe(reader))
    await publish(writer, "one")
    old, ends = await _open(connect, isolation)
    await old.fetchval("select 1 from postbus.topic")
    await publish(writer, "two")
    first = await read(old, cursor)
    await ends.commit()

    assert first.messages == ["one"]
    assert (await read_all(reader, first.next))[0] == ["two"]


async def test_savepoints_and_prepared_transactions_count_as_a_whole(connect_alone: Connect) -> None:
    """Messages rolled back to a savepoint never come, and prepared ones come when another session commits them."""
    reader, writer = await connect_alone(), await connect_alone()
    await create_topic(reader)
    group = await subscribe(reader)
    await writer.execute("begin")
    await writer.execute("savepoint s")
    await publish(writer, "kept")
    await writer.execute("release s")
    await writer.execute("savepoint r")
    await publish(writer, "undone")
    await writer.execute("rollback to r")
    await publish(writer, "kept too")
    await writer.execute("prepare transaction 'log'")
    await publish(writer, "early")
    first, cursor = await read_all(reader, await cursor_of(reader, group))
    await reader.execute("commit prepared 'log'")

    assert first == ["early"]
    assert (await read_all(reader, cursor))[0] == ["kept", "kept too"]


# Many writers, many readers


class _Writers:
    """Writers whose transactions overlap in every way. Row locks keep the order, as in an application."""

    keys = 6

    def __init__(self, connect: Connect, storage: int) -> None:
        self._connect = connect
        self._storage = storage
        self.committed: dict[str, list[int]] = defaultdict(list)
        self.running = 0

    async def prepare(self, conn: Any) -> None:
        await conn.execute("update postbus.log_storage set partition_bytes = 1 where id = $1", self._storage)
        await conn.execute("create table counter (key text primary key, n int)")
        await conn.execute("insert into counter select 'k' || n, 0 from generate_series(1, $1::int) n", self.keys)

    async def write(self, name: int, until: float) -> None:
        conn = await self._connect()
        rng = random.Random(name)
        clock = asyncio.get_running_loop().time
        while clock() < until:
            texts: list[tuple[str, int]] = []
            transaction = conn.transaction(
                isolation=rng.choice(["read_committed", "read_committed", "repeatable_read", "serializable"])
            )
            try:
                await transaction.start()
                if rng.random() < 0.5:
                    await conn.fetchval("select pg_current_xact_id()")
                    await asyncio.sleep(rng.random() * 0.02)
                for key in sorted({f"k{rng.randint(1, self.keys)}" for _ in range(rng.choice([1, 1, 2]))}):
                    texts += await self._write_key(conn, rng, key)
                if rng.random() < 0.01:
                    await asyncio.sleep(rng.uniform(0.5, 2.5))
                if rng.random() < 0.15:
                    await transaction.rollback()
                else:
                    await transaction.commit()
                    for key, n in texts:
                        self.committed[key].append(n)
            except asyncpg.SerializationError:
                await transaction.rollback() if conn.is_in_transaction() else None
        self.running -= 1

    async def write_alone(self, name: int, until: float) -> None:
        """Write with a key of its own in a transaction that stays open for seconds, and holds up nobody."""
        conn, n = await self._connect(), 0
        rng, clock = random.Random(name), asyncio.get_running_loop().time
        while clock() < until:
            async with conn.transaction():
                await conn.fetchval("select pg_current_xact_id()")
                for _ in range(rng.randint(1, 4)):
                    await asyncio.sleep(rng.random())
                    n += 1
                    await publish(conn, f"alone{name}:{n}", key=f"alone{name}")
                    self.committed[f"alone{name}"].append(n)
        self.running -= 1

    async def _write_key(self, conn: Any, rng: random.Random, key: str) -> list[tuple[str, int]]:
        n = await conn.fetchval("select n from counter where key = $1 for update", key)
        texts = []
        if rng.random() < 0.2:
            savepoint = conn.transaction()
            await savepoint.start()
            await publish(conn, f"{key}:{n + 1}", key=key)
            if rng.random() < 0.5:
                await savepoint.rollback()
            else:
                await savepoint.commit()
                n += 1
                texts.append((key, n))
        count = rng.choice([1, 1, 1, 2, 12])
        numbers = list(range(n + 1, n + count + 1))
        if rng.random() < 0.5:
            await publish_many(conn, *(f"{key}:{m}" for m in numbers), keys=[key] * count)
        else:
            for m in numbers:
                await publish(conn, f"{key}:{m}", key=key)
                if rng.random() < 0.1:
                    await asyncio.sleep(rng.random() * 0.005)
        await conn.execute("update counter set n = $2 where key = $1", key, numbers[-1])
        return texts + [(key, m) for m in numbers]

    async def rotate(self, until: float) -> None:
        """Begin new partitions all the time; nothing is dropped."""
        conn = await self._connect()
        while asyncio.get_running_loop().time() < until:
            await sweep(conn, self._storage)
            await asyncio.sleep(0.15)
        self.running -= 1


def _faults(committed: dict[str, list[int]], got: list[str]) -> dict[str, int]:
    """Return LOST, DUPLICATE and ORDER: what a reader got compared with what was committed."""
    found: dict[str, list[int]] = defaultdict(list)
    for text in got:
        key, _, n = text.partition(":")
        found[key].append(int(n))
    expected = {(key, n) for key, numbers in committed.items() for n in numbers}
    reached = {(key, n) for key, numbers in found.items() for n in numbers}
    return {
        "LOST": len(expected - reached),
        "PHANTOM": len(reached - expected),
        "DUPLICATE": len(got) - len(reached),
        "ORDER": sum(a > b for numbers in found.values() for a, b in itertools.pairwise(numbers)),
    }


_CLEAN = {"LOST": 0, "PHANTOM": 0, "DUPLICATE": 0, "ORDER": 0}


async def _follow(conn: Any, writers: _Writers, cursor: str, count: int, lanes: tuple[int, ...]) -> list[str]:
    """Read until nothing more comes after the writers have ended; the cursor stays in memory."""
    got: list[str] = []
    idle = 0
    while idle < 2:
        result = await read(conn, cursor, count, lanes=lanes)
        got += result.messages
        cursor = result.next
        if not result.messages:
            idle += not writers.running
            await asyncio.sleep(0.01)
    return got


async def _follow_stored(conn: Any, writers: _Writers, group: int, count: int, rng: random.Random) -> list[str]:
    """Let workers vanish one after the other: each takes all lanes, and starts from the stored cursors.

    Only settled messages count: each is noted with the advance that passes it.
    """
    got: list[str] = []
    idle = 0
    for n in itertools.count():
        if idle == 2:
            return got
        await vanish(conn, f"worker {group} {n - 1}")
        held = await take(conn, f"worker {group} {n}", group)
        assert len(held) == 4
        for _ in range(rng.choice([1, 2, 5])):
            went_on = [await _settle_some(conn, lane, count, rng, got) for lane in held]
        if not any(went_on):
            idle += not writers.running
            await asyncio.sleep(0.01)
    raise AssertionError


async def _settle_some(conn: Any, lane: Lane, count: int, rng: random.Random, got: list[str]) -> bool:
    """Read once. Returns whether it moved on, be it only behind an exhausted target: there may be more."""
    before = lane.cursor
    result = await read(conn, before, count, lanes=(lane.lane,))
    if not result.messages:
        lane.cursor = result.next
        return result.next != before
    if rng.random() < 0.3:  # stops in the middle, and continues from the stored cursor
        done = rng.randrange(len(result.messages))
        assert result.during is not None
        assert await advance(conn, [lane], result.during, done + 1, result.at[done]) == []
        got += result.messages[: done + 1]
        lane.cursor = await cursor_of(conn, lane.subscription, lane.lane)
    else:
        assert await advance(conn, [lane], result.next, len(result.messages)) == []
        got += result.messages
    return True


async def test_nothing_is_lost_doubled_or_out_of_order(connect: Connect) -> None:
    """Fourteen writers run against every kind of reader, while partitions change: LOST, DUPLICATE and ORDER are
    zero."""
    conn = await connect()
    storage = await create_topic(conn, lanes=4, segment_size=5)
    writers = _Writers(connect, storage)
    await writers.prepare(conn)
    groups = [await subscribe(conn, f"g{n}") for n in range(4)]
    until = asyncio.get_running_loop().time() + 9
    writers.running = 15
    everything = (0, 1, 2, 3)
    readers = [
        _follow(await connect(), writers, await cursor_of(conn, groups[0]), 1000, everything),
        _follow(await connect(), writers, await cursor_of(conn, groups[0]), 1, everything),
        _follow_stored(await connect(), writers, groups[2], 7, random.Random(1)),
        _follow_stored(await connect(), writers, groups[3], 100, random.Random(2)),
        *[_follow(await connect(), writers, await cursor_of(conn, groups[1], n), 3, (n,)) for n in everything],
    ]
    (large, small, stored, stored_large, *by_lane), _ = await asyncio.gather(
        asyncio.gather(*readers),
        asyncio.gather(
            *(writers.write(name, until) for name in range(12)),
            *(writers.write_alone(name, until) for name in range(2)),
            writers.rotate(until),
        ),
    )

    assert sum(map(len, writers.committed.values())) > 500
    assert len(await conn.fetch("select from postbus.log_partition")) > 5
    assert _faults(writers.committed, large) == _CLEAN
    assert _faults(writers.committed, small) == _CLEAN
    assert _faults(writers.committed, [text for lane in by_lane for text in lane]) == _CLEAN
    assert _faults(writers.committed, stored) == _CLEAN
    assert _faults(writers.committed, stored_large) == _CLEAN
    # Counted after the writers, as by another reader that sees everything once.
    await sweep(conn, storage)
    counted = await conn.fetchval("select messages from postbus.topic_count")
    assert counted == sum(map(len, writers.committed.values()))
    lags = await conn.fetch(
        "select (postbus.group_lag(id)).messages from postbus.subscription where id = any ($1)", groups[2:]
    )
    assert [row[0] for row in lags] == [0, 0]


# Controls: the same checks fail where a shortcut is taken.


async def _read_by_position(conn: Any, cursor: str, count: int) -> tuple[list[str], str]:
    """Read by the obvious shortcut: everything above the last sequence."""
    rows = await conn.fetch(
        "select sequence, payload from postbus.log where sequence > $1 order by sequence, index", int(cursor or 0)
    )
    return [row["payload"].decode() for row in rows], str(rows[-1]["sequence"]) if rows else cursor


async def _read_without_own_id(conn: Any, cursor: str, count: int) -> tuple[list[str], str]:
    """Read with a position of sequence and snapshot alone: ids between its xmax and the reader's own id are
    forgotten."""
    result = await read(conn, cursor, count)
    return result.messages, await conn.fetchval(
        """select jsonb_populate_record(c, jsonb_build_object('seen', jsonb_populate_record((c).seen,
                jsonb_build_object('txid', (pg_snapshot_xmax(((c).seen).snapshot)::text::bigint - 1)::text))))::text
             from (select $1::text::postbus.log_cursor as c) as given""",
        result.next,
    )


async def _read_with_an_older_id(conn: Any, cursor: str, count: int) -> tuple[list[str], str]:
    """Read with a new sequence and the previous transaction id: transactions open at that sequence are forgotten."""
    position = await conn.fetchval("select postbus.last_sequence(storage_id) from postbus.topic where name = 't'")
    result = await read(conn, cursor, count)
    return result.messages, await conn.fetchval(
        """select jsonb_populate_record(c, jsonb_build_object('seen', jsonb_populate_record((c).seen,
                jsonb_build_object('sequence', $2::bigint, 'txid', ((given.before).seen).txid))))::text
             from (select $1::text::postbus.log_cursor as c, $3::text::postbus.log_cursor as before) as given""",
        result.next,
        position,
        cursor,
    )


async def _read_as_we_do(conn: Any, cursor: str, count: int) -> tuple[list[str], str]:
    result = await read(conn, cursor, count)
    return result.messages, result.next


async def _late_commit(connect: Connect, start: str | None, step: Read) -> dict[str, int]:
    """Run one interleaving for all of them: ids and sequences are assigned early, commits come late."""
    conn = await connect()
    await create_topic(conn)
    cursor = await cursor_of(conn, await subscribe(conn)) if start is None else start
    quick = await connect()
    early, early_ends = await _open(connect)
    await publish(early, "early:1")
    await publish(quick, "k:1")
    # Its id is above all that have ended: not below xmax of the reader's snapshot, but below the reader's own id.
    slow, slow_ends = await _open(connect)
    await publish(slow, "slow:1")
    got, cursor = await step(conn, cursor, 100)
    await slow_ends.commit()
    await early_ends.commit()
    await publish(quick, "k:2")
    for _ in range(3):
        more, cursor = await step(conn, cursor, 100)
        got += more
    return _faults({"k": [1, 2], "slow": [1], "early": [1]}, got)


async def test_position_passes_the_interleaving_of_the_controls(connect: Connect) -> None:
    """The steps in which the shortcuts below fail are read correctly."""
    assert await _late_commit(connect, None, _read_as_we_do) == _CLEAN


@pytest.mark.parametrize(
    ("start", "step"),
    [("0", _read_by_position), (None, _read_without_own_id), (None, _read_with_an_older_id)],
    ids=["position", "no own id", "older id"],
)
async def test_shortcuts_lose_messages(connect_alone: Connect, start: str | None, step: Read) -> None:
    """Sequences alone, and a new position without an id of its own, lose late commits, so the checks can fail.

    The test runs on its own server, because another transaction that ends at the wrong moment saves the messages.
    """
    await (await connect_alone()).execute(_TAKE_NEW_POSITIONS)
    assert (await _late_commit(connect_alone, start, step))["LOST"] > 0


@pytest.mark.parametrize("connect", ["kept positions"], indirect=True)  # independent of that setting
async def test_check_catches_a_reader_by_sequence(connect: Connect) -> None:
    """The same writers, read by `position > last`, lose messages."""
    conn = await connect()
    storage = await create_topic(conn, lanes=4, segment_size=5)
    writers = _Writers(connect, storage)
    await writers.prepare(conn)
    until = asyncio.get_running_loop().time() + 3
    writers.running = 10

    async def follow() -> list[str]:
        reader = await connect()
        got, cursor, idle = list[str](), "0", 0
        while idle < 2:
            found, cursor = await _read_by_position(reader, cursor, 100)
            got += found
            if not found:
                idle += not writers.running
                await asyncio.sleep(0.005)
        return got

    got, _ = await asyncio.gather(
        follow(),
        asyncio.gather(
            *(writers.write(name, until) for name in range(8)),
            *(writers.write_alone(name, until) for name in range(2)),
        ),
    )

    assert _faults(writers.committed, got)["LOST"] > 0
