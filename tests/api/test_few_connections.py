"""A server has few connections for all its clients: unneeded ones are closed, and a few are enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from faults.servers.hogs import all_connections
from postbus._db import pool
from postbus._db.pool import Connections
from postbus.embedded import EmbeddedPostgres
from postbus.errors import DatabaseUnavailable
from support.eventually import eventually


@pytest.fixture
async def small_dsn(own_folder: Path) -> AsyncIterator[str]:
    """Start a server with ten connections."""
    with EmbeddedPostgres.start(own_folder / "pg", settings={"max_connections": "10"}) as server:
        yield server.dsn()


async def ask(connections: Connections, sql: str) -> Any:
    async with connections.one() as conn:
        return await conn.fetchval(sql)


async def ask_at_once(connections: Connections, count: int) -> set[int]:
    """Return the process ids of the sessions that answered."""
    sql = "select pg_backend_pid() from pg_sleep(0.05)"
    return set(await asyncio.gather(*(ask(connections, sql) for _ in range(count))))


async def test_connections_of_a_rush_are_closed_again(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two most recently used are kept, and more are opened when they are needed."""
    monkeypatch.setattr(pool, "IDLE", 0.3)
    connections = Connections(dsn, 8)
    await connections.open()
    pids = await ask_at_once(connections, 8)
    assert len(pids) == 8

    async def two_are_left() -> None:
        there = "select count(*) from pg_stat_activity where pid = any($1)"
        async with connections.one() as conn:
            assert await conn.fetchval(there, list(pids)) == 2

    await eventually(two_are_left)
    assert len(await ask_at_once(connections, 8)) == 8
    await connections.close()


async def test_connections_in_use_are_not_closed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not matter how long ago they were opened."""
    monkeypatch.setattr(pool, "IDLE", 0.05)
    connections = Connections(dsn, 4)
    await connections.open()
    for _ in range(10):
        assert len(await ask_at_once(connections, 4)) == 4
    await connections.close()


async def test_pool_makes_do_with_the_connections_it_gets(small_dsn: str) -> None:
    """With three connections left on the server, ten statements at once succeed."""
    async with all_connections(small_dsn, leave=3):
        connections = Connections(small_dsn, 10)
        await connections.open()
        assert len(await ask_at_once(connections, 10)) == 3
        assert len(await ask_at_once(connections, 10)) == 3
        await connections.close()


async def test_pool_grows_again_when_the_server_has_room(small_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is forgotten after a while."""
    monkeypatch.setattr(pool, "_FEWER", 0.2)
    connections = Connections(small_dsn, 5)
    async with all_connections(small_dsn, leave=1):
        await connections.open()
        assert len(await ask_at_once(connections, 5)) == 1

    async def five_answer() -> None:
        assert len(await ask_at_once(connections, 5)) == 5

    await eventually(five_answer)
    await connections.close()


async def test_pool_without_any_connection_raises_the_servers_error(small_dsn: str) -> None:
    """An empty pool cannot wait for one of its own connections."""
    async with all_connections(small_dsn):
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await Connections(small_dsn, 10).open()


@pytest.fixture
async def single(dsn: str) -> AsyncIterator[Connections]:
    """Offer one connection to several tasks."""
    connections = Connections(dsn, 1)
    await connections.open()
    yield connections
    await connections.close()


async def lent_at_once(connections: Connections) -> Any:
    return await asyncio.wait_for(connections.lend(), 5)


async def test_connection_is_lent_in_the_order_of_arrival(single: Connections) -> None:
    """A late caller does not get ahead in the moment when a connection is returned."""
    served = list[int]()
    conn = await lent_at_once(single)

    async def take(number: int) -> None:
        own = await single.lend()
        served.append(number)
        await asyncio.sleep(0)
        single.take_back(own)

    waiting = [asyncio.create_task(take(number)) for number in range(3)]
    await asyncio.sleep(0)
    single.take_back(conn)
    late = asyncio.create_task(take(3))
    await asyncio.gather(*waiting, late)
    assert served == [0, 1, 2, 3]


@pytest.mark.parametrize("is_handed_one", [False, True])
async def test_cancelled_waiter_takes_no_connection_along(single: Connections, is_handed_one: bool) -> None:
    """This holds while it waits, and in the moment when it would have got the connection."""
    conn = await lent_at_once(single)
    waiting = asyncio.create_task(single.lend())
    await asyncio.sleep(0)
    if is_handed_one:
        single.take_back(conn)
    waiting.cancel()
    await asyncio.wait([waiting])
    if not is_handed_one:
        single.take_back(conn)

    assert waiting.cancelled()
    single.take_back(await lent_at_once(single))


async def test_waiting_for_a_connection_times_out(single: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of a database that is away, and a connection that is returned afterwards goes to others."""
    monkeypatch.setattr(pool, "_TIMEOUT", 0.01)
    conn = await lent_at_once(single)
    with pytest.raises(DatabaseUnavailable, match="all connections of this process were in use"):
        await ask(single, "select 1")
    single.take_back(conn)
    assert await ask(single, "select 1") == 1
