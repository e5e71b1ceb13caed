"""Migrating the schema of a database to the version that this Postbus needs.

Numbered migrations make the tables, each applied once. The code files make functions and views, and are applied again
whenever they have changed. All of it happens in one transaction: a migration that fails, or is killed, changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import asyncpg

from postbus._db.actor import SET_ACTOR
from postbus._db.commit import committed
from postbus._db.error_map import MIGRATE
from postbus._db.owners import check_owners, owners_script
from postbus._db.roles import GRANTS, Former, are_behind, losing_rights, read_roles
from postbus._db.search_path import PIN
from postbus._version import VERSION
from postbus.errors import SchemaMissing, SchemaTooNew, SchemaTooOld

_SQL = files("postbus") / "sql"
_NEW_DATABASE = (
    "use a new database; or let consumers handle what is left, then run in this one: "
    "drop schema if exists postbus, postbus_outbox, postbus_topics cascade; and then: postbus migrate"
)
_NEW_FOLDER = "remove the folder {folder}, or choose another one: --data-dir FOLDER, or POSTBUS_DATA_DIR"
_LOCK = "select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('postbus.migrate'))"


@dataclass(frozen=True)
class Migration:
    """One numbered step. If its first line is `-- breaking`, older clients refuse the schema."""

    number: int
    name: str
    sql: str

    @property
    def breaking(self) -> bool:
        return self.sql.startswith("-- breaking")


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations, in order. The first one is the baseline: the schema of 0.1."""
    return read_migrations(_SQL / "migrations")


def read_migrations(folder: Traversable) -> tuple[Migration, ...]:
    """The migrations of a folder, in order."""
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return tuple(
        Migration(int(file.name[:4]), file.name[5:].removesuffix(".sql"), file.read_text("utf-8")) for file in found
    )


@cache
def code() -> tuple[tuple[str, str], ...]:
    """The code files as (name, text), in reading order."""
    listed = (_SQL / "code" / "contents.txt").read_text("utf-8").splitlines()
    names = [line for line in listed if line and not line.startswith("#")]
    return tuple((name, (_SQL / "code").joinpath(name).read_text("utf-8")) for name in names)


