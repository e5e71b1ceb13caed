"""A table of another outbox: its columns, and what is to be carried over from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import asyncpg

from postbus._db.commit import committed
from postbus.errors import InvalidInput

Layout = Literal["fan-out", "simple"]
FAN_OUT: Layout = "fan-out"
SIMPLE: Layout = "simple"
LAYOUTS = (FAN_OUT, SIMPLE)

NOT_NEEDED, NEEDED, TRIED = "0", "1", "r"
"""The state of a message for a group. TRIED: it has attempts, which only the group's retries can keep."""


class PendingMessage(NamedTuple):
    """A message of the old table."""

    id: str
    needs: str
    """The state of the message for each group of the topic."""
    is_marked: bool
    """An import has carried it over."""


@dataclass(frozen=True)
class SourceGroup:
    """A group that goes on."""

    name: str
    state: str
    is_marked: bool
    """An import has carried it over. It has not received anything that came later."""


@dataclass
class SourceTopic:
    """The messages to be carried over to one topic."""

    name: str
    semantics: str
    options: dict[str, Any] = field(default_factory=dict)
    groups: list[SourceGroup] = field(default_factory=list)
    items: list[PendingMessage] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """To be marked only: see import_seen."""
    notes: list[str] = field(default_factory=list)


class OutboxTable(NamedTuple):
    """A table, as the server knows it."""

    name: str
    """Qualified and quoted."""
    columns: Mapping[str, str]
    """Their types by their names."""

    def column(self, alias: str, *names: str, default: str = "null") -> str:
        """The first of these columns that is there, as an expression."""
        return next((f'{alias}."{name}"' for name in names if name in self.columns), default)


# Some versions raise these for what is no name of a table.
_NOT_A_NAME = (asyncpg.exceptions.InvalidNameError, asyncpg.exceptions.FeatureNotSupportedError)
# Names are those that the user's own search path finds.
_USERS_PATH = "set local search_path to default"
_FIND = "select pg_catalog.to_regclass($1)::oid"
# Reading a view, or a table with policies, runs functions that its owner has chosen. Superusers may do anything: of
# them only what somebody has granted tells whom they trust.
_COLUMNS = """
select format('%I.%I', n.nspname, c.relname) as name, a.attname, format_type(a.atttypid, null) as type,
       owner.rolname as owner,
       (c.relkind in ('v', 'f') or c.relrowsecurity)
       and not case when reader.rolsuper
                    then owner.rolsuper or exists (select from pg_auth_members m
                                                    where m.member = reader.oid and m.roleid = owner.oid)
                    else pg_has_role(owner.oid, 'usage') end as is_strange
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  join pg_roles owner on owner.oid = c.relowner
  join pg_roles reader on reader.rolname = current_user
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 where c.oid = $1 and c.relkind in ('r', 'p', 'v', 'm', 'f')
"""


async def find_table(conn: Any, name: str) -> OutboxTable | None:
    """A table or view by its name, which may be qualified and quoted. Refuses one that would run a stranger's code."""
    try:
        async with committed(conn, repeatable=True):
            await conn.execute(_USERS_PATH)
            found = await conn.fetchval(_FIND, name)
    except _NOT_A_NAME:
        return None
    rows = await conn.fetch(_COLUMNS, found)
    if rows and rows[0]["is_strange"]:
        raise InvalidInput(
            f"reading {rows[0]['name']} may run code of {rows[0]['owner']}, whose rights you do not have",
            remedy=f"import as {rows[0]['owner']}, or copy it into a table of your own",
        )
    return OutboxTable(rows[0]["name"], {row["attname"]: row["type"] for row in rows}) if rows else None


class Outbox(ABC):
    """An outbox table of a known layout."""

    layout: Layout
    needed: tuple[tuple[str, ...], ...]
    """The columns that it must have; any one of those that stand together."""

    def __init__(self, table: OutboxTable) -> None:
        self.table = table

    @property
    def source(self) -> str:
        """The name under which marks are kept."""
        return self.table.name

    @classmethod
    def missing(cls, table: OutboxTable) -> list[str]:
        return [" or ".join(names) for names in cls.needed if not table.columns.keys() & set(names)]

    @abstractmethod
    async def topics(self, conn: Any, only: Collection[str]) -> list[SourceTopic]:
        """Find the messages to be carried over, topic by topic; of all topics unless some are named."""

    @abstractmethod
    def rows_sql(self, topic: SourceTopic) -> str:
        """Reads the messages with the ids $1, in that order, for the group $2, or for none."""

    @property
    def content_type(self) -> str:
        name = self._payload_column
        if self.table.columns[name] in ("json", "jsonb") or name == "payload_json":
            return "application/json"
        return "application/octet-stream" if self.table.columns[name] == "bytea" else "text/plain"

    @property
    def _payload_column(self) -> str:
        return next(name for name in ("payload_json", "payload") if name in self.table.columns)

    @property
    def _payload(self) -> str:
        name = self._payload_column
        return f'm."{name}"' if self.table.columns[name] == "bytea" else f"convert_to(m.\"{name}\"::text, 'UTF8')"

    @property
    def _id(self) -> str:
        return self.table.column("m", "id", "event_id")

    @property
    def _wanted(self) -> str:
        kind = self.table.columns["id" if "id" in self.table.columns else "event_id"]
        wanted = f"unnest($1::text[]::{kind}[]) with ordinality as wanted (id, n)"
        return f"{wanted} join {self.table.name} m on {self._id} = wanted.id"

    def _mark(self, source: str) -> str:
        return f"left join postbus.imported mark on mark.source = {source} and mark.source_id = {self._id}::text"
