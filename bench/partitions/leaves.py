"""The partitions of a log storage, observed many times a second."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import asyncpg

from bench.lab import connection
from bench.sweeper import STORAGE

_LOOK = 0.04  # seconds
_LEAVES = "select epoch, closed_at is not null as is_closed from postbus.log_leaf where storage_id = $1"
_CONTENT = """
    select max(published_at) as last_at, coalesce(sum(count), 0) as messages,
           min(txid)::text::numeric % 4294967296 > (select a.xmin::text::numeric from pg_attribute a
                                                    where a.attrelid = $1::text::regclass and a.attnum = 1) as ahead
      from {leaf}
"""


@dataclass
class Leaf:
    """A leaf's life, by time.monotonic()."""

    epoch: int
    seen_at: float
    closed_at: float = 0.0
    dropped_at: float = 0.0
    last_at: float = 0.0
    """When its last message was published."""
    messages: int = 0
    was_ahead: bool = False
    """Whether its table was made by a transaction before that of its first message."""


class LeafWatch:
    """Knows all leaves that there were."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.leaves: dict[int, Leaf] = {}
        self.events: list[float] = []
        """When a leaf was made, closed or dropped, by time.monotonic(): each is seen a moment later."""
        self.has_looked = asyncio.Condition()
        """Notified after each look."""

    async def run(self) -> None:
        """Look until cancelled."""
        async with connection(self._dsn) as conn:
            while True:
                await self._look(conn)
                async with self.has_looked:
                    self.has_looked.notify_all()
                await asyncio.sleep(_LOOK)

    async def _look(self, conn: asyncpg.Connection) -> None:
        now, there = time.monotonic(), {}
        for row in await conn.fetch(_LEAVES, STORAGE):
            there[row["epoch"]] = row["is_closed"]
        for epoch, is_closed in there.items():
            if epoch not in self.leaves:
                self.leaves[epoch] = Leaf(epoch, now)
                self.events.append(now)
            leaf = self.leaves[epoch]
            if is_closed and not leaf.closed_at:
                leaf.closed_at = now
                self.events.append(now)
                await self._note_content(conn, leaf)
        for leaf in self.leaves.values():
            if leaf.epoch not in there and not leaf.dropped_at:
                leaf.dropped_at = now
                self.events.append(now)

    async def _note_content(self, conn: asyncpg.Connection, leaf: Leaf) -> None:
        name = f"postbus.segment_{STORAGE}_{leaf.epoch}"
        row = await conn.fetchrow(_CONTENT.format(leaf=name), name)
        assert row is not None
        if row["last_at"] is not None:
            ago: float = await conn.fetchval(
                "select extract(epoch from clock_timestamp() - $1)::float8", row["last_at"]
            )
            leaf.last_at = time.monotonic() - ago
        leaf.messages, leaf.was_ahead = row["messages"], bool(row["ahead"])

    def closed(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves.values() if leaf.closed_at and leaf.messages]

    def dropped(self) -> list[Leaf]:
        return [leaf for leaf in self.closed() if leaf.dropped_at]
