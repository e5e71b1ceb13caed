"""Statements that read the audit log. Only the functions that carry out actions write it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from postbus._db.database import Database
from postbus._db.patterns import like
from postbus._db.rows import as_struct
from postbus._db.statements.pages import MOST_BYTES, Page
from postbus.results.access import AuditEntry

_MOST_ON_PAGE = 1000

# An entry may have 48 KiB, so the bytes of a page are counted before its entries are read.
_ENTRIES = """
    with chosen as (
        select * from postbus.audit
         where ($1::timestamptz is null or at >= $1) and ($2::timestamptz is null or at < $2)
           and ($3::text is null or position(lower($3) in lower(concat_ws(E'\\n', login, role, actor))) > 0)
           and ($4::text is null or action = $4 or starts_with(action, $4 || '.'))
           and ($5::text is null or topic = $5) and ($6::text is null or group_name = $6)
           and ($7::text[] is null or topic like any ($7)) and ($8::text[] is null or group_name like any ($8))
           and id > $9 and ($10::bigint is null or id < $10)
         order by id {direction} limit $11 + 1
    ), sized as (
        select *, row_number() over in_order as number,
               sum(octet_length(row_to_json(chosen)::text)) over in_order as bytes
          from chosen window in_order as (order by id {direction})
    )
    select *, (select count(*) from chosen) as found from sized
     where number <= $11 and (bytes <= $12 or number = 1) order by id {direction}
"""


class AuditFilters(NamedTuple):
    """The entries to read. An actor is a part of a login, role or actor; in patterns, * stands for any text."""

    since: datetime | None = None
    until: datetime | None = None
    actor: str | None = None
    action: str | None = None
    topic: str | None = None
    group: str | None = None
    topics: Sequence[str] | None = None
    """Patterns of which the topic matches one."""
    groups: Sequence[str] | None = None
    """Patterns of which the group matches one."""


class AuditStore(Database):
    """Runs statements that read the audit log."""

    async def audit(
        self, filters: AuditFilters, *, after_id: int, before_id: int | None, limit: int, newest: bool
    ) -> list[AuditEntry]:
        """Entries of the audit log, the newest or the oldest first, read page by page."""
        found: list[AuditEntry] = []
        while len(found) < limit:
            most = min(limit - len(found), _MOST_ON_PAGE)
            page = await self.audit_page(filters, after_id=after_id, before_id=before_id, limit=most, newest=newest)
            found += page.found
            if not page.more:
                break
            after_id, before_id = (after_id, found[-1].id) if newest else (found[-1].id, before_id)
        return found

    async def audit_page(
        self,
        filters: AuditFilters,
        *,
        after_id: int = 0,
        before_id: int | None = None,
        limit: int,
        max_bytes: int = MOST_BYTES,
        newest: bool = True,
    ) -> Page[AuditEntry]:
        """The first entries of the audit log, from the newest or the oldest on, with up to so many bytes."""
        *plain, topics, groups = filters
        rows = await self._rows(
            _ENTRIES.format(direction="desc" if newest else "asc"),
            *plain, _likes(topics), _likes(groups), after_id, before_id, limit, max_bytes,
        )  # fmt: skip
        return Page([_entry(row) for row in rows], bool(rows) and rows[0]["found"] > len(rows))


def _entry(row: dict[str, Any]) -> AuditEntry:
    address = None if row["address"] is None else str(row["address"]).partition("/")[0]
    return as_struct(AuditEntry, row | {"address": address})


def _likes(patterns: Sequence[str] | None) -> list[str] | None:
    """Patterns for LIKE. Unlike `likes`, all of them: an entry without a topic fits none, not even *."""
    return None if patterns is None else [like(one) for one in patterns]
