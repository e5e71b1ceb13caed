"""The schema: from scratch, from migrations, and what clients accept."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postbus import Bus, SchemaMissing, SchemaTooNew, SchemaTooOld, __version__
from postbus._db.migrator import check, code, code_checksum, migrate, migrations, read_migrations, read_state, script

# All that makes a schema.
_EVERYTHING = """
select 'column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' '
       || coalesce(pg_get_expr(d.adbin, d.adrelid), '') || ' '
       || a.attnotnull || ' ' || a.attstorage::text || ' ' || a.attnum
  from pg_attribute a join pg_class c on c.oid = a.attrelid and c.relnamespace = 'postbus'::regnamespace
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum where a.attnum > 0
union all select 'index ' || indexdef from pg_indexes where schemaname = 'postbus'
union all select 'constraint ' || conrelid::regclass || ' ' || pg_get_constraintdef(oid)
  from pg_constraint where connamespace = 'postbus'::regnamespace
union all select 'function ' || pg_get_functiondef(oid) || ' '
       || coalesce((select string_agg(one::text, ',' order by one::text) from unnest(proacl) as one), '')
  from pg_proc where pronamespace = 'postbus'::regnamespace
union all select 'view ' || viewname || ' ' || definition
  from pg_views where schemaname in ('postbus', 'postbus_outbox')
union all select 'options ' || relname || ' ' || coalesce(reloptions::text, '') || ' '
       || coalesce((select string_agg(one::text, ',' order by one::text) from unnest(relacl) as one), '')
  from pg_class where relnamespace = 'postbus'::regnamespace
order by 1
"""


async def everything(conn: Any) -> list[str]:
    """The schema as text, in which each role has its name without the database's."""
    await migrate(conn)  # a copy has no roles of its own yet
    database = await conn.fetchval("select current_database()")
    return sorted(row[0].replace(f"_{database}", "") for row in await conn.fetch(_EVERYTHING))


