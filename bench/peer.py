"""The peer: a queue written by hand with SKIP LOCKED, as small and as fast as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import asyncpg
import msgspec

from bench.load import Order, Payload, batches, encode

_TABLE = """
    create table handwritten (id bigserial primary key, payload bytea not null, lease_until timestamptz);
    -- The same care that Postbus takes of its queue.
    alter table handwritten set (
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
    );
    create table plain (payload bytea not null);
"""
INSERT = "insert into handwritten (payload) select unnest($1::bytea[])"
INSERT_ONE = "insert into handwritten (payload) values ($1)"
CHANNEL = "handwritten"
_INSERT_AND_NOTIFY = f"with one as ({INSERT_ONE}) select pg_notify('{CHANNEL}', '')"
_DUE = """
    select id from handwritten where lease_until is null or lease_until < now()
     order by id limit $1 for update skip locked
"""
_LEASE = f"""
    update handwritten set lease_until = now() + interval '30 seconds'
     where id = any (array({_DUE})) returning id, payload
"""
_DELETE = "delete from handwritten where id = any ($1::bigint[])"
_POP = f"delete from handwritten where id = any (array({_DUE})) returning payload"

_decoder = msgspec.json.Decoder(Order)


async def create(conn: asyncpg.Connection) -> None:
    """Create the tables of the peer, and the one for the limits."""
    await conn.execute(_TABLE)


async def copy(conn: asyncpg.Connection, given: Sequence[bytes]) -> None:
    """The limit of publishing: the same bytes by COPY."""
    await conn.copy_records_to_table("plain", records=[(one,) for one in given], columns=["payload"])


async def fill(conn: asyncpg.Connection, given: Sequence[Payload], count: int) -> None:
    """Insert `count` messages, in a transaction for each batch."""
    for batch in batches(given, count):
        await conn.execute(INSERT, [encode(one) for one in batch])


async def publish_and_notify(conn: asyncpg.Connection, payload: Payload) -> None:
    """Insert one message, and wake the consumers when the transaction commits."""
    await conn.execute(_INSERT_AND_NOTIFY, encode(payload))


async def lease_and_delete(
    conn: asyncpg.Connection, *, batch: int, handle: Callable[[Order], None] = lambda order: None
) -> int:
    """Lease up to `batch` messages, decode, handle and delete them. Returns their number."""
    rows = await conn.fetch(_LEASE, batch)
    if rows:
        for row in rows:
            handle(_decoder.decode(row["payload"]))
        await conn.execute(_DELETE, [row["id"] for row in rows])
    return len(rows)


async def pop(conn: asyncpg.Connection, *, batch: int) -> int:
    """The same without a lease: a crash loses the messages in hand."""
    rows = await conn.fetch(_POP, batch)
    for row in rows:
        _decoder.decode(row["payload"])
    return len(rows)


async def read_all(conn: asyncpg.Connection, *, batch: int) -> int:
    """The limit of draining: read and decode all rows, without settling any."""
    count = 0
    async with conn.transaction():
        cursor = await conn.cursor("select payload from plain")
        while rows := await cursor.fetch(batch):
            for row in rows:
                _decoder.decode(row["payload"])
            count += len(rows)
    return count
