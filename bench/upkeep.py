"""How a load affects tables and the write-ahead log, sampled while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from bench.lab import connection

_LOOK = 2.0  # seconds
_LEAST_BYTES = 1 << 20
_TABLES = """
    select sum(n_dead_tup) as dead, sum(n_dead_tup + n_live_tup) as rows,
           coalesce(max(100.0 * n_dead_tup / (n_dead_tup + n_live_tup))
                        filter (where n_dead_tup > 0 and pg_total_relation_size(relid) >= $1), 0) as worst
      from pg_stat_user_tables where schemaname = 'postbus'
"""
_WRITTEN = "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"


class Upkeep:
    """Samples the dead rows of each table, and the written bytes."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._worst = 0.0
        self._dead_percent = 0.0
        self._wal_bytes = 0
        self._seconds = 0.0

    async def watch(self) -> None:
        """Sample until cancelled."""
        async with connection(self._dsn) as conn:
            began, wal_began = time.monotonic(), await conn.fetchval(_WRITTEN)
            while True:
                await asyncio.sleep(_LOOK)
                found = await conn.fetchrow(_TABLES, _LEAST_BYTES)
                assert found is not None
                self._worst = max(self._worst, float(found["worst"]))
                self._dead_percent = 100 * float(found["dead"]) / max(float(found["rows"]), 1.0)
                self._seconds = time.monotonic() - began
                self._wal_bytes = await conn.fetchval(_WRITTEN) - wal_began

    def figures(self) -> dict[str, float]:
        return {
            "dead_tuple_percent": self._dead_percent,
            "bloat_worst_table_percent": self._worst,
            "wal_mb_per_s": self._wal_bytes / 2**20 / max(self._seconds, 1.0),
        }


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let a task run for the length of the block."""
    task = asyncio.create_task(work)
    try:
        yield
        if task.done():
            task.result()  # raises the reason
    finally:
        task.cancel()
        await asyncio.wait([task])


def disk_mb_per_s(megabytes: int = 256) -> float:
    """The write speed of the disk that has the temporary folders, where an embedded server keeps its data."""
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile() as file:
        began = time.perf_counter()
        for _ in range(megabytes):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return megabytes / (time.perf_counter() - began)
