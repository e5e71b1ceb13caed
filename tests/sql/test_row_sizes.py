"""Rows that hold many messages are bounded by bytes, so that pg_dump can write each of them as text."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.log_sql import create_topic, read_all, refused, subscribe, take
from support.queue_sql import claim

MOST = 16 << 20
MIB = 1 << 20


async def _segments(conn: Any) -> list[int]:
    """Return how many bytes of payload each segment has."""
    rows = await conn.fetch(
        "select (select sum(length(one)) from unnest(payloads) as one) as size from postbus.segment order by sequence"
    )
    return [row["size"] for row in rows]


async def _publish(conn: Any, payloads: list[bytes], topic: str = "t", /, **columns: list[Any]) -> list[int]:
    named = "".join(f", {name} => ${n}" for n, name in enumerate(columns, 3))
    ids: list[int] = await conn.fetchval(
        f"select postbus.publish_many($1, $2::bytea[]{named})", topic, payloads, *columns.values()
    )
    return ids


@pytest.mark.parametrize("is_keyed", [False, True])
async def test_large_payloads_are_spread_over_segments(conn: Any, is_keyed: bool) -> None:
    """Messages of one call stay in order, and their ids say where each of them is."""
    await create_topic(conn)
    group = await subscribe(conn)
    payloads = [b"%d " % n + bytes(MIB - 8) for n in range(20)]
    keys: dict[str, Any] = {"keys": [f"k{n % 3}" for n in range(20)]} if is_keyed else {}
    ids = await _publish(conn, payloads, **keys)

    assert ids == sorted(set(ids))
    assert [one <= MOST for one in await _segments(conn)] == [True, True]
    [lane] = await take(conn, "w", group)
    got, _ = await read_all(conn, lane.cursor, 1000)
    assert [one.split()[0] for one in got] == [str(n) for n in range(20)]


async def test_headers_count_towards_segment_size(conn: Any) -> None:
    """Small payloads with large headers do not make a large row."""
    await create_topic(conn)
    ids = await _publish(conn, [b"1"] * 600, headers=[json.dumps({"h": "x" * 30_000})] * 600)

    assert len(ids) == 600
    assert await _segments(conn) == [300, 300]


async def test_large_headers_are_refused(conn: Any) -> None:
    """The hint says that data belongs into the payload."""
    hint = await refused(_publish(conn, [b"1"], headers=[json.dumps({"h": secrets.token_hex(40_000)})]), "PB402")
    assert hint == "put the data into the payload"


async def test_large_lines_are_spread_over_segments(conn: Any) -> None:
    """Lines too long for one row are split into several."""
    await create_topic(conn, max_payload_bytes=64 * MIB)
    lines = b"".join(b'"%d' % n + b"x" * MIB + b'"\n' for n in range(20))
    ids = await conn.fetchval("select postbus.publish_lines($1, $2, $3)", "t", lines, 20)

    assert len(ids) == 20
    assert [one <= MOST for one in await _segments(conn)] == [True, True]


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_leases_are_limited_whatever_is_asked_for(conn: Any, is_ordered: bool) -> None:
    """A claim that asks for more gets a part and `more`, so rows of finished messages are bounded too."""
    await conn.execute("select postbus.create_topic('t', $1)", json.dumps({"ordered": is_ordered, "retention": "1h"}))
    await _publish(conn, [bytes(MIB)] * 70, keys=[f"k{n}" for n in range(70)])
    first = await claim(conn, 200_000, max_bytes=1 << 40)
    assert len(first["ids"]) == 64
    await conn.execute("select postbus.ack_leases(array[$1::uuid])", first["token"])
    assert await conn.fetchval("select sum(cardinality(messages)) from postbus.finished") == 64
    assert len((await claim(conn, 200_000, max_bytes=1 << 40))["ids"]) == 6


async def test_headers_count_towards_lease_size(conn: Any) -> None:
    """A claim stops where payloads and headers together reach the requested size."""
    header = secrets.token_hex(500)  # random, so that it cannot be compressed
    await _publish(conn, [b"1"] * 20, headers=[json.dumps({"h": header})] * 20)
    some = await claim(conn, 20, max_bytes=5000)
    assert len(some["ids"]) == 5
    assert some["more"]


async def test_compressed_headers_count_uncompressed(conn: Any) -> None:
    """Headers that take a few bytes each in the table do not all go into one lease."""
    await _publish(conn, [b"1"] * 20, headers=[json.dumps({"h": "x" * 60_000})] * 20)
    assert len((await claim(conn, 20, max_bytes=300_000))["ids"]) == 5


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_acks_of_many_leases_make_bounded_rows(conn: Any, is_ordered: bool) -> None:
    """A worker acks many leases in one call, and the finished messages are stored in several rows."""
    await conn.execute("select postbus.create_topic('t', $1)", json.dumps({"ordered": is_ordered, "retention": "1h"}))
    await _publish(conn, [bytes(MIB)] * 40, keys=[f"k{n}" for n in range(40)])
    tokens = [(await claim(conn, 10, max_bytes=1 << 40))["token"] for _ in range(4)]
    assert await conn.fetchval("select postbus.ack_leases($1::uuid[])", tokens) == []
    counts = [row[0] for row in await conn.fetch("select cardinality(messages) from postbus.finished")]
    assert (sum(counts), len(counts), max(counts)) == (40, 3, 16)


@pytest.mark.parametrize(("name", "most"), [("correlation_id", "x" * 500), ("content_type", "a/" + "x" * 253)])
async def test_long_correlation_ids_and_content_types_are_refused(conn: Any, name: str, most: str) -> None:
    """They are stored with each message and count towards no other limit."""
    await conn.execute("select postbus.publish('t', $1::bytea, " + name + " => $2)", b"1", most)
    await refused(conn.execute("select postbus.publish('t', $1::bytea, " + name + " => $2)", b"1", most + "x"), "PB402")
    await refused(_publish(conn, [b"1", b"2"], **{f"{name}s": ["x/y", most + "x"]}), "PB402")
    await create_topic(conn, "log")
    await refused(_publish(conn, [b"1", b"2"], "log", **{f"{name}s": ["x/y", most + "x"]}), "PB402")


async def test_texts_and_keys_count_towards_segment_size(conn: Any) -> None:
    """Small payloads with long keys and correlation ids do not make a large row."""
    await create_topic(conn, lanes=1)
    some = [f"{n} " + "x" * 1990 for n in range(1000)]
    for _ in range(5):
        await _publish(
            conn, [b"1"] * 1000, keys=[one[:900] for one in some], correlation_ids=[one[:500] for one in some],
            headers=[json.dumps({"h": one}) for one in some], content_types=["a/" + "x" * 250] * 1000,
        )  # fmt: skip
    sizes = "select max(octet_length(one::text)) from postbus.segment as one"
    assert await conn.fetchval(sizes) < 2 * MOST
    assert await conn.fetchval("select sum(count) from postbus.segment") == 5000


async def test_imported_messages_are_spread_over_segments(conn: Any) -> None:
    """An import appends batches of messages as a publisher does."""
    await create_topic(conn)
    await conn.execute(
        "select postbus.import_messages(source => 'old', topic => 't', content_type => 'text/plain', "
        "source_ids => array(select n::text from generate_series(1, 40) as n), "
        "payloads => array(select $1::bytea from generate_series(1, 40)), keys => null, headers => null, "
        "correlation_ids => null, published_ats => array_fill(null::timestamptz, array[40]), "
        "attempts => null, errors => null)",
        bytes(MIB),
    )
    sizes = await _segments(conn)
    assert (sum(sizes), max(sizes) <= MOST) == (40 * MIB, True)


async def test_bulk_within_default_limits_can_be_dumped(
    conn: Any, dsn: str, client_program: Callable[[str], str], tmp_path: Path
) -> None:
    """pg_dump writes the messages of one call as text."""
    await create_topic(conn)
    await _publish(conn, [bytes(MIB)] * 40)
    process = await asyncio.create_subprocess_exec(
        client_program("pg_dump"), "--format=custom", f"--file={tmp_path}/dump", f"--dbname={dsn}",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    longest = await conn.fetchval("select max(octet_length(one::text)) from postbus.segment as one")
    assert longest < 2 * MOST + MIB
