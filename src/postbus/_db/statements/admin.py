"""Statements of operators: for topics, dead letters, groups and sweeping."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from postbus._db.database import Database
from postbus.errors import PostbusError
from postbus.health import GroupFinding, as_limits, look_at_groups
from postbus.message import Message

_OF_OPERATORS = {"PAUSED": "pause_group", "ACTIVE": "resume_group"}
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
    ) -> dict[str, Any]:
        rows = await self._act_rows(
            "select * from postbus.move_topic($1, $2, $3, $4, $5)",
            name,
            groups,
            json.dumps(options),
            hand_over,
            dry_run,
        )
        return rows[0]

    async def continue_move(self, name: str) -> dict[str, Any] | None:
        """Continue the migration of a topic. None while another session does, or if there is none."""
        rows = await self._rows("select * from postbus.continue_moves($1)", name)
        return rows[0] if rows else None

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
    ) -> list[dict[str, Any]]:
        rows = await self._rows(
            "select * from postbus.topics where ($1::text is null or name = $1) "
            "and ($2::text is null or namespace = $2) and ($3::text is null or task = $3) order by name",
            name,
            namespace,
            task,
        )
        return [{column: value for column, value in row.items() if column != "topic_id"} for row in rows]

    async def semantics(self, name: str | None = None) -> dict[str, str]:
        """The semantics of a topic, or of all. Unlike `topics` it counts no messages, which takes long if many wait."""
        rows = await self._rows("select name, semantics from postbus.topics where $1::text is null or name = $1", name)
        return {row["name"]: row["semantics"] for row in rows}

    async def workers(self) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.workers order by name")

    async def sinks_away(self) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.sinks_away order by topic, group_name, since")

    async def messages(self, topic: str, *, after_id: int, limit: int, newest: bool) -> list[dict[str, Any]]:
        chosen = "select * from postbus.messages where topic_id = postbus.topic_id($1) and id > $2 order by id"
        if newest:
            chosen += " desc"
        return await self._rows(f"select * from ({chosen} limit $3) as chosen order by id", topic, after_id, limit)

    # dead letters

    async def dead_letters(
        self,
        topic: str | None,
        group: str | None = None,
        *,
        groups: Sequence[str] | None = None,
        limit: int,
        after_id: int = 0,
    ) -> list[dict[str, Any]]:
        # With ties: several groups may have given the same message up, and the next page begins after its id.
        return await self._rows(
            "select * from (select * from postbus.dead_letters "
            "where ($1::text is null or topic_id = postbus.topic_id($1)) and ($4::text is null or group_name = $4) "
            "and ($5::text[] is null or group_name is null or group_name like any ($5)) "
            "and id > $2 order by id fetch first $3 rows with ties) as page "
            "order by id, topic, group_name",
            topic,
            after_id,
            limit,
            group,
            like(groups),
        )

    async def dead_letters_by_id(self, message_id: int, groups: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The dead letters of a message: several if several groups gave it up."""
        return await self._rows(
            "select * from postbus.dead_letters where id = $1 "
            "and ($2::text[] is null or group_name is null or group_name like any ($2)) order by topic, group_name",
            message_id,
            like(groups),
        )

    async def redrive(self, topic: str, filters: Mapping[str, Any]) -> int:
        named = ", ".join(f"{name} => ${number}" for number, name in enumerate(filters, 2))
        return int(
            await self._act(f"select postbus.redrive($1{', ' if named else ''}{named})", topic, *filters.values())
        )

    async def purge_dead_letters(
        self, topic: str, *, ids: Sequence[int] | None, died_before: datetime | None, dry_run: bool, group: str | None
    ) -> int:
        sql = "select postbus.purge_dead_letters($1, $2, $3, $4, $5)"
        return int(await self._act(sql, topic, ids, died_before, dry_run, group))

    # groups and the log

    async def groups(self, topic: str | None, group: str | None) -> list[dict[str, Any]]:
        return await self._rows(
            "select * from postbus.groups "
            "where ($1::text is null or topic = $1) and ($2::text is null or group_name = $2) "
            "order by topic, group_name, subscription_id",
            topic,
            group,
        )

    async def members(self, topic: str, group: str) -> list[dict[str, Any]]:
        return await self._rows(
            "select * from postbus.members where topic = $1 and group_name = $2 order by name", topic, group
        )

    async def set_group_state(self, topic: str, group: str, state: str) -> None:
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

    async def catch_ups(self, topic: str | None, group: str | None) -> list[dict[str, Any]]:
        return await self._rows(
            "select * from postbus.catch_ups where ($1::text is null or topic = $1) "
            "and ($2::text is null or group_name = $2) order by topic, group_name, started_at",
            topic,
            group,
        )

    async def set_catch_up(self, topic: str, group: str, *, is_wanted: bool) -> None:
        if is_wanted:
            await self._act("select postbus.resume_catch_up($1, $2)", topic, group)
        else:
            await self._act("select postbus.set_catch_up($1, $2, false)", topic, group)

    async def resurrect_group(self, topic: str, group: str, *, catch_up: bool) -> list[dict[str, Any]]:
        if catch_up:
            return await self._act_rows("select missed, skipped from postbus.resurrect_group($1, $2)", topic, group)
        return await self._act_rows(
            "select r.missed, r.skipped from postbus.groups g "
            "cross join lateral postbus.resurrect(array[g.subscription_id], false) as r "
            "where g.topic = $1 and g.group_name = $2 and g.state = 'DEAD'",
            topic,
            group,
        )

    async def deliveries(self, topic: str, message_id: int) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.deliveries_of($1, $2)", topic, message_id)

    async def message_state(self, topic: str, message_id: int) -> dict[str, Any]:
        [row] = await self._rows("select * from postbus.message_state($1, $2)", topic, message_id)
        return row

    async def group_metrics(self, topic: str, group: str) -> dict[str, Any]:
        [row] = await self._rows("select * from postbus.group_metrics($1, $2)", topic, group)
        return row

    async def remove_group(self, topic: str, group: str, *, force: bool) -> dict[str, Any]:
        [row] = await self._act_rows("select * from postbus.remove_group($1, $2, $3)", topic, group, force)
        return row

    async def force_complete(
        self, topic: str, older_than: timedelta, group: str | None, *, dry_run: bool
    ) -> list[dict[str, Any]]:
        return await self._act_rows(
            "select * from postbus.force_complete($1, $2, $3, $4)", topic, older_than, group, dry_run
        )

    async def groups_near_timeout(self, share: float) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.groups_near_timeout($1)", share)

    async def stuck_messages(self, older_than: timedelta) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.stuck_messages($1)", older_than)

    async def zero_subscription_messages(self) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.zero_subscription_messages()")

    async def group_findings(self, stuck_after: timedelta, topics: Sequence[str] | None = None) -> list[GroupFinding]:
        return await look_at_groups(self._rows, stuck_after, topics)

    async def health_limits(self, topic: str | None, group: str | None) -> dict[str, Any]:
        [row] = await self._rows(
            "select * from postbus.health_limits(coalesce($1, ''), coalesce($2, ''))", topic, group
        )
        return as_limits(row)

    async def set_health_limits(self, topic: str | None, group: str | None, limits: Mapping[str, Any]) -> None:
        await self._act("select postbus.set_health_limits($1, $2, $3)", json.dumps(limits), topic, group)

    async def inconsistencies(self) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.inconsistencies()")

    async def log_message(self, topic: str, message_id: int) -> dict[str, Any]:
        [row] = await self._rows("select * from postbus.log_message($1, $2)", topic, message_id)
        return row

    async def copies_of(self, topic: str, message_id: int) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.copies_of($1, $2)", topic, message_id)

    async def queue_message(self, topic: str, message_id: int) -> list[dict[str, Any]]:
        return await self._rows(
            "select * from postbus.messages where topic_id = postbus.topic_id($1) and id = $2", topic, message_id
        )

    async def rebase(self, *, as_copy: bool) -> int:
        count = int(await self._act("select postbus.rebase($1)", as_copy))
        self.source = await self._run("select postbus.source()::text")
        return count

    async def log(
        self, topic: str, *, after_id: int, after: tuple[int, int] | None, limit: int, newest: bool
    ) -> list[dict[str, Any]]:
        position, index = after or (0, -1)
        order = "sequence desc, index desc" if newest else "sequence, index" if after else "id"
        return await self._rows(
            "select * from (select * from postbus.log where topic = $1 and id > $2 "
            f"and sequence >= $3 and (sequence > $3 or index > $4) order by {order} limit $5) as chosen "
            f"order by {'sequence, index' if newest or after else 'id'}",
            topic,
            after_id,
            position,
            index,
            limit,
        )

    async def retained(
        self, topic: str, filters: Mapping[str, Any], after: tuple[int, int], limit: int
    ) -> list[tuple[tuple[int, int], Message]]:
        """Retained messages, each with its sequence and index."""
        given = {**filters, "after_sequence": after[0], "after_index": after[1], "max_count": limit}
        named = ", ".join(f"{name} => ${number}" for number, name in enumerate(given, 2))
        rows = await self._rows(f"select * from postbus.retained($1, {named})", topic, *given.values())
        return [((row["at_sequence"], row["at_index"]), _message(topic, row, self.source)) for row in rows]

    # sweeping

    async def sweeping(self) -> dict[str, Any]:
        [row] = await self._rows("select * from postbus.sweeping()")
        return row

    async def set_sweeping(self, options: Mapping[str, Any]) -> None:
        await self._act("select postbus.set_sweeping($1)", json.dumps(options))

    async def sweep_health(self) -> dict[str, Any]:
        [row] = await self._rows("select * from postbus.sweep_health()")
        return row

    async def sweep_jobs(self) -> list[dict[str, Any]]:
        return await self._rows("select * from postbus.sweep_jobs order by job")


def like(patterns: Sequence[str] | None) -> list[str] | None:
    """Convert patterns in which * stands for any text to those of LIKE; None if they match everything."""
    if patterns is None or "*" in patterns:
        return None
    return [re.sub(r"([\\%_])", r"\\\1", one).replace("*", "%") for one in patterns]


def _message(topic: str, row: Mapping[str, Any], source: str) -> Message:
    return Message(
        id=row["id"],
        topic=topic,
        payload=row["payload"],
        content_type=row["content_type"],
        key=row["key"],
        headers=json.loads(row["headers"] or "{}"),
        correlation_id=row["correlation_id"],
        priority=4,
        attempt=1,
        published_at=row["published_at"],
        source=source,
    )
