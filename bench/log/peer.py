"""The limits of the server beside the log: plain segments, and plain rows by COPY and keyset SELECT."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec

from bench.load import Order, Payload, batches, encode

_TABLES = """
    create table raw_segment (id bigserial primary key, payloads bytea[] not null);
    alter table raw_segment alter column payloads set storage external;
    create table raw_row (id bigserial primary key, payload bytea not null);
"""
_decoder = msgspec.json.Decoder(Order)


async def create(conn: asyncpg.Connection) -> None:
    await conn.execute(_TABLES)


async def insert_segment(conn: asyncpg.Connection, batch: Sequence[Payload]) -> None:
    """The limit of publishing: the same bytes as one row."""
    async with conn.transaction():
        await conn.execute("insert into raw_segment (payloads) values ($1)", [encode(one) for one in batch])


async def copy_rows(conn: asyncpg.Connection, batch: Sequence[Payload]) -> None:
    """The same as rows, by COPY."""
    async with conn.transaction():
        await conn.copy_records_to_table("raw_row", records=[(encode(one),) for one in batch], columns=["payload"])


async def fill_rows(conn: asyncpg.Connection, given: Sequence[Payload], count: int) -> None:
    for batch in batches(given, count):
        await copy_rows(conn, batch)


async def read_rows(conn: asyncpg.Connection, *, batch: int) -> int:
    """Read and decode all rows, page by page. Returns how many there were."""
    last = count = 0
    while rows := await conn.fetch("select id, payload from raw_row where id > $1 order by id limit $2", last, batch):
        last = rows[-1]["id"]
        count += len([_decoder.decode(row["payload"]) for row in rows])
    return count
