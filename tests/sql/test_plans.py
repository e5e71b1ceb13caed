"""Query plans: searches use their indexes, whatever the statistics say."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.eventually import eventually
from support.fix_database import Connect
from support.log_sql import (
    advance,
    create_topic,
    cursor_of,
    let_die,
    pass_all,
    publish_many,
    read,
    read_all,
    rotate,
    subscribe,
    sweep,
    take,
)
from support.queue_sql import claim


@pytest.mark.parametrize("analyzed", ["empty", "full"])
async def test_claim_reads_only_what_it_takes(conn: Any, analyzed: str) -> None:
    """Claiming 10 of 20,000 waiting messages reads a few blocks, even with the statistics of an empty table."""
    if analyzed == "empty":
        await conn.execute("analyze postbus.queued")
    await conn.execute("select postbus.publish_many('t', array_fill('x'::bytea, array[20000]))")
    if analyzed == "full":
        await conn.execute("analyze postbus.queued")
    floor = (await claim(conn, 10))["next_scan_floor"]  # caches the plans

    async with conn.transaction():
        await conn.execute("set local track_functions = 'none'")
        explained = await conn.fetch(
            "explain (analyze, buffers, costs off, timing off, summary off) "
            "select * from postbus.claim('t', 'm', 10, null, $1)",
            floor,
        )
    text = "\n".join(row[0] for row in explained)
    blocks = sum(int(count) for count in re.findall(r"shared hit=(\d+)", text.split("Planning")[0]))
    assert blocks < 600, text


@pytest.mark.parametrize("analyzed", ["empty", "full"])
@pytest.mark.parametrize("storage", ["shared", "own"])
async def test_read_beside_open_transactions_reads_only_new_segments(
    connect: Connect, storage: str, analyzed: str
) -> None:
    """Of 4000 segments read before, none is read again while publishers have transactions open."""
    conn = await connect()
    await create_topic(conn, storage=storage)
    group = await subscribe(conn)
    if analyzed == "empty":
        await conn.execute("analyze")
    await conn.execute(
        "do $$ begin for n in 1 .. 4000 loop perform postbus.publish('t', 'x'::bytea); commit; end loop; end $$"
    )
    for _ in range(3):
        other = await connect()
        await other.execute("begin; select postbus.publish('t', 'open'::bytea)")
    if analyzed == "full":
        await conn.execute("analyze")
    cursor = (await read_all(conn, await cursor_of(conn, group), 10_000))[1]
    await publish_many(conn, "new")
    await read(conn, cursor)  # caches the plans

    explained = await conn.fetch(
        "explain (analyze, buffers, costs off, timing off, summary off) select * from postbus.read_log('t', '{0}', $1)",
        cursor,
    )
    text = "\n".join(row[0] for row in explained)
    assert "rows=2" in text, text
    blocks = sum(int(count) for count in re.findall(r"shared hit=(\d+)", text.split("Planning")[0]))
    assert blocks < 60, text


async def _blocks(conn: Any, query: str, *args: Any, calls: int = 4) -> int:
    """Return how many blocks a query reads, including its functions, once its plans are cached.

    Whatever changes catalogs meanwhile, even in another database, may make this session read them again. So the least
    of several calls counts.
    """
    counts = []
    for _ in range(calls):
        explained = await conn.fetch(f"explain (analyze, buffers, costs off, timing off, summary off) {query}", *args)
        text = "\n".join(row[0] for row in explained)
        counts.append(int(re.findall(r"shared hit=(\d+)", text.split("Planning")[0])[0]))
    return min(counts[1:])


async def test_states_of_all_messages_are_computed_from_few(conn: Any) -> None:
    """Of 4000 segments a few represent all others, and each block is read only a few times."""
    await create_topic(conn, lanes=2)
    groups = [await subscribe(conn, name) for name in ("all", "half", "none")]
    await conn.execute(
        "do $$ begin for n in 1 .. 4000 loop perform postbus.publish('t', 'x'::bytea); commit; end loop; end $$"
    )
    published = await conn.fetchval("select pg_current_xact_id()::text")

    async def all_is_visible() -> None:
        assert await conn.fetchval("select pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8", published)

    await eventually(all_is_visible, within=60)  # otherwise cursors have to examine each segment
    await pass_all(conn, groups[0])
    for lane in await take(conn, "w", groups[1]):
        result = await read(conn, lane.cursor, 1000, lanes=(lane.lane,))
        await advance(conn, [lane], result.next, len(result.messages))
    await subscribe(conn, "late", "FROM_BEGINNING")
    await conn.execute("analyze")
    models = await conn.fetchval(
        "select count(distinct a.model) from postbus.topic t "
        "cross join lateral postbus.representatives(t, '{}') as a where t.name = 't'"
    )
    assert models < 60
    pages = await conn.fetchval(
        "select sum(relpages) from pg_class "
        "where relname in (select 'segment_' || storage_id || '_1' from postbus.topic)"
    )
    assert await _blocks(conn, "select status, count(*) from postbus_outbox.outbox group by 1") < 4 * pages + 2000


async def test_one_message_is_found_among_many_partitions(conn: Any) -> None:
    """Finding the state of a message reads a few blocks, however many partitions there are."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    ids = []
    blocks = []
    for partitions in (3, 30):
        for _ in range(partitions):
            ids += await publish_many(conn, "x")
            await rotate(conn, storage)
        await pass_all(conn, group)
        await conn.execute("update postbus.segment set published_at = published_at - interval '11 minutes'")
        await conn.execute("update postbus.cursor set fenced_at = null, at = at - interval '10 minutes'")
        await sweep(conn, storage)
        asked = "select * from postbus.deliveries_of('t', $1), postbus.message_state('t', $1)"
        blocks.append(max([await _blocks(conn, asked, id) for id in (ids[0], ids[-1])]))
        row = await conn.fetchrow(asked, ids[0])
        assert row["status"] == "COMPLETED"
        assert row["worker"] is not None
    assert blocks[1] < blocks[0] + 200, blocks


