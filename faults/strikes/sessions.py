"""Strikes by other sessions of the database: applications, operators and upgrades."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg

from faults.servers import hogs
from faults.world import World
from postbus._db.migrator import migrate


async def transactions_open(world: World) -> None:
    """Old transactions: with an id, without one, in another database, and prepared."""
    await world.server.ask("create database other")
    here, reading, other = [
        await asyncpg.connect(world.server.socket_dsn(database)) for database in ("postbus", "postbus", "other")
    ]
    for conn, sql in (
        (here, "begin; select pg_current_xact_id()"),
        (reading, "begin isolation level repeatable read; select count(*) from postbus.topic"),
        (other, "begin; create table t ()"),
    ):
        await conn.execute(sql)
    await hogs.prepare(world.server.socket_dsn(), "open", ["create table prepared ()"])
    await asyncio.sleep(6)
    await world.flows(50)
    await hogs.finish_prepared(world.server.socket_dsn(), "open", commit=False)
    for conn in (here, reading, other):
        conn.terminate()


async def deadlocks(world: World) -> None:
    """Transactions of an application that publish, and lock each other out."""
    await world.ask("create table stock as select id, 0 as n from generate_series(1, 2) as id")
    stop = asyncio.get_running_loop().time() + 5

    async def order(first: int, second: int) -> None:
        conn: Any = await asyncpg.connect(world.server.dsn())
        while asyncio.get_running_loop().time() < stop:
            with suppress(asyncpg.DeadlockDetectedError):
                async with conn.transaction():
                    await conn.execute("update stock set n = n + 1 where id = $1", first)
                    await conn.execute("select postbus.publish('elsewhere', '{}'::jsonb, key => $1)", str(first))
                    await conn.execute("update stock set n = n + 1 where id = $1", second)
        await conn.close()

    await asyncio.gather(order(1, 2), order(2, 1))
    await world.ask("delete from postbus.queued where topic_id = postbus.topic_id('elsewhere')")


async def idle_sessions_ended(world: World) -> None:
    """The server ends idle sessions, and an operator those that listen: nothing may come twice."""
    for _ in range(4):
        await asyncio.sleep(1)
        async with world.hurting("idle sessions ended", excuses=False):
            await world.ask(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where query ilike 'listen %'"
            )


async def timeouts(world: World) -> None:
    """Statements and locks get little time, and somebody locks what everybody needs."""
    await world.ask("alter database postbus set statement_timeout = '300ms'")
    await world.ask("alter database postbus set lock_timeout = '100ms'")
    locker: Any = await asyncpg.connect(world.server.socket_dsn())
    await locker.execute("set lock_timeout = 0; set statement_timeout = 0")
    async with world.hurting("timeouts", aftermath=3):
        for pid in await world.server.backends():
            await world.server.terminate_backend(pid) if pid != locker.get_server_pid() else None
        for table in ("queued", "lease", "cursor", "lane", "segment", "topic", "deferred"):
            try:
                async with locker.transaction():
                    await locker.execute(f"lock table postbus.{table} in access exclusive mode")
                    await asyncio.sleep(0.5)
            except asyncpg.DeadlockDetectedError:
                pass  # the server chose to end us and not the one we hurt
            await asyncio.sleep(0.3)
        await world.ask("alter database postbus reset all")
        for pid in await world.server.backends():
            await world.server.terminate_backend(pid)
    locker.terminate()


async def migrated(world: World) -> None:
    """The schema's functions are applied again, as an upgrade does."""
    for _ in range(3):
        conn: Any = await asyncpg.connect(world.server.socket_dsn())
        await conn.execute("update postbus.installed set code_checksum = 'another'")
        await migrate(conn)
        await conn.close()
        await asyncio.sleep(1)


async def vacuumed(world: World) -> None:
    """VACUUM FULL and REINDEX of all tables."""
    conn: Any = await asyncpg.connect(world.server.socket_dsn())
    tables = await conn.fetch(
        "select oid::regclass::text as name from pg_class"
        " where relnamespace = 'postbus'::regnamespace and relkind = 'r'"
    )
    for row in tables:
        with suppress(asyncpg.UndefinedTableError, asyncpg.DeadlockDetectedError):  # dropped meanwhile
            await conn.execute(f"vacuum (full, analyze) {row['name']}")
    with suppress(asyncpg.PostgresError):
        await conn.execute("reindex schema postbus")
    await conn.close()
