"""Publishing to the log and reading it, in SQL: segments, ids, lanes and message contents."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from support.log_sql import create_topic, cursor_of, publish_many, read, read_all, rotate, subscribe
from support.queue_sql import publish


async def test_ids_encode_segment_and_index(conn: Any) -> None:
    """An id is the segment's number times 1024 plus the index, and the view `log` shows the same."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    [one] = await publish(conn, "one")
    many = await publish_many(conn, *"abc")
    await rotate(conn, storage)
    [last] = await publish(conn, "last")
    result = await read(conn, await cursor_of(conn, group))

    assert result.ids == [one, *many, last]
    assert [id % 1024 for id in result.ids] == [0, 0, 1, 2, 0]
    assert sorted(result.ids) == result.ids, "they go on in the next partition"
    rows = await conn.fetch("select id, payload, sequence, index from postbus.log order by sequence, index")
    assert [(row["id"], row["payload"].decode()) for row in rows] == list(zip(result.ids, result.messages, strict=True))
    assert [(row["sequence"], row["index"]) for row in rows] == result.at


async def test_messages_of_a_key_share_a_lane(conn: Any) -> None:
    """All ways of publishing agree on the lane of a key; messages without a key spread over the lanes."""
    await create_topic(conn, lanes=16)
    keys = [f"k{n}" for n in range(20)]
    await publish_many(conn, *keys, keys=list(keys))
    for key in keys:
        await publish(conn, key, key=key)
    lanes = await conn.fetch("select key, count(*) as n, count(distinct lane) as lanes from postbus.log group by key")
    assert {(row["n"], row["lanes"]) for row in lanes} == {(2, 1)}
    assert await conn.fetchval("select count(distinct lane) from postbus.log") > 5
    for n in range(30):
        await publish(conn, f"{n}")
    assert await conn.fetchval("select count(distinct lane) from postbus.log where key is null") == 16


async def test_one_call_makes_one_segment_for_each_lane(conn: Any) -> None:
    """Segments are cut at the topic's `segment_size`, and the ids come back in the order of the payloads."""
    await create_topic(conn, lanes=2, segment_size=3)
    keys: list[str | None] = [f"k{n % 4}" for n in range(20)]
    ids = await publish_many(conn, *(f"{n}" for n in range(20)), keys=keys)

    rows = await conn.fetch("select id, payload from postbus.log")
    assert {row["id"]: int(row["payload"]) for row in rows} == {id: n for n, id in enumerate(ids)}
    sizes = await conn.fetch(
        "select lane, array_agg(count order by sequence) as sizes from postbus.segment group by lane"
    )
    for row in sizes:
        assert set(row["sizes"][:-1]) <= {3}
    for key in set(keys):
        ordered = [ids[n] for n in range(20) if keys[n] == key]
        assert ordered == sorted(ordered)


async def test_large_call_is_split_so_that_ids_stay_unique(conn: Any) -> None:
    """More messages than a segment can number go into several segments."""
    await create_topic(conn)
    ids = await publish_many(conn, *("x" for _ in range(2500)))

    assert len(set(ids)) == 2500
    assert await conn.fetchval("select array_agg(count order by sequence) from postbus.segment") == [1000, 1000, 500]


async def test_reading_returns_everything_a_message_carries(conn: Any) -> None:
    """Key, headers, correlation id, content type and payload are the same byte for byte."""
    await create_topic(conn)
    group = await subscribe(conn)
    await conn.execute(
        "select postbus.publish('t', $1::bytea, key => 'k', headers => $2, correlation_id => 'c', "
        "content_type => 'a/b')",
        bytes(range(256)),
        '{"h": "ü"}',
    )
    await conn.execute("""select postbus.publish('t', '{"n": 1}'::jsonb)""")
    await conn.execute(
        """select postbus.publish_many('t', array['x', 'y']::bytea[], headers => array[null, '{"a": "b"}'::jsonb],
             correlation_ids => array['1', null], content_types => array[null, 'c/d'], content_type => 'e/f')"""
    )
    first, second, third = (await read(conn, await cursor_of(conn, group))).segments

    assert first["payloads"] == [bytes(range(256))]
    assert (first["keys"], first["correlation_ids"], first["content_type"]) == (["k"], ["c"], "a/b")
    assert json.loads(first["headers"][0]) == {"h": "ü"}
    assert (second["payloads"], second["content_type"]) == ([b'{"n": 1}'], "application/json")
    assert third["content_types"] == [None, "c/d"] or third["content_types"] == ["e/f", "c/d"]
    view = await conn.fetch("select content_type, correlation_id, headers, payload_json from postbus.log order by id")
    assert [row["content_type"] for row in view] == ["a/b", "application/json", "e/f", "c/d"]
    assert [row["correlation_id"] for row in view] == ["c", None, "1", None]
    assert view[1]["payload_json"] == '{"n": 1}'


