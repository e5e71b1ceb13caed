"""Messages published as lines: one value in the log, and a message each everywhere else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from postbus._db.migrator import migrate
from support.fix_database import Connect
from support.log_sql import create_topic, read, refused, subscribe, take
from support.pop_sql import ack, pop

LINES = b'{"n": 1}\n{"n": "\xc3\xb6\\n\\\\"}\n[]\n'
EACH = [b'{"n": 1}', b'{"n": "\xc3\xb6\\n\\\\"}', b"[]"]


async def publish_lines(conn: Any, lines: bytes = LINES, count: int | None = 3, topic: str = "t") -> list[int]:
    ids: list[int] = await conn.fetchval("select postbus.publish_lines($1, $2, $3)", topic, lines, count)
    return ids


@pytest.fixture(params=["UTF8", "LATIN1", "SQL_ASCII", "EUC_JP"])
async def encoded(server: Any, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Connect to a database in some encoding, with the schema."""
    root: Any = await asyncpg.connect(server.dsn())
    name = f"lines_{request.param.lower()}"
    await root.execute(f"create database {name} template template0 encoding '{request.param}' locale 'C'")
    try:
        conn: Any = await asyncpg.connect(server.dsn(name))
        await migrate(conn)
        yield conn
        await conn.close()
    finally:
        await root.execute(f"drop database {name} with (force)")
        await root.close()


async def test_lines_are_bytes_in_every_encoding(encoded: Any) -> None:
    """Bytes above 127, escapes and backslashes come out as they went in."""
    lines = b"\xff\xfe\x01\\001\\\\x\n\n\xc3\xb6\n"
    assert await encoded.fetchval("select postbus.lines_of($1, 3)", lines) == lines.split(b"\n")[:3]


@pytest.mark.parametrize(
    ("lines", "count", "expected"),
    [
        (b"a\nb\n", 2, [b"a", b"b"]),
        (b"a\nb", 2, [b"a", b"b"]),
        (b"a\nb\nc\n", 2, [b"a", b"b"]),
        (b"a\n", 3, [b"a", b"", b""]),
        (b"", 1, [b""]),
        (b"", 0, []),
        (b"a\n", 0, []),
        (b"\n\n", 2, [b"", b""]),
    ],
)
async def test_lines_are_split_into_the_announced_number(
    conn: Any, lines: bytes, count: int, expected: list[bytes]
) -> None:
    """The result has as many elements as announced, however many lines there are."""
    assert await conn.fetchval("select postbus.lines_of($1, $2)", lines, count) == expected


async def test_log_keeps_lines_as_one_value(conn: Any) -> None:
    """The view shows one message per line, with ids that follow from the index."""
    await create_topic(conn)
    ids = await publish_lines(conn)

    assert ids == [ids[0], ids[0] + 1, ids[0] + 2]
    row = await conn.fetchrow("select payloads, count, bytes, in_lines from postbus.segment")
    assert tuple(row) == ([LINES], 3, len(LINES), True)
    rows = await conn.fetch("select id, payload, payload_json, content_type from postbus.log order by id")
    assert [row["id"] for row in rows] == ids
    assert [row["payload"] for row in rows] == EACH
    assert [json.loads(row["payload_json"]) for row in rows] == [json.loads(one) for one in EACH]
    assert {row["content_type"] for row in rows} == {"application/json"}


async def test_reader_without_in_lines_gets_messages(conn: Any) -> None:
    """Clients from before lines existed read them as messages."""
    await create_topic(conn)
    await subscribe(conn)
    await publish_lines(conn)
    [lane] = await take(conn, "w", await conn.fetchval("select id from postbus.subscription"))

    assert (await read(conn, lane.cursor)).messages == [one.decode() for one in EACH]
    rows = await conn.fetch("select * from postbus.read_log('t', '{0}', $1, in_lines => true)", lane.cursor)
    assert [(row["payloads"], row["count"]) for row in rows[:-1]] == [([LINES], 3)]


@pytest.mark.parametrize("storage", ["shared", "own"])
@pytest.mark.parametrize("late", [False, True])
async def test_lines_are_read_from_every_position(connect: Connect, storage: str, late: bool) -> None:
    """They come from shared and own storage, also after others committed first."""
    conn, other = await connect(), await connect()
    await create_topic(conn, storage=storage)
    await subscribe(conn)
    subscription = await conn.fetchval("select id from postbus.subscription")
    cursor = (await take(conn, "w", subscription))[0].cursor
    transaction = other.transaction()
    await transaction.start()
    await publish_lines(other)
    if late:
        await publish_lines(conn, b"1\n2\n", 2)
        first = await read(conn, cursor)
        assert first.messages == ["1", "2"]
        cursor = first.next
    await transaction.commit()

    assert (await read(conn, cursor)).messages == [one.decode() for one in EACH]


async def test_lines_are_popped_one_by_one(conn: Any) -> None:
    """A pop takes some lines of a segment, and the next pop the rest."""
    await create_topic(conn)
    await subscribe(conn)
    await publish_lines(conn)

    first = await pop(conn, 2)
    second = await pop(conn, 2)

    assert [*first.messages, *second.messages] == [one.decode() for one in EACH]
    assert await ack(conn, first) == await ack(conn, second) == []


