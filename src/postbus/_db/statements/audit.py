"""Statements that read the audit log. Only the functions that carry out actions write it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from postbus._db.database import Database
from postbus._db.patterns import like
from postbus._db.rows import as_struct
from postbus.results.access import AuditEntry

_ENTRIES = """
    select * from postbus.audit
     where ($1::timestamptz is null or at >= $1) and ($2::timestamptz is null or at < $2)
       and ($3::text is null or position(lower($3) in lower(concat_ws(E'\\n', login, role, actor))) > 0)
       and ($4::text is null or action = $4 or starts_with(action, $4 || '.'))
       and ($5::text is null or topic = $5) and ($6::text is null or group_name = $6)
       and ($7::text[] is null or topic like any ($7)) and ($8::text[] is null or group_name like any ($8))
       and id > $9 and ($10::bigint is null or id < $10)
     order by id {direction} limit $11
"""


class AuditStore(Database):
    """Runs statements that read the audit log."""

    async def audit(
        self,
        *,
        since: datetime | None,
        until: datetime | None,
        actor: str | None,
        action: str | None,
        topic: str | None,
        group: str | None,
        topics: Sequence[str] | None,
        groups: Sequence[str] | None,
        after_id: int,
        before_id: int | None,
        limit: int,
        newest: bool,
    ) -> list[AuditEntry]:
        """Entries of the audit log, the newest or the oldest first, that match one of the patterns in each list."""
        rows = await self._rows(
            _ENTRIES.format(direction="desc" if newest else "asc"),
            since, until, actor, action, topic, group, _likes(topics), _likes(groups), after_id, before_id, limit,
        )  # fmt: skip
        return [_entry(row) for row in rows]


def _entry(row: dict[str, Any]) -> AuditEntry:
    address = None if row["address"] is None else str(row["address"]).partition("/")[0]
    return as_struct(AuditEntry, row | {"address": address})


def _likes(patterns: Sequence[str] | None) -> list[str] | None:
    """Patterns for LIKE. Unlike `likes`, all of them: an entry without a topic fits none, not even *."""
    return None if patterns is None else [like(one) for one in patterns]
