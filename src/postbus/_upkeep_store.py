"""Statements that processes send beside consuming: heartbeats and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from postbus._database import RELAXED, Database
from postbus._log_store import Resurrected

# Relaxed before the function is called: it returns no row where there is nothing to tell.
_GROUP_HEARTBEAT = (
    f"select beat.* from (select {RELAXED} offset 0) as relaxed "
    "cross join lateral postbus.group_heartbeat($1, $2, $3, $4, $5, $6, $7) as beat"
)
_HEARTBEAT = f"select postbus.heartbeat($1, $2, $3, $4), {RELAXED}"


class UpkeepStore(Database):
    """What keeps messages moving, and tables small."""

    async def heartbeat(self, name: str, host: str, pid: int, topics: Sequence[str]) -> None:
        async with self.connection() as conn:
            await conn.execute(_HEARTBEAT, name, host, pid, topics)

    async def group_heartbeat(
        self, subscription_ids: Sequence[int], counts: Sequence[Sequence[Any]]
    ) -> list[Resurrected]:
        """Show that groups are alive, and what members have done. Returns those that were DEAD."""
        columns = [list(column) for column in zip(*counts, strict=True)] if counts else [[]] * 6
        async with self.connection() as conn:
            rows = await conn.fetch(_GROUP_HEARTBEAT, subscription_ids, *columns)
        return [Resurrected(row["subscription_id"], row["missed"], row["skipped"]) for row in rows]

    async def sign_off(self, name: str) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.sign_off($1)", name)

    async def return_expired(self, since: datetime | None = None) -> tuple[int, datetime]:
        """How many messages came back, and the database's time."""
        async with self.connection() as conn:
            row = await conn.fetchrow(
                "select postbus.return_expired(since => coalesce($1::timestamptz, '-infinity')) as count, "
                "clock_timestamp() as looked_at",
                since,
            )
        assert row is not None
        return row["count"], row["looked_at"]

    async def sweep(self) -> dict[str, Any]:
        async with self.connection() as conn:
            return dict(await conn.fetchrow("select * from postbus.sweep()") or {})

    async def sweep_log(self) -> bool:
        """Keep the log going. Says whether more is to be done at once."""
        async with self.connection() as conn:
            storages = [row[0] for row in await conn.fetch("select postbus.storages()")]
            swept = [await conn.fetchrow("select * from postbus.sweep_log($1)", storage) for storage in storages]
        return any(one is not None and one["more"] for one in swept)