async def test_from_scratch_equals_step_by_step(empty_dsn: str, dsn: str, client_program: Callable[[str], str]) -> None:
    """The printed script, run by psql, gives the same schema as `migrate`."""
    done = subprocess.run(
        [client_program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", empty_dsn],
        input=script(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    scratch: Any = await asyncpg.connect(empty_dsn)
    migrated: Any = await asyncpg.connect(dsn)
    try:
        assert await everything(scratch) == await everything(migrated)
        await check(scratch)
    finally:
        await scratch.close()
        await migrated.close()


async def test_each_migration_alone_then_all_functions_equals_all_at_once(empty_dsn: str, dsn: str) -> None:
    """A database that took every migration in a transaction of its own ends the same."""
    conn: Any = await asyncpg.connect(empty_dsn)
    reference: Any = await asyncpg.connect(dsn)
    try:
        await conn.execute("create schema postbus")
        for step in migrations():
            async with conn.transaction():
                await conn.execute(step.sql)
                await conn.execute(
                    "insert into postbus.migration (number, name, breaking) values ($1, $2, $3)",
                    step.number, step.name, step.breaking,
                )  # fmt: skip
        for _, sql in code():
            await conn.execute(sql)
        assert await everything(conn) == await everything(reference)
    finally:
        await conn.close()
        await reference.close()


async def test_migrating_twice_changes_nothing(conn: Any) -> None:
    """A database that is up to date is left alone."""
    await migrate(conn)  # a copy has no roles of its own yet
    before = await everything(conn)
    assert await migrate(conn) == []
    assert await everything(conn) == before


async def test_two_migrators_at_once_apply_everything_once(empty_dsn: str) -> None:
    """Concurrent migrators: one does the work, the others wait and find nothing to do."""
    connections: list[Any] = [await asyncpg.connect(empty_dsn) for _ in range(4)]
    try:
        applied = await asyncio.gather(*(migrate(conn) for conn in connections))
        assert sorted(len(one) > 0 for one in applied) == [False, False, False, True]
        assert await connections[0].fetchval("select count(*) from postbus.migration") == len(migrations())
    finally:
        for conn in connections:
            await conn.close()


async def test_a_migration_that_fails_changes_nothing(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a migrate happens, or nothing of it."""
    monkeypatch.setattr("postbus._db.migrator.code", lambda: [*code(), ("broken.sql", "select 1/0")])
    conn: Any = await asyncpg.connect(empty_dsn)
    try:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await migrate(conn)
        assert await conn.fetchval("select to_regnamespace('postbus')") is None
    finally:
        await conn.close()


async def test_changed_functions_are_applied_again(conn: Any) -> None:
    """Functions of another state are replaced, without any migration."""
    await conn.execute("update postbus.installed set code_checksum = 'other', code_version = '0.0.1'")
    await conn.execute("create or replace function postbus.backoff(topic postbus.topic, attempts integer) "
                       "returns interval language sql as $$ select interval '0' $$")  # fmt: skip
    with pytest.raises(SchemaTooOld):
        await check(conn)

    assert "queue/internal/backoff.sql" in await migrate(conn)

    await check(conn)
    state = await read_state(conn)
    assert state is not None
    assert (state.code_checksum, state.code_version) == (code_checksum(), __version__)


async def test_a_database_without_the_schema_is_refused(empty_dsn: str) -> None:
    """The client names the command that helps."""
    with pytest.raises(SchemaMissing, match="postbus migrate"):
        async with Bus.open(empty_dsn):
            pass


@pytest.fixture
def second_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Adds a migration that this version does not have."""

    def add(sql: str) -> None:
        baseline = migrations()[0]
        (tmp_path / f"0001_{baseline.name}.sql").write_text(baseline.sql)
        (tmp_path / "0002_colours.sql").write_text(sql)
        added = read_migrations(tmp_path)
        monkeypatch.setattr("postbus._db.migrator.migrations", lambda: added)

    return add


_COLOURS = "create table postbus.colour (name text primary key);"


async def test_a_database_that_lacks_a_migration_is_refused_until_it_is_migrated(
    conn: Any, dsn: str, second_migration: Callable[[str], None]
) -> None:
    """The client names the command that applies it, and `migrate` applies that migration alone."""
    await migrate(conn)
    second_migration(_COLOURS)
    with pytest.raises(SchemaTooOld, match="postbus migrate"):
        async with Bus.open(dsn):
            pass

    applied = await migrate(conn)

    assert [name for name in applied if name.startswith("migration ")] == ["migration 0002_colours"]
    assert await conn.fetchval("select count(*) from postbus.colour") == 0
    await check(conn)


async def test_a_new_database_gets_all_migrations(empty_dsn: str, second_migration: Callable[[str], None]) -> None:
    """The baseline first, then what came later."""
    second_migration(_COLOURS)
    conn: Any = await asyncpg.connect(empty_dsn)
    try:
        applied = await migrate(conn)
        assert [name for name in applied if name.startswith("migration ")] == [
            "migration 0001_schema",
            "migration 0002_colours",
        ]
        await check(conn)
    finally:
        await conn.close()


@pytest.mark.parametrize(("first_line", "is_refused"), [("-- breaking\n", True), ("", False)])
async def test_a_breaking_migration_keeps_older_clients_out(
    conn: Any,
    second_migration: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    first_line: str,
    is_refused: bool,
) -> None:
    """Clients of this version serve a database with a later migration, unless that one is marked as breaking."""
    second_migration(first_line + _COLOURS)
    await migrate(conn)
    monkeypatch.undo()
    await conn.execute("update postbus.installed set code_version = '99.0.0'")
    if is_refused:
        with pytest.raises(SchemaTooNew, match="migrated to 2"):
            await check(conn)
    else:
        await check(conn)


async def test_a_breaking_newer_database_is_refused(conn: Any, dsn: str) -> None:
    """A newer database that says it breaks older clients is refused, also by migrate, which changes nothing."""
    await conn.execute("insert into postbus.migration (number, name, breaking) values (9999, 'future', true)")
    with pytest.raises(SchemaTooNew, match="upgrade"):
        async with Bus.open(dsn):
            pass
    with pytest.raises(SchemaTooNew):
        await migrate(conn)


async def test_a_newer_database_that_does_not_break_is_accepted(conn: Any, dsn: str) -> None:
    """An older client goes on with a database that was migrated by a newer, compatible version."""
    await conn.execute("insert into postbus.migration (number, name, breaking) values (9999, 'future', false)")
    await conn.execute("update postbus.installed set code_checksum = 'newer', code_version = '99.0.0'")
    async with Bus.open(dsn) as bus:
        assert await bus.admin.topics() == []


async def test_an_open_bus_may_migrate(empty_dsn: str) -> None:
    """`migrate=True` brings a database up to date when the bus connects."""
    async with Bus.open(empty_dsn, migrate=True) as bus:
        assert await bus.send("t", {"a": 1}) == 1


def test_migrations_are_numbered_without_gaps() -> None:
    """Numbers follow one another, and names say what they bring."""
    assert [step.number for step in migrations()] == list(range(1, len(migrations()) + 1))
    assert all(re.fullmatch(r"[a-z0-9_]+", step.name) for step in migrations())
