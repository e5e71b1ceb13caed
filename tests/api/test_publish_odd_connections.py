"""Connections that their owners have configured in unusual ways."""

from __future__ import annotations

import gc
import json
from typing import Any

import asyncpg
import psycopg
import psycopg.rows
import pytest
import sqlalchemy

from api.drivers import PROGRAMS, asyncpg_connection, psycopg_sync, sqlalchemy_session
from api.ear import Ear
from postbus import Bus, InvalidInput, Outgoing
from support.eventually import eventually


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


async def _headers(conn: Any, topic: str) -> list[str]:
    rows = await conn.fetch("select headers::text from postbus.messages where topic = $1 order by id", topic)
    return [row["headers"] for row in rows]


async def test_asyncpg_jsonb_codec_does_not_change_headers(dsn: str, bus: Bus, conn: Any, topic: str) -> None:
    """A connection that encodes jsonb by itself stores the same headers."""
    async with asyncpg_connection(dsn) as program:
        await program.conn.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")

        await program.publish(bus, topic, "x", headers={"a": "1"})
        await program.publish_many(bus, topic, [Outgoing(payload="x", headers={"a": "1"})])

    assert await _headers(conn, topic) == ['{"a": "1"}', '{"a": "1"}']


@pytest.mark.parametrize("cursor", [psycopg.ClientCursor, psycopg.RawCursor, psycopg.ServerCursor])
async def test_psycopg_row_and_cursor_factories_do_not_matter(dsn: str, bus: Bus, topic: str, cursor: Any) -> None:
    """The connection's factories are for its owner's statements only."""
    async with psycopg_sync(dsn) as program:
        program.conn.row_factory = psycopg.rows.dict_row
        if cursor is not psycopg.ServerCursor:
            program.conn.cursor_factory = cursor

        one = await program.publish(bus, topic, "x", headers={"a": "1"})
        many = await program.publish_many(bus, topic, ["y"])

    [second] = many
    assert second > one


@pytest.mark.parametrize("name", ["asyncpg", "asyncpg pool"])
async def test_message_outside_of_a_transaction_is_published_at_once(
    dsn: str, bus: Bus, conn: Any, ear: Ear, topic: str, name: str
) -> None:
    """A connection of asyncpg outside of a transaction commits each statement."""
    async with PROGRAMS[name](dsn) as program:
        await program.publish(bus, topic, "x")

        await ear.hears(topic)
        assert await _headers(conn, topic) == [None]


async def test_psycopg_with_autocommit_publishes_at_once(dsn: str, bus: Bus, ear: Ear, topic: str) -> None:
    """A connection of psycopg with autocommit is in no transaction."""
    async with psycopg_sync(dsn) as program:
        program.conn.autocommit = True
        await program.publish(bus, topic, "x")

        await ear.hears(topic)


@pytest.mark.parametrize("name", ["SQLAlchemy Connection", "SQLAlchemy Session", "SQLAlchemy AsyncSession asyncpg"])
async def test_sqlalchemy_with_autocommit_publishes_at_once(
    dsn: str, bus: Bus, ear: Ear, topic: str, name: str
) -> None:
    """With AUTOCOMMIT there is no transaction, although SQLAlchemy reports one."""
    async with PROGRAMS[name](dsn) as program:
        options = {"isolation_level": "AUTOCOMMIT"}
        if name == "SQLAlchemy Connection":
            await program.call(lambda: program.conn.execution_options(**options))
        else:
            await program.call(lambda: program.conn.connection(execution_options=options))
        await program.publish(bus, topic, "x")

        await ear.hears(topic)


async def test_django_publishes_at_once_outside_of_atomic(dsn: str, bus: Bus, ear: Ear, topic: str) -> None:
    """Django commits each statement where no block is open."""
    async with PROGRAMS["Django connection"](dsn) as program:
        await program.publish(bus, topic, "x")

        await ear.hears(topic)


async def test_django_without_autocommit_wakes_consumers(dsn: str, bus: Bus, ear: Ear, topic: str) -> None:
    """Outside of `atomic()` Django has no commit hook, and consumers are woken nevertheless."""
    async with PROGRAMS["Django connection"](dsn) as program:
        await program.call(lambda: program.conn.set_autocommit(False))
        await program.publish(bus, topic, "x")
        assert not await ear.has_heard(topic)
        await program.call(lambda: program.conn.commit())

        await ear.hears(topic)


async def test_dropped_connection_is_not_kept_open(dsn: str, conn: Any, bus: Bus, topic: str) -> None:
    """Waiting for the end of a transaction keeps neither its connection nor its locks."""
    async with psycopg_sync(dsn) as program:
        dropped = await program.call(lambda: psycopg.connect(dsn, application_name=topic))
        await program.call(lambda: bus.publish(dropped, topic, "x"))

        with pytest.warns(ResourceWarning):
            del dropped
            gc.collect()

        async def it_is_gone() -> None:
            left = await conn.fetch("select from pg_stat_activity where application_name = $1", topic)
            assert not left

        await eventually(it_is_gone)


async def test_subclasses_of_connections_are_accepted(dsn: str, bus: Bus, topic: str) -> None:
    """A user's subclass of a driver's connection or session works like its base class."""

    class MyConnection(asyncpg.Connection):
        pass

    class MySession(sqlalchemy.orm.Session):
        pass

    mine: Any = await asyncpg.connect(dsn, connection_class=MyConnection)
    one = await bus.publish(mine, topic, "x")
    await mine.close()
    async with sqlalchemy_session(dsn) as program:
        with MySession(program.conn.get_bind()) as session:
            two = await program.call(lambda: bus.publish(session, topic, "x"))

    assert two > one


async def test_unknown_connection_is_refused(dsn: str, bus: Bus) -> None:
    """The error names the given type, and what may be given."""
    async with asyncpg.create_pool(dsn, min_size=0) as pool:
        for wrong, name in (
            (pool, "asyncpg.pool.Pool"),
            (None, "NoneType"),
            (dsn, "str"),
            (object(), "object"),
        ):
            with pytest.raises(InvalidInput, match=f"a .*{name} is not a connection") as refused:
                bus.publish(wrong, "t", "x")
            assert refused.value.code == "PB400"
            assert "bus.send()" in refused.value.remedy
