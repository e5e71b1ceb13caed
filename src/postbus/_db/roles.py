"""The SQL roles of a database, and the statements that repair them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

GRANTS = "grants.sql"
"""The code file that makes the roles and grants them their rights."""

_ROLES = "select role, name, is_there, has_rights from postbus.roles()"
_MAY_CREATE = "select rolsuper or rolcreaterole from pg_roles where rolname = current_user"
_MAY_GRANT = "select pg_has_role(nspowner, 'usage') from pg_namespace where nspname = 'postbus'"
# Before roles carried the name of their database, there was one of each for the whole server.
_FORMER = """
    select old.rolname as name, new.name as successor
      from postbus.roles() as new
      join pg_roles old on old.rolname = 'postbus_' || new.role
     where new.is_there and exists (select from pg_auth_members m where m.roleid = old.oid)
       and not pg_has_role(old.oid, new.name, 'member')
     order by new.role
"""

_OTHERS = """
    select distinct r.rolname as name, split_part(r.rolname, '_', 2) as role
      from pg_namespace n cross join aclexplode(n.nspacl) as given join pg_roles r on r.oid = given.grantee
     where n.nspname = 'postbus' and r.rolname ~ '^postbus_(producer|consumer|observer|operator|admin)(_|$)'
     order by 1
"""


@dataclass(frozen=True)
class Role:
    """A role of a database."""

    role: str
    """producer, consumer, observer, operator or admin."""
    name: str
    is_there: bool
    has_rights: bool


@dataclass(frozen=True)
class Note:
    """A problem with roles that an administrator should know, and the statement that solves it."""

    text: str
    statement: str


class Former(NamedTuple):
    """A role named for another database, or for the whole server."""

    name: str
    role: str


async def read_roles(conn: Any) -> list[Role]:
    return [Role(**dict(row)) for row in await conn.fetch(_ROLES)]


async def are_behind(conn: Any) -> bool:
    """Whether a migration by this user would make roles, or grant some their rights."""
    if not await conn.fetchval(_MAY_GRANT):
        return False
    known = await read_roles(conn)
    if any(role.is_there and not role.has_rights for role in known):
        return True
    return any(not role.is_there for role in known) and bool(await conn.fetchval(_MAY_CREATE))


@dataclass(frozen=True)
class RoleReport:
    """The roles of a database, as a migration reports them."""

    roles: Sequence[Role]
    notes: Sequence[Note]


async def losing_rights(conn: Any) -> list[Former]:
    """Roles named for another database, or for the server, that have rights here: GRANTS revokes these."""
    return [Former(row["name"], row["role"]) for row in await conn.fetch(_OTHERS)]


async def report_roles(conn: Any, lost: Sequence[Former] = ()) -> RoleReport:
    """The roles that there are and that are missing, and how roles that `lost` their rights get them back."""
    known = await read_roles(conn)
    names = {role.role: role.name for role in known}
    notes = [
        Note(f"role {role.name} is missing, and could not be created", f"create role {quoted(role.name)} nologin")
        for role in known
        if not role.is_there
    ]
    notes += [
        Note(
            f"role {one.name} has no rights in this database any more; {names[one.role]} has them. "
            "To give them to its members",
            f"grant {quoted(names[one.role])} to {quoted(one.name)}",
        )
        for one in lost
    ]
    known_statements = {note.statement for note in notes}
    return RoleReport(known, [*notes, *(note for note in await former(conn) if note.statement not in known_statements)])


async def former(conn: Any) -> list[Note]:
    """Roles that earlier versions made for the whole server, whose members have lost their rights here."""
    return [
        Note(
            f"role {row['name']} has members, and no rights in this database; {row['successor']} has them. "
            "To give them to its members",
            f"grant {quoted(row['successor'])} to {quoted(row['name'])}",
        )
        for row in await conn.fetch(_FORMER)
    ]


def quoted(name: str) -> str:
    """The name as statements write it, quoted if need be."""
    is_plain = name.isascii() and name.isidentifier() and name == name.lower()
    return name if is_plain else '"' + name.replace('"', '""') + '"'
