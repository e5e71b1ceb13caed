"""A log to read from, and the same messages as plain rows."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import asyncpg

from bench import load
from bench.lab import Lab, connection
from bench.log import peer
from bench.log.publish import TOPIC
from postbus import Bus


@contextlib.asynccontextmanager
async def filled(lab: Lab, count: int) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
    """A database with `count` messages in both. Yields its DSN and a connection."""
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(TOPIC, semantics="PUB_SUB")
        await peer.create(conn)
        given = load.payloads(min(count, 50_000))
        await load.fill(bus, conn, TOPIC, given, count)
        await peer.fill_rows(conn, given, count)
        yield dsn, conn
