"""Statements for heartbeats and sweeps, which processes run beside consuming."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from postbus._db.database import RELAXED, Database, clean
from postbus._db.error_map import DRIVER_ERRORS
from postbus._db.process import SECRET
from postbus._db.statements.log import ResurrectedGroup
from postbus.errors import DatabaseUnavailable, PostbusError

# The commit is relaxed before the function is called, because the function may return no row.
_GROUP_HEARTBEAT = (
    f"select beat.* from (select {RELAXED} offset 0) as relaxed "
    "cross join lateral postbus.group_heartbeat($1, $2, $3, $4, $5, $6, $7, $8) as beat"
)
_HEARTBEAT = f"select postbus.heartbeat($1, $2, $3, $4, $5), {RELAXED}"


class MaintenanceStore(Database):
    """Runs statements that keep messages moving and tables small."""

    async def heartbeat(self, name: str, host: str, pid: int, topics: Sequence[str]) -> None:
        async with self.connection() as conn:
            await conn.execute(_HEARTBEAT, name, host, pid, topics, SECRET)

    async def group_heartbeat(
        self, subscription_ids: Sequence[int], counts: Sequence[Sequence[Any]]
    ) -> list[ResurrectedGroup]:
        """Report that groups are alive, and the counts of members. Returns groups that were DEAD."""
        columns = [list(column) for column in zip(*counts, strict=True)] if counts else [[]] * 7
        async with self.connection() as conn:
            rows = await conn.fetch(_GROUP_HEARTBEAT, subscription_ids, *columns)
        return [ResurrectedGroup(row["subscription_id"], row["missed"], row["skipped"]) for row in rows]

    async def sign_off(self, name: str) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.sign_off($1, $2)", name, SECRET)

    async def note_sweeper(self, name: str, host: str, pid: int) -> None:
        """Report that this process sweeps."""
        async with self.connection() as conn:
            await conn.execute(f"select postbus.note_sweeper($1, $2, $3, $4), {RELAXED}", name, host, pid, SECRET)

    async def forget_sweeper(self, name: str) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.forget_sweeper($1, $2)", name, SECRET)

    async def return_expired(self, since: datetime | None = None) -> tuple[int, datetime]:
        """Return expired messages. Returns their number, and the time by the clock of the database."""
        row = await self._job(
            "return_expired",
            "select postbus.return_expired(since => coalesce($1::pg_catalog.timestamptz, '-infinity')) as count, "
            "pg_catalog.clock_timestamp() as looked_at",
            since,
        )
        return row["count"], row["looked_at"]

    async def sweep(self, *, if_due: bool = False) -> dict[str, Any]:
        return dict(await self._job("sweep", "select * from postbus.sweep(if_due => $1)", if_due))

    async def sweep_log(self, *, if_due: bool = False) -> bool:
        """Maintain the log; with `if_due`, drop parts of it only if that is due. Returns whether more is to be done."""
        swept = await self.sweep_storages(if_due=if_due)
        return any(one["more"] for one in swept)

    async def sweep_storages(self, *, if_due: bool = False) -> list[dict[str, Any]]:
        """Run one step for each storage of the log."""
        storages = [row["storages"] for row in await self._rows("select postbus.storages()")]
        statement = "select * from postbus.sweep_log($1, if_due => $2)"
        return [dict(await self._job("sweep_log", statement, one, if_due, storage=one)) for one in storages]

    async def note_sink_away(self, topic: str, group: str | None, process: str, sink: str, error: str) -> None:
        """Report that a relay cannot reach its sink."""
        sql = "select postbus.note_sink_away($1, $2, $3, $4, $5, $6)"
        await self._run(sql, topic, group, process, sink, clean(error), SECRET)

    async def forget_sink_away(self, topic: str, group: str | None, process: str) -> None:
        await self._run("select postbus.forget_sink_away($1, $2, $3, $4)", topic, group, process, SECRET)

    async def take_group_events(self) -> list[dict[str, Any]]:
        """Take the events of groups that are to be logged. Each event goes to one process."""
        return await self._rows("select name, topic, group_name, fields::text from postbus.take_group_events()")

    async def sweep_subscriptions(self, *, if_due: bool = False) -> int:
        statement = "select postbus.sweep_subscriptions(if_due => $1) as count"
        return int((await self._job("subscriptions", statement, if_due))["count"])

    async def _job(self, job: str, statement: str, *args: Any, storage: int = 0) -> Any:
        """Run a job. If it fails, note that in the database for operators to see."""
        try:
            async with self.connection() as conn:
                return await conn.fetchrow(statement, *args)
        except DatabaseUnavailable:
            raise
        except (PostbusError, *DRIVER_ERRORS) as error:
            with suppress(PostbusError, *DRIVER_ERRORS):
                await self._run("select postbus.note_failure($1, $2, $3)", job, storage, str(error))
            raise