async def test_queue_splits_lines_into_rows(conn: Any) -> None:
    """Each message of a queue has its own row."""
    ids = await publish_lines(conn)

    rows = await conn.fetch("select id, payload, content_type from postbus.messages order by id")
    assert [(row["id"], row["payload"]) for row in rows] == list(zip(ids, EACH, strict=True))
    assert {row["content_type"] for row in rows} == {"application/json"}


@pytest.mark.parametrize(
    ("lines", "count", "expected"),
    [
        (b"a\nb", 2, [b"a", b"b"]),
        (b"\n\nb\n", 3, [b"", b"", b"b"]),
        (b"a\nb\nc\n", 2, [b"a", b"b"]),
        (b"a\n", 3, [b"a", b"", b""]),
        (b"\xff\n\x00\n\\x41\n", 3, [b"\xff", b"\x00", b"\\x41"]),
        (b"a\n", 0, []),
    ],
)
async def test_queue_accepts_all_kinds_of_lines(conn: Any, lines: bytes, count: int, expected: list[bytes]) -> None:
    """It stores as many messages as announced, also if the bytes are not text."""
    ids = await publish_lines(conn, lines, count)

    rows = await conn.fetch("select id, payload from postbus.messages order by id")
    assert [(row["id"], row["payload"]) for row in rows] == list(zip(ids, expected, strict=True))


async def test_queue_checks_each_line(conn: Any) -> None:
    """The payload limit applies to each line, and an ordered topic refuses lines, which have no key."""
    await conn.execute("select postbus.create_topic('t', '{\"max_payload_bytes\": 10}')")
    assert len(await publish_lines(conn, b"12345678\n" * 5, 5)) == 5
    await refused(publish_lines(conn, b"1\n12345678901\n", 2), "PB411")
    await refused(publish_lines(conn, "1\nöööööö\n".encode(), 2), "PB411")
    await conn.execute("select postbus.create_topic('ordered', '{\"ordered\": true}')")
    await refused(publish_lines(conn, topic="ordered"), "PB402")
    assert await conn.fetchval("select count(*) from postbus.messages") == 5


async def test_queue_accepts_lines_in_every_encoding(encoded: Any) -> None:
    """Characters that the encoding does not have are stored as bytes."""
    await publish_lines(encoded, "ö\n漢\n".encode(), 2)
    payloads = await encoded.fetchval("select array_agg(payload order by id) from postbus.queued")
    assert payloads == ["ö".encode(), "漢".encode()]


@pytest.mark.parametrize("count", [1, 2, 1000, 1001, 2500])
async def test_any_number_of_lines_can_be_published(conn: Any, count: int) -> None:
    """More lines than a segment can hold go into several, and a single line is an ordinary message."""
    await create_topic(conn)
    lines = b"".join(b"%d\n" % n for n in range(count))
    ids = await publish_lines(conn, lines, count)

    assert len(set(ids)) == count
    assert ids == sorted(ids)
    assert await conn.fetchval("select array_agg(payload order by id) from postbus.log") == lines.split()


async def test_lines_are_counted_if_no_count_is_given(conn: Any) -> None:
    """The last line may end with a line break or without one."""
    await create_topic(conn)
    for lines in (b"1\n2\n3\n", b"1\n2\n3", b"1\n2\n3\n\n\n"):
        assert len(await publish_lines(conn, lines, None)) == 3
    assert await publish_lines(conn, b"", None) == []


async def test_too_long_line_is_refused_and_many_lines_are_not(conn: Any) -> None:
    """The payload limit applies to each line."""
    await create_topic(conn, max_payload_bytes=10)
    assert len(await publish_lines(conn, b"12345678\n" * 5, 5)) == 5
    await refused(publish_lines(conn, b"1\n12345678901\n", 2), "PB411")
    await refused(publish_lines(conn, b"1\n", -1), "PB402")
    with pytest.raises(Exception, match="lines is null"):
        await conn.fetchval("select postbus.publish_lines('t', null)")
    assert await conn.fetchval("select count(*) from postbus.log") == 5


async def test_named_lanes_refuse_lines(conn: Any) -> None:
    """Lines have no keys."""
    await create_topic(conn, lanes="named")
    await refused(publish_lines(conn), "PB402")


async def test_lines_are_refused_without_groups_where_writes_are_blocked(conn: Any) -> None:
    """The rule is the same as for other ways of publishing."""
    await create_topic(conn, block_writes_on_zero_subscriptions=True)
    await refused(publish_lines(conn), "PB430")
    await subscribe(conn)
    assert len(await publish_lines(conn)) == 3


async def test_missing_lines_become_empty_messages(conn: Any) -> None:
    """A publisher that announces a wrong number harms only its own messages."""
    await create_topic(conn)
    await publish_lines(conn, b"1\n", 3)
    await publish_lines(conn, b"1\n2\n3\n", 2)

    found = await conn.fetchval("select array_agg(payload order by id) from postbus.log")
    assert found == [b"1", b"", b"", b"1", b"2"]