async def test_dedup_key_publishes_once(conn: Any) -> None:
    """A second use returns the id of the first, also within one call."""
    await create_topic(conn)
    group = await subscribe(conn)
    first = await publish(conn, "one", dedup_key="d")
    assert await publish(conn, "again", dedup_key="d") == first
    ids = await publish_many(conn, *"abcd", dedup_keys=["d", "e", "e", "f"])

    assert ids[0] == first[0]
    assert ids[1] == ids[2] != ids[3]
    assert (await read_all(conn, await cursor_of(conn, group)))[0] == ["one", "b", "d"]


async def test_rolled_back_message_leaves_nothing(conn: Any) -> None:
    """It is not in the log, groups never see it, and its deduplication key is free."""
    await create_topic(conn)
    group = await subscribe(conn)
    transaction = conn.transaction()
    await transaction.start()
    await publish(conn, "undone", dedup_key="d")
    await publish_many(conn, *"ab")
    await transaction.rollback()
    await publish(conn, "done", dedup_key="d")

    assert (await read_all(conn, await cursor_of(conn, group)))[0] == ["done"]


async def test_groups_read_the_same_messages_independently(conn: Any) -> None:
    """Each message goes to every group, and the progress of one group does not matter to another."""
    await create_topic(conn, lanes=3)
    groups = [await subscribe(conn, f"g{n}") for n in range(3)]
    await publish(conn, *(f"{n}" for n in range(9)))
    for group in groups:
        found = [
            text
            for lane in range(3)
            for text in (await read_all(conn, await cursor_of(conn, group, lane), 2, lanes=(lane,)))[0]
        ]
        assert sorted(found) == [f"{n}" for n in range(9)]


async def test_topics_that_share_storage_do_not_mix(conn: Any) -> None:
    """A group reads only its own topic, in every partition."""
    storage = await create_topic(conn, "a")
    assert await create_topic(conn, "b") == storage
    a, b = await subscribe(conn, topic="a"), await subscribe(conn, topic="b")
    for n in range(4):
        await publish(conn, f"a{n}", topic="a")
        await publish(conn, f"b{n}", topic="b")
        if n % 2:
            await rotate(conn, storage)

    assert (await read_all(conn, await cursor_of(conn, a), 1, topic="a"))[0] == [f"a{n}" for n in range(4)]
    assert (await read_all(conn, await cursor_of(conn, b), 3, topic="b"))[0] == [f"b{n}" for n in range(4)]


async def test_small_limit_reads_a_large_segment_whole(conn: Any) -> None:
    """A segment is read whole, however small the limit, and the next partition is not forgotten."""
    storage = await create_topic(conn)
    group = await subscribe(conn)
    await publish_many(conn, *(f"{n}" for n in range(100)))
    await rotate(conn, storage)
    await publish_many(conn, *(f"{n}" for n in range(100, 120)))
    first = await read(conn, await cursor_of(conn, group), 10)
    second = await read(conn, first.next, 10)

    assert (len(first.messages), first.more) == (100, True)
    assert (len(second.messages), second.more) == (20, False)


async def test_queue_cannot_be_read_as_a_log(conn: Any) -> None:
    """The error code says that the topic has other semantics."""
    await create_topic(conn)
    cursor = await cursor_of(conn, await subscribe(conn))
    await conn.execute("select postbus.create_topic('q')")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await read(conn, cursor, topic="q")
    assert caught.value.sqlstate == "PB432"


async def test_cost_of_a_read_does_not_grow_with_history(conn: Any) -> None:
    """A read visits as many blocks after two thousand segments as after ten."""
    await create_topic(conn, segment_size=1)
    group = await subscribe(conn)
    cursor = await cursor_of(conn, group)
    blocks = []
    for count in (10, 2000):
        await publish_many(conn, *("x" for _ in range(count)))
        _, cursor = await read_all(conn, cursor, 100000)
        await publish(conn, "y")
        plan = await conn.fetchval(
            "explain (analyze, buffers, format json) select * from postbus.read_log('t', '{0}', $1)", cursor
        )
        node = json.loads(plan)[0]["Plan"]
        blocks.append(node["Shared Hit Blocks"] + node["Shared Read Blocks"])

    assert blocks[1] < blocks[0] + 100, blocks


async def test_retention_may_range_from_minutes_to_years(conn: Any) -> None:
    """Each retention maps to the shared storage for its length."""
    found = [
        await create_topic(conn, f"t{n}", retention=keeps, zero_subscription_retention="0", max_retention="900 days")
        for n, keeps in enumerate(["0", "1 hour", "2 hours", "7 days", "8 days", "400 days"])
    ]
    assert found == [1, 1, 2, 3, 4, 5]
    assert timedelta(days=7) == await conn.fetchval("select period from postbus.log_storage where id = 5")


async def test_log_cannot_be_claimed_from(conn: Any) -> None:
    """Claims are for queues, and the error says what to do instead."""
    await create_topic(conn)

    with pytest.raises(asyncpg.PostgresError, match="is PUB_SUB") as refused:
        await conn.fetch("select * from postbus.claim('t', 'w', 1)")

    assert refused.value.sqlstate == "PB432"
