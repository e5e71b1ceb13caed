"""Sweeps at the pace of a shortened timeline, and samples the sizes of tables."""

from __future__ import annotations

import asyncio
import itertools
import time
from statistics import mean

from bench.lab import connection

STORAGE = 100  # id of the first log storage that belongs to one topic
_EVERY = 0.1  # seconds
_BYTES = """
    select sum(pg_total_relation_size(c.oid))::bigint from pg_class c
     where c.relnamespace = 'postbus'::regnamespace and c.relkind in ('r', 'S') and c.relname like $1
"""


class Sweeper:
    """Sweeps ten times a second. Its sizes are those of the tables whose names are like `tables`."""

    def __init__(self, dsn: str, *, tables: str = "%") -> None:
        self._dsn = dsn
        self._tables = tables
        self._bytes: list[tuple[float, int]] = []

    async def run(self) -> None:
        """Sweep until cancelled. It also folds and vacuums the ledger early, which would only grow otherwise."""
        async with connection(self._dsn) as conn:
            for turn in itertools.count():
                while await conn.fetchval("select more from postbus.sweep_log($1)", STORAGE):
                    pass
                if turn % 10 == 0:
                    await conn.execute("select postbus.fold_cursors($1, now() + interval '6 minutes')", STORAGE)
                    await conn.execute("vacuum postbus.cursor, postbus.subscription, postbus.worker, postbus.lane")
                self._bytes.append((time.monotonic(), await conn.fetchval(_BYTES, self._tables)))
                await asyncio.sleep(_EVERY)

    async def look(self) -> int:
        """Sample the size."""
        async with connection(self._dsn) as conn:
            size: int = await conn.fetchval(_BYTES, self._tables)
            return size

    def mean_bytes(self, began: float, ended: float) -> float:
        return mean([size for at, size in self._bytes if began <= at < ended] or [0])

    @property
    def most_bytes(self) -> int:
        return max(size for _, size in self._bytes)