@cache
def code_checksum() -> str:
    """A checksum of the code files."""
    return hashlib.sha256("\n".join(text for _, text in code()).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SchemaState:
    """The versions of the schema in a database."""

    migrations: int = 0
    breaking: int = 0
    code_version: str = ""
    code_checksum: str = ""
    baseline: str = ""
    """The name of the first migration. Schemas that were made before 0.1 have no such entry."""

    @property
    def is_current(self) -> bool:
        return self.migrations >= migrations()[-1].number and self.code_checksum == code_checksum()


async def read_state(conn: asyncpg.Connection) -> SchemaState | None:
    """The state of the database's schema, or None if there is no schema postbus."""
    if await conn.fetchval("select to_regprocedure('postbus.schema_state()')") is None:
        return None
    row = await conn.fetchrow("select * from postbus.schema_state()")
    assert row is not None
    return SchemaState(**{field.name: row[field.name] for field in fields(SchemaState) if field.name in row})


async def check(conn: asyncpg.Connection) -> None:
    """Refuse a database whose schema this version of Postbus cannot use, before calling anything in it."""
    async with committed(conn, repeatable=True):
        await check_owners(conn, is_client=True)
        state = await read_state(conn)
    _check_version(state)


def _check_version(state: SchemaState | None) -> None:
    if state is None:
        raise SchemaMissing("the database has no schema postbus", remedy=MIGRATE)
    known = migrations()[-1].number
    _check_baseline(state)
    if state.breaking > known:
        raise SchemaTooNew(
            f"the database was migrated to {state.breaking} by Postbus {state.code_version}; "
            f"this is {VERSION}, which knows up to {known}",
            remedy="upgrade this installation of postbus",
        )
    if state.migrations < known or _is_older(state):
        raise SchemaTooOld(
            f"the database is at migration {state.migrations} with functions of Postbus "
            f"{state.code_version}; this version needs migration {known} and its own functions",
            remedy=MIGRATE,
        )


def _check_baseline(state: SchemaState, folder: Path | None = None) -> None:
    """Refuse a schema that was made before 0.1: no migration leads from there to the baseline.

    folder: where the embedded server keeps the database, if it does.
    """
    if state.baseline:
        return
    raise SchemaTooOld(
        f"the schema postbus of this database was made by a version before 0.1 (its migration {state.migrations}), "
        "which cannot be upgraded",
        remedy=_NEW_DATABASE if folder is None else _NEW_FOLDER.format(folder=folder),
    )


def _is_older(state: SchemaState) -> bool:
    """Whether the functions in the database differ from ours, and are of no newer version."""
    if state.code_checksum == code_checksum():
        return False
    return _as_numbers(state.code_version) <= _as_numbers(VERSION)


def _as_numbers(version_text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version_text.split(".") if part.isdigit())


async def migrate(conn: asyncpg.Connection, actor: str = "") -> list[str]:
    """Bring the schema up to date. Returns the names of the applied steps, in order.

    The audit log shows `actor` beside the database user. Any number of processes may migrate at once: the first does
    the work, and the others wait for it.
    """
    applied, _ = await migrate_reporting(conn, actor)
    return applied


async def migrate_if_needed(conn: asyncpg.Connection, actor: str = "", *, folder: Path | None = None) -> None:
    """The same for a client, which needs no rights to the schema as long as it is up to date.

    folder: where the embedded server keeps the database, if it does.
    """
    async with committed(conn, repeatable=True):
        await check_owners(conn, is_client=True)
        state = await read_state(conn)
        if state is not None:
            _check_baseline(state, folder)
        is_current = state is not None and state.is_current and not await are_behind(conn)
    if not is_current:
        await migrate(conn, actor)


async def migrate_reporting(conn: asyncpg.Connection, actor: str = "") -> tuple[list[str], list[Former]]:
    """Migrate. Returns the applied steps, and the roles that have lost their rights."""
    async with committed(conn, repeatable=True):
        before = await losing_rights(conn)
        applied = await _apply(conn, actor)
        if not applied:
            return [], []
        ours = {role.name for role in await read_roles(conn)}
        return applied, [role for role in before if role.name not in ours]


async def _apply(conn: asyncpg.Connection, actor: str) -> list[str]:
    await conn.execute(_LOCK)
    await check_owners(conn, is_client=False)
    state = await read_state(conn)
    if state is None:
        state = SchemaState()
    else:
        _check_baseline(state)
    if state.breaking > migrations()[-1].number:
        _check_version(state)
    if not state.is_current:
        steps = list(_steps(state))
    elif await are_behind(conn):
        steps = [step for step in code() if step[0] == GRANTS]
    else:
        return []
    await conn.execute(SET_ACTOR, actor)
    for _, sql in steps:
        await conn.execute(sql)
    await check_owners(conn, is_client=False)  # another session may have made objects meanwhile
    return [name for name, _ in steps]


def script() -> str:
    """The whole schema as one SQL script, for administrators who run it themselves."""
    steps = "\n\n".join(f"-- {name}\n{sql.strip()}" for name, sql in _steps(SchemaState()))
    owners = owners_script()
    return f"begin;\n{PIN};\n{_LOCK};\n{owners}\n\n{steps}\n\n{owners}\n\ncommit;\n"


def _steps(state: SchemaState) -> Iterator[tuple[str, str]]:
    if not state.migrations:
        yield "schema", f"create schema if not exists postbus;\n{owners_script()}"
    for step in migrations():
        if step.number > state.migrations:
            # In one text: a migration that only reserves its number is empty, and asyncpg cannot execute empty text.
            yield f"migration {step.number:04d}_{step.name}", f"{step.sql.rstrip()}\n{_noted(step)}\n"
    yield from code()
    yield "note of the functions", _installed(state)


def _noted(step: Migration) -> str:
    return (
        "insert into postbus.migration (number, name, breaking) "
        f"values ({step.number}, '{step.name}', {str(step.breaking).lower()});"
    )


def _installed(before: SchemaState) -> str:
    return (
        "insert into postbus.installed (code_version, code_checksum) "
        f"values ('{VERSION}', '{code_checksum()}') on conflict (only_row) do update "
        "set code_version = excluded.code_version, code_checksum = excluded.code_checksum, "
        "installed_at = clock_timestamp();\n"
        "do $$ begin perform postbus.note_action('schema.migrate', "
        f"before => {_in_audit(before.migrations, before.code_version)}, "
        f"after => {_in_audit(migrations()[-1].number, VERSION)}); end $$;"
    )


def _in_audit(migration: int, version: str) -> str:
    return f"jsonb_build_object('migration', {migration}, 'version', '{version}')" if migration else "null"
