"""A server has few connections for all its clients: what is not needed is given up, and a few are enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from faults.servers.hogs import all_connections
from postbus._db import pool
from postbus._db.pool import Connections, Slots
from postbus.embedded import EmbeddedPostgres
from support.eventually import eventually


@pytest.fixture
async def small_dsn(own_folder: Path) -> AsyncIterator[str]:
    """A server with ten connections."""
    with EmbeddedPostgres.start(own_folder / "pg", settings={"max_connections": "10"}) as server:
        yield server.dsn()


async def ask(connections: Connections, sql: str) -> Any:
    async with connections.one() as conn:
        return await conn.fetchval(sql)


async def ask_at_once(connections: Connections, count: int) -> set[int]:
    """Who answered."""
    sql = "select pg_backend_pid() from pg_sleep(0.05)"
    return set(await asyncio.gather(*(ask(connections, sql) for _ in range(count))))


async def test_connections_that_a_rush_needed_are_given_up(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are kept, those that were used last; more are made when they are needed again."""
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


async def test_connections_in_use_are_not_given_up(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long ago they were made."""
    monkeypatch.setattr(pool, "IDLE", 0.05)
    connections = Connections(dsn, 4)
    await connections.open()
    for _ in range(10):
        assert len(await ask_at_once(connections, 4)) == 4
    await connections.close()


async def test_who_is_refused_another_connection_makes_do_with_those_he_has(small_dsn: str) -> None:
    """The server has three left. Ten statements at once are answered by these, none is an error."""
    async with all_connections(small_dsn, leave=3):
        connections = Connections(small_dsn, 10)
        await connections.open()
        assert len(await ask_at_once(connections, 10)) == 3
        assert len(await ask_at_once(connections, 10)) == 3
        await connections.close()


async def test_there_is_room_for_more_again_later(small_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When others have given theirs back."""
    monkeypatch.setattr(pool, "_FEWER", 0.2)
    connections = Connections(small_dsn, 5)
    async with all_connections(small_dsn, leave=1):
        await connections.open()
        assert len(await ask_at_once(connections, 5)) == 1

    async def five_answer() -> None:
        assert len(await ask_at_once(connections, 5)) == 5

    await eventually(five_answer)
    await connections.close()


async def test_who_has_no_connection_at_all_is_told_so(small_dsn: str) -> None:
    async with all_connections(small_dsn):
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await Connections(small_dsn, 10).open()


async def test_places_are_handed_on_in_the_order_of_the_line() -> None:
    """Who comes later, in the moment in which one is given back, does not get ahead."""
    room, served = Slots(1), list[int]()
    assert room.take_at_once()

    async def take(number: int) -> None:
        await room.take()
        served.append(number)
        room.give_back()

    waiting = [asyncio.create_task(take(number)) for number in range(3)]
    await asyncio.sleep(0)
    room.give_back()
    assert not room.take_at_once()
    await asyncio.gather(*waiting)
    assert served == [0, 1, 2]
    assert room.take_at_once()


@pytest.mark.parametrize("is_handed_one", [False, True])
async def test_who_gives_up_waiting_takes_no_place_along(is_handed_one: bool) -> None:
    """Neither while waiting nor in the moment in which it would have been his turn."""
    room = Slots(1)
    assert room.take_at_once()
    waiting = asyncio.create_task(room.take())
    await asyncio.sleep(0)
    if is_handed_one:
        room.give_back()
    waiting.cancel()
    await asyncio.wait([waiting])
    if not is_handed_one:
        room.give_back()

    assert waiting.cancelled()
    assert room.take_at_once()
    assert not room.take_at_once()


async def test_nobody_waits_for_a_place_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is given back afterwards is there for others."""
    monkeypatch.setattr(pool, "_TIMEOUT", 0.01)
    room = Slots(1)
    assert room.take_at_once()
    with pytest.raises(TimeoutError):
        await room.take()
    room.give_back()
    assert room.take_at_once()
