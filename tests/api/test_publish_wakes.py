"""Consumers are woken after the commit of the caller's transaction, and not before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.drivers import InThread, Program, asyncpg_connection, psycopg_async, psycopg_sync, sqlalchemy_session
from api.ear import Ear
from postbus import Bus

pytestmark = pytest.mark.usefixtures("rung")


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


async def test_commit_wakes_consumers(program: Program, bus: Bus, ear: Ear, topic: str) -> None:
    """Each commit notifies at once, and an open transaction does not."""
    for _ in range(3):
        await program.begin()
        await program.publish(bus, topic, "x")
        for _ in range(20):
            await program.execute("select 1")
        assert not await ear.has_heard(topic)
        await program.commit()

        await ear.hears(topic)


async def test_end_of_a_savepoint_wakes_nobody(program: Program, bus: Bus, ear: Ear, topic: str) -> None:
    """Messages of a savepoint are not published before the transaction is."""
    for _ in range(2):
        await program.begin()
        await program.savepoint()
        await program.publish(bus, topic, "x")
        await program.release()
        for _ in range(20):
            await program.execute("select 1")
        assert not await ear.has_heard(topic)
        await program.commit()

        await ear.hears(topic)


async def test_next_publish_of_a_busy_connection_notifies_for_the_last(
    dsn: str, bus: Bus, ear: Ear, topic: str
) -> None:
    """A connection that is never seen idle, because its thread never waits, still wakes consumers."""
    async with psycopg_sync(dsn) as program:
        first, second = f"{topic}.1", f"{topic}.2"
        ear.listen(first)
        ear.listen(second)

        def busily() -> None:
            conn = program.conn
            bus.publish(conn, first, "x")
            conn.commit()
            conn.execute("select 1")
            bus.publish(conn, second, "x")

        await program.call(busily)

        await ear.hears(first)
        assert not await ear.has_heard(second)


@pytest.mark.parametrize("is_connected", [True, False])
async def test_closing_the_bus_notifies_for_the_last_commit(dsn: str, ear: Ear, topic: str, is_connected: bool) -> None:
    """A program that publishes, commits and ends has woken the consumers."""
    bus = Bus(dsn)
    if is_connected:
        await bus.connect()
    async with asyncpg_connection(dsn) as program:
        await program.begin()
        await program.publish(bus, topic, "x")
        await program.commit()
        await bus.close()

        await ear.hears(topic)


@pytest.mark.parametrize("driver", [psycopg_async, asyncpg_connection])
async def test_publishing_in_another_event_loop_wakes_consumers(
    dsn: str, bus: Bus, ear: Ear, topic: str, driver: Any
) -> None:
    """A thread may publish in its own event loop, through a bus that is connected in another."""

    async def publish() -> None:
        async with driver(dsn) as program:
            await program.begin()
            await program.publish(bus, topic, "x")
            await program.commit()
            await ear_in_this_loop(topic)

    async def ear_in_this_loop(topic: str) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ear.hears(topic), loop))

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(asyncio.run, publish())


async def test_session_does_not_gather_listeners(dsn: str, bus: Bus, topic: str) -> None:
    """A long-lived session of SQLAlchemy has at most one listener, however often it publishes."""
    async with sqlalchemy_session(dsn) as program:
        for _ in range(5):
            await program.publish(bus, topic, "x")
            await program.publish(bus, topic, "y")
            await program.commit()

        assert len(list(program.conn.dispatch.after_transaction_end)) <= 1


async def test_session_in_a_larger_transaction_notifies_at_its_end(dsn: str, bus: Bus, ear: Ear, topic: str) -> None:
    """A session of SQLAlchemy that joined a transaction commits nothing by itself."""
    import sqlalchemy.orm

    async with sqlalchemy_session(dsn) as program:
        assert isinstance(program, InThread)
        outer = await program.call(program.conn.get_bind().connect)
        await program.call(outer.begin)
        joined = sqlalchemy.orm.Session(bind=outer, join_transaction_mode="create_savepoint")
        await program.call(lambda: bus.publish(joined, topic, "x"))
        await program.call(joined.commit)
        rung_too_early = await ear.has_heard(topic)
        await program.call(outer.commit)

        await ear.hears(topic)
        assert not rung_too_early
        await program.call(joined.close)
        await program.call(outer.close)
