"""Watches the partitions of a log storage many times a second."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import asyncpg

from bench.lab import connection
from bench.sweeper import STORAGE

_LOOK = 0.04  # seconds
_PARTITIONS = "select epoch, closed_at is not null as is_closed from postbus.log_partition where storage_id = $1"
_CONTENT = """
    select max(published_at) as last_at, coalesce(sum(count), 0) as messages,
           min(txid)::text::numeric % 4294967296 > (select a.xmin::text::numeric from pg_attribute a
                                                    where a.attrelid = $1::text::regclass and a.attnum = 1) as ahead
      from {partition}
"""


@dataclass
class Partition:
    """The life of a partition, by time.monotonic()."""

    epoch: int
    seen_at: float
    closed_at: float = 0.0
    dropped_at: float = 0.0
    last_at: float = 0.0
    """When its last message was published."""
    messages: int = 0
    was_ahead: bool = False
    """Whether an earlier transaction than that of its first message created its table."""


class PartitionWatch:
    """Remembers all partitions that it has seen."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.partitions: dict[int, Partition] = {}
        self.events: list[float] = []
        """When a partition was seen to be created, closed or dropped, by time.monotonic()."""
        self.has_looked = asyncio.Condition()
        """Notified after each sample."""

    async def run(self) -> None:
        """Sample until cancelled."""
        async with connection(self._dsn) as conn:
            while True:
                await self._look(conn)
                async with self.has_looked:
                    self.has_looked.notify_all()
                await asyncio.sleep(_LOOK)

    async def _look(self, conn: asyncpg.Connection) -> None:
        now, there = time.monotonic(), {}
        for row in await conn.fetch(_PARTITIONS, STORAGE):
            there[row["epoch"]] = row["is_closed"]
        for epoch, is_closed in there.items():
            if epoch not in self.partitions:
                self.partitions[epoch] = Partition(epoch, now)
                self.events.append(now)
            partition = self.partitions[epoch]
            if is_closed and not partition.closed_at:
                partition.closed_at = now
                self.events.append(now)
                await self._note_content(conn, partition)
        for partition in self.partitions.values():
            if partition.epoch not in there and not partition.dropped_at:
                partition.dropped_at = now
                self.events.append(now)

    async def _note_content(self, conn: asyncpg.Connection, partition: Partition) -> None:
        name = f"postbus.segment_{STORAGE}_{partition.epoch}"
        row = await conn.fetchrow(_CONTENT.format(partition=name), name)
        assert row is not None
        if row["last_at"] is not None:
            ago: float = await conn.fetchval(
                "select extract(epoch from clock_timestamp() - $1)::float8", row["last_at"]
            )
            partition.last_at = time.monotonic() - ago
        partition.messages, partition.was_ahead = row["messages"], bool(row["ahead"])

    def closed(self) -> list[Partition]:
        return [partition for partition in self.partitions.values() if partition.closed_at and partition.messages]

    def dropped(self) -> list[Partition]:
        return [partition for partition in self.closed() if partition.dropped_at]