async def test_returning_group_does_not_reread_settled_messages(conn: Any, connect: Connect) -> None:
    """A poller that is DEAD between its polls learns what it missed from a few blocks of a log of 12,000 messages.

    Transactions were open when it read, as there always are some beside it. A smaller log would be read as a whole to
    look for what these may have published.
    """
    await create_topic(conn, lanes=2)
    group = await subscribe(conn)
    await conn.execute(
        "do $$ begin for n in 1 .. 12000 loop perform postbus.publish('t', 'x'::bytea); commit; end loop; end $$"
    )
    others = [await connect() for _ in range(3)]
    for other in others:
        await other.execute("begin; select pg_current_xact_id()")
    await pass_all(conn, group)
    for other in others:
        await other.execute("commit")
    await publish_many(conn, "new", "newer")
    counted = (
        "select c.messages from postbus.topic t "
        "cross join lateral postbus.count_before($1, t, $2::text::postbus.log_position, 100) as c where t.name = 't'"
    )
    here = await conn.fetchval("select postbus.take_position(storage_id)::text from postbus.topic where name = 't'")

    assert await conn.fetchval(counted, group, here) == 2
    assert await _blocks(conn, counted, group, here, calls=30) < 100


@pytest.mark.parametrize(
    ("options", "read_of"),
    [({}, set()), ({"beside_from": 10}, set()), ({"beside_from": 10, "max_messages": 500}, {3})],
    ids=["in order", "beside", "bounded"],
)
async def test_group_far_behind_is_not_counted_segment_by_segment(
    conn: Any, options: dict[str, int], read_of: set[int]
) -> None:
    """A return, a late start and a seek back read only the closed partition in which skipping begins."""
    storage = await create_topic(conn, lanes=2)
    catch_up = json.dumps(options)
    group = await subscribe(conn, catch_up=catch_up)
    for _ in range(4):
        await conn.execute(
            "do $$ begin for n in 1 .. 400 loop perform postbus.publish('t', 'x'::bytea); end loop; end $$"
        )
        await rotate(conn, storage)
    await publish_many(conn, "new")
    await let_die(conn, storage)

    async def rows_read() -> dict[int, int]:
        rows = await conn.fetch(
            "select epoch, s.seq_tup_read + s.idx_tup_fetch as read from postbus.log_partition l "
            "join pg_stat_xact_user_tables s on s.relname = postbus.partition_name(l.storage_id, l.epoch)"
        )
        return {row["epoch"]: row["read"] for row in rows}

    async def partitions_read(call: str, *args: Any) -> set[int]:
        async with conn.transaction():
            before = await rows_read()
            assert 1601 in (await conn.fetchrow(call, *args)).values()
            return {epoch for epoch, rows in (await rows_read()).items() if rows - before.get(epoch, 0) > 20}

    assert await partitions_read("select * from postbus.resurrect(array[$1::bigint])", group) == read_of
    late = "select * from postbus.subscribe('t', $1, $2, start_at => $3, start_id => $4, catch_up => $5)"
    ago = await conn.fetchval("select now() - interval '1 hour'")
    for start, at, id in (
        ("FROM_BEGINNING", None, None),
        ("FROM_TIMESTAMP", ago, None),
        ("FROM_MESSAGE_ID", None, 1),
    ):
        assert await partitions_read(late, start, start, at, id, catch_up) == read_of
    assert await partitions_read("select postbus.seek('t', 'g', 'FROM_BEGINNING')") == set()
