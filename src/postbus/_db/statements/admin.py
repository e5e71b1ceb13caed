"""Statements of operators: for topics, dead letters, groups and sweeping."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from postbus._db.database import Database
from postbus._db.rows import as_struct, as_structs
from postbus._db.statements.health import as_limits, look_at_groups
from postbus.errors import PostbusError
from postbus.health import GroupFinding
from postbus.options import Semantics
from postbus.results.groups import (
    CatchUpInfo,
    GroupInfo,
    GroupMetrics,
    GroupState,
    MemberInfo,
    RemovedGroup,
    Resurrection,
)
from postbus.results.health import (
    GroupHealthLimits,
    GroupNearTimeout,
    Inconsistency,
    StuckMessages,
    SweepHealth,
    SweepJob,
    SweepSettings,
    UnclaimedMessages,
)
from postbus.results.topics import MoveProgress, QueueBacklog, SinkAway, TopicInfo, WorkerInfo

_OF_OPERATORS: dict[GroupState, str] = {"PAUSED": "pause_group", "ACTIVE": "resume_group"}
"""The functions that the role operator may call. All other changes of state are for administrators."""


class AdminStore(Database):
    """Runs statements of operators."""

    # topics

    async def ensure_topic(self, name: str) -> None:
        async with self.connection() as conn:
            await conn.execute("select postbus.ensure_topic($1)", name)

    async def create_topic(self, name: str, options: Mapping[str, Any]) -> None:
        storage = await self._act("select storage_id from postbus.create_topic($1, $2)", name, json.dumps(options))
        with suppress(PostbusError):  # the next sweep does the rest, which is not urgent
            if storage is not None and await self._run("select postbus.publish_partitions($1)", storage):
                await self._run("select postbus.publish_partitions($1)", storage)

    async def set_topic(self, name: str, options: Mapping[str, Any]) -> None:
        await self._act("select postbus.set_topic($1, $2)", name, json.dumps(options))

    async def move_topic(
        self, name: str, groups: Sequence[str], options: Mapping[str, Any], *, hand_over: bool, dry_run: bool
    ) -> QueueBacklog:
        [row] = await self._act_rows(
            "select * from postbus.move_topic($1, $2, $3, $4, $5)",
            name,
            groups,
            json.dumps(options),
            hand_over,
            dry_run,
        )
        return as_struct(QueueBacklog, row)

    async def continue_move(self, name: str) -> MoveProgress | None:
        """Continue the migration of a topic. None while another session does, or if there is none."""
        rows = await self._rows("select * from postbus.continue_moves($1)", name)
        return as_struct(MoveProgress, rows[0]) if rows else None

    async def pause_topic(self, name: str) -> None:
        await self._act("select postbus.pause_topic($1)", name)

    async def resume_topic(self, name: str) -> None:
        await self._act("select postbus.resume_topic($1)", name)

    async def delete_topic(self, name: str, *, force: bool) -> None:
        await self._act("select postbus.delete_topic($1, $2)", name, force)

    async def purge_topic(self, name: str, *, dry_run: bool) -> int:
        return int(await self._act("select postbus.purge_topic($1, $2)", name, dry_run))

    async def topics(
        self, name: str | None = None, *, namespace: str | None = None, task: str | None = None
    ) -> list[TopicInfo]:
        rows = await self._rows(
            "select * from postbus.topics where ($1::text is null or name = $1) "
            "and ($2::text is null or namespace = $2) and ($3::text is null or task = $3) order by name",
            name,
            namespace,
            task,
        )
        return as_structs(TopicInfo, rows)

    async def semantics(self, name: str | None = None) -> dict[str, Semantics]:
        """The semantics of a topic, or of all. Unlike `topics` it counts no messages, which takes long if many wait."""
        rows = await self._rows("select name, semantics from postbus.topics where $1::text is null or name = $1", name)
        return {row["name"]: row["semantics"] for row in rows}

    async def workers(self) -> list[WorkerInfo]:
        return as_structs(WorkerInfo, await self._rows("select * from postbus.workers order by name"))

    async def sinks_away(self) -> list[SinkAway]:
        rows = await self._rows("select * from postbus.sinks_away order by topic, group_name, since")
        return as_structs(SinkAway, rows)

    # groups

    async def groups(self, topic: str | None, group: str | None) -> list[GroupInfo]:
        rows = await self._rows(
            "select * from postbus.groups "
            "where ($1::text is null or topic = $1) and ($2::text is null or group_name = $2) "
            "order by topic, group_name, subscription_id",
            topic,
            group,
        )
        return [group_info(row) for row in rows]

    async def members(self, topic: str, group: str) -> list[MemberInfo]:
        rows = await self._rows(
            "select * from postbus.members where topic = $1 and group_name = $2 order by name", topic, group
        )
        return as_structs(MemberInfo, rows)

    async def set_group_state(self, topic: str, group: str, state: GroupState) -> None:
        function = _OF_OPERATORS.get(state)
        if function is None:
            await self._act("select postbus.set_group_state($1, $2, $3)", topic, group, state)
        else:
            await self._act(f"select postbus.{function}($1, $2)", topic, group)

    async def seek(
        self, topic: str, group: str, start: str, start_at: datetime | None, start_id: int | None, *, dry_run: bool
    ) -> int:
        return int(
            await self._act(
                "select postbus.seek($1, $2, $3, $4, $5, $6)", topic, group, start, start_at, start_id, dry_run
            )
        )

    async def catch_ups(self, topic: str | None, group: str | None) -> list[CatchUpInfo]:
        rows = await self._rows(
            "select * from postbus.catch_ups where ($1::text is null or topic = $1) "
            "and ($2::text is null or group_name = $2) order by topic, group_name, started_at",
            topic,
            group,
        )
        return as_structs(CatchUpInfo, rows)

    async def set_catch_up(self, topic: str, group: str, *, is_wanted: bool) -> None:
        if is_wanted:
            await self._act("select postbus.resume_catch_up($1, $2)", topic, group)
        else:
            await self._act("select postbus.set_catch_up($1, $2, false)", topic, group)

    async def resurrect_group(self, topic: str, group: str, *, catch_up: bool) -> Resurrection | None:
        """Bring a group back to life. None if there is no DEAD group of this name."""
        sql = "select missed, skipped from postbus.resurrect_group($1, $2)"
        if not catch_up:
            sql = (
                "select r.missed, r.skipped from postbus.groups g "
                "cross join lateral postbus.resurrect(array[g.subscription_id], false) as r "
                "where g.topic = $1 and g.group_name = $2 and g.state = 'DEAD'"
            )
        rows = await self._act_rows(sql, topic, group)
        return as_struct(Resurrection, rows[0]) if rows else None

    async def group_metrics(self, topic: str, group: str) -> GroupMetrics:
        [row] = await self._rows("select * from postbus.group_metrics($1, $2)", topic, group)
        return as_struct(GroupMetrics, row)

    async def remove_group(self, topic: str, group: str, *, force: bool) -> RemovedGroup:
        [row] = await self._act_rows("select * from postbus.remove_group($1, $2, $3)", topic, group, force)
        return as_struct(RemovedGroup, row)

    async def force_complete(
        self, topic: str, older_than: timedelta, group: str | None, *, dry_run: bool
    ) -> dict[str, int]:
        """Move groups on. Returns how many messages each group skips."""
        rows = await self._act_rows(
            "select * from postbus.force_complete($1, $2, $3, $4)", topic, older_than, group, dry_run
        )
        return {row["name"]: row["messages"] for row in rows}

    async def groups_near_timeout(self, share: float) -> list[GroupNearTimeout]:
        return as_structs(GroupNearTimeout, await self._rows("select * from postbus.groups_near_timeout($1)", share))

    async def stuck_messages(self, older_than: timedelta) -> list[StuckMessages]:
        return as_structs(StuckMessages, await self._rows("select * from postbus.stuck_messages($1)", older_than))

    async def zero_subscription_messages(self) -> list[UnclaimedMessages]:
        return as_structs(UnclaimedMessages, await self._rows("select * from postbus.zero_subscription_messages()"))

    async def group_findings(self, stuck_after: timedelta, topics: Sequence[str] | None = None) -> list[GroupFinding]:
        return await look_at_groups(self._rows, stuck_after, topics)

    async def health_limits(self, topic: str | None, group: str | None) -> GroupHealthLimits:
        [row] = await self._rows(
            "select * from postbus.health_limits(coalesce($1, ''), coalesce($2, ''))", topic, group
        )
        return as_limits(row)

    async def set_health_limits(self, topic: str | None, group: str | None, limits: Mapping[str, Any]) -> None:
        await self._act("select postbus.set_health_limits($1, $2, $3)", json.dumps(limits), topic, group)

    async def inconsistencies(self) -> list[Inconsistency]:
        return as_structs(Inconsistency, await self._rows("select * from postbus.inconsistencies()"))

    async def rebase(self, *, as_copy: bool) -> int:
        count = int(await self._act("select postbus.rebase($1)", as_copy))
        self.source = await self._run("select postbus.source()::text")
        return count

    # sweeping

    async def sweeping(self) -> SweepSettings:
        [row] = await self._rows("select * from postbus.sweeping()")
        return as_struct(SweepSettings, row)

    async def set_sweeping(self, options: Mapping[str, Any]) -> None:
        await self._act("select postbus.set_sweeping($1)", json.dumps(options))

    async def sweep_health(self) -> SweepHealth:
        [row] = await self._rows("select * from postbus.sweep_health()")
        return as_struct(SweepHealth, row)

    async def sweep_jobs(self) -> list[SweepJob]:
        return as_structs(SweepJob, await self._rows("select * from postbus.sweep_jobs order by job"))


def group_info(row: Mapping[str, Any]) -> GroupInfo:
    """Make a result of a row of postbus.groups."""
    seconds = row["lag_seconds"]
    return as_struct(
        GroupInfo,
        {
            **row,
            "lag_seconds": None if seconds is None else max(float(seconds), 0.0),
            "workers": row["workers"] or [],
            "members": row["members"] or [],
        },
    )
