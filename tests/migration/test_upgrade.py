"""Databases of earlier versions: what `postbus migrate --print` gave then, brought up to date or refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from migration.test_migrate import everything
from postbus import Bus, SchemaTooOld, Start
from postbus._db.migrator import check, migrate, migrate_if_needed
from support.grouping import collect, has
from support.running import running

_HERE = Path(__file__).parent
RELEASED = sorted((_HERE / "released").glob("*.sql.gz"))
BEFORE_0_1 = sorted((_HERE / "before_0_1").glob("*.sql.gz"))


async def installed(dsn: str, file: Path) -> Any:
    """A connection to a database that has the schema of that time."""
    conn: Any = await asyncpg.connect(dsn)
    await conn.execute(gzip.decompress(file.read_bytes()).decode())
    return conn


@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.name)
async def test_an_upgrade_ends_with_the_schema_of_a_new_database(empty_dsn: str, dsn: str, released: Path) -> None:
    """Nothing is left of functions, views or columns that are no more.

    Until 0.1 is released, renew its file: postbus migrate --print | gzip -9n > tests/migration/released/0001.sql.gz
    """
    old: Any = await installed(empty_dsn, released)
    new: Any = await asyncpg.connect(dsn)
    try:
        await migrate(old)
        assert await everything(old) == await everything(new)
    finally:
        await old.close()
        await new.close()


@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.name)
async def test_a_queue_survives_an_upgrade(empty_dsn: str, released: Path) -> None:
    """From each release: waiting and delayed messages are handled."""
    conn = await installed(empty_dsn, released)
    await conn.execute("select postbus.publish('q', '1'::jsonb), postbus.publish('q', '2'::jsonb, delay => '1 ms')")
    await migrate(conn)
    await conn.close()
    got: list[int] = []
    async with Bus.open(empty_dsn) as bus:

        @bus.subscribe("q")
        async def handle(n: int) -> None:
            got.append(n)

        async with running(bus):
            await has(got, 2)
    assert sorted(got) == [1, 2]


@pytest.mark.parametrize("released", RELEASED, ids=lambda path: path.name)
async def test_a_group_survives_an_upgrade(empty_dsn: str, released: Path) -> None:
    """From each release: a group receives what was published before the upgrade and after it, once."""
    conn = await installed(empty_dsn, released)
    await conn.execute("select postbus.create_topic('t', '{\"semantics\": \"PUB_SUB\"}')")
    await conn.execute("select postbus.subscribe('t', 'g', 'FROM_BEGINNING')")
    await conn.execute("select postbus.publish('t', '1'::jsonb)")
    await migrate(conn)
    await conn.close()
    async with Bus.open(empty_dsn) as bus:
        got = collect(bus, "g", start=Start.BEGINNING)
        async with running(bus):
            await bus.send("t", 2)
            await has(got, 2)
    assert sorted(got) == [1, 2]


@pytest.mark.parametrize("old", BEFORE_0_1, ids=lambda path: path.name)
async def test_a_schema_from_before_the_baseline_is_refused(empty_dsn: str, old: Path) -> None:
    """Clients and migrations refuse it and change nothing. After the remedy a new schema can be installed."""
    conn: Any = await installed(empty_dsn, old)
    try:
        await conn.execute("select postbus.publish('q', '1'::jsonb)")
        for refuse in (check, migrate, migrate_if_needed):
            with pytest.raises(SchemaTooOld, match="before 0.1") as refused:
                await refuse(conn)
        assert await conn.fetchval("select count(*) from postbus.queued") == 1
        assert refused.value.remedy is not None
        [drop] = [part for part in refused.value.remedy.split("; ") if "drop schema" in part]
        await conn.execute(drop[drop.index("drop schema") :])
    finally:
        await conn.close()
    async with Bus.open(empty_dsn, migrate=True) as bus:
        assert await bus.send("q", 1) == 1


async def test_an_old_schema_of_the_embedded_server_names_its_folder(empty_dsn: str, tmp_path: Path) -> None:
    """The remedy is to remove the folder, or to choose another one. Nothing is removed."""
    conn: Any = await installed(empty_dsn, BEFORE_0_1[-1])
    try:
        with pytest.raises(SchemaTooOld) as refused:
            await migrate_if_needed(conn, folder=tmp_path)
        assert f"remove the folder {tmp_path}" in str(refused.value.remedy)
        assert tmp_path.exists()
    finally:
        await conn.close()
