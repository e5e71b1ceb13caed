"""The proxy of the fault driver cuts, swallows, slows down and refuses, and a bus behind it finds its way."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
import psycopg
import pytest

from faults.servers.proxy import Odds, OnCommit, Proxy
from postbus import Bus, CommitUnknown
from support.eventually import eventually
from support.fix_proxy import proxy

__all__ = ["proxy"]  # a fixture

CUTS = [OnCommit.CUT_BEFORE, OnCommit.CUT_DURING, OnCommit.CUT_AFTER]


async def table(conn: Any) -> Any:
    await conn.execute("create table done (id integer)")
    return conn


async def rows(conn: Any) -> Any:
    return await conn.fetchval("select count(*) from done")


async def has_lost(proxy: Proxy, connections: int) -> None:
    assert proxy.lost == connections


@pytest.mark.parametrize("cut", CUTS)
async def test_asyncpg_is_cut_at_commit(proxy: Proxy, conn: Any, cut: OnCommit) -> None:
    """The client gets an error; the row is there if the server had the COMMIT."""
    await table(conn)
    far: Any = await asyncpg.connect(proxy.dsn)
    proxy.on_commit = cut
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
        async with far.transaction():
            await far.execute("insert into done values ($1)", 1)

    async def is_done() -> None:
        assert await rows(conn) == (cut is not OnCommit.CUT_BEFORE)

    await eventually(is_done)
    assert [one.how for one in proxy.cuts] == [cut]


@pytest.mark.parametrize("cut", CUTS)
async def test_psycopg_is_cut_at_commit(proxy: Proxy, conn: Any, cut: OnCommit) -> None:
    """The same for psycopg, which says it in another way."""
    await table(conn)
    far = await psycopg.AsyncConnection.connect(proxy.dsn)
    proxy.on_commit = cut
    with pytest.raises(psycopg.OperationalError):
        async with far:
            await far.execute("insert into done values (%s)", [1])
    await far.close()

    async def is_done() -> None:
        assert await rows(conn) == (cut is not OnCommit.CUT_BEFORE)

    await eventually(is_done)


@pytest.mark.parametrize("cut", CUTS)
async def test_statements_that_commit_by_themselves(proxy: Proxy, conn: Any, cut: OnCommit) -> None:
    """A statement outside of a transaction is cut in the same way, if that is asked for."""
    await table(conn)
    far: Any = await asyncpg.connect(proxy.dsn)
    proxy.on_commit = cut
    await far.execute("insert into done values ($1)", 1)
    assert not proxy.cuts
    proxy.with_autocommit = True
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
        await far.execute("insert into done values ($1)", 2)

    async def is_done() -> None:
        assert await rows(conn) == (1 if cut is OnCommit.CUT_BEFORE else 2)

    await eventually(is_done)


async def test_the_odds_are_kept_and_the_same_for_the_same_seed() -> None:
    """Cuts come as often as they are wanted, and in the same order for the same seed."""
    first, second = (Odds(before=0.1, during=0.2, after=0.3, seed=7) for _ in range(2))
    drawn = [first.next() for _ in range(10_000)]
    assert drawn == [second.next() for _ in range(10_000)]
    assert [round(drawn.count(cut) / 10_000, 1) for cut in CUTS] == [0.1, 0.2, 0.3]
    with pytest.raises(ValueError, match="more than 1"):
        Odds(before=0.6, after=0.6)


async def test_what_is_told_of_commits_holds(proxy: Proxy, conn: Any) -> None:
    """Whatever is cut, what is told to be sent is there, and what is told to be unknown is there at most."""
    proxy.on_commit = Odds(before=0.1, during=0.1, after=0.1, seed=1)
    sent, unknown = set(), set()
    async with Bus.open(proxy.dsn) as bus:
        for number in range(60):
            try:
                await bus.send("t", number)
                sent.add(number)
            except CommitUnknown:
                unknown.add(number)
    stored = {int(row["payload"]) for row in await conn.fetch("select payload from postbus.messages")}
    assert sent <= stored <= sent | unknown
    assert len(proxy.cuts) == len(unknown) > 0


async def test_half_open(proxy: Proxy, conn: Any) -> None:
    """Nothing is answered and nothing is closed; when it is over, connections that lost something are reset."""
    idle: Any = await asyncpg.connect(proxy.dsn)
    busy: Any = await asyncpg.connect(proxy.dsn)
    proxy.half_open()
    asking = asyncio.create_task(busy.fetchval("select 1"))
    connecting = asyncio.create_task(asyncpg.connect(proxy.dsn, timeout=60))
    await eventually(has_lost, proxy, 2)
    assert not asking.done()
    assert not connecting.done()
    assert not busy.is_closed()
    proxy.heal()
    for one in await asyncio.gather(asking, connecting, return_exceptions=True):
        assert isinstance(one, Exception)
    assert await idle.fetchval("select 1") == 1
    await idle.close()


async def test_half_open_for_a_time(proxy: Proxy, conn: Any) -> None:
    """A client that goes away meanwhile is not missed by the server before it is over."""
    gone: Any = await asyncpg.connect(proxy.dsn)
    pid = gone.get_server_pid()
    proxy.half_open(0.5)
    gone.terminate()
    await eventually(has_lost, proxy, 1)
    there = "select exists (select from pg_stat_activity where pid = $1)"
    assert await conn.fetchval(there, pid)

    async def is_missed() -> None:
        assert not await conn.fetchval(there, pid)

    await eventually(is_missed)
    fresh: Any = await asyncpg.connect(proxy.dsn)
    await fresh.close()


async def test_slow_and_refusing(proxy: Proxy) -> None:
    """Each piece takes longer in both directions; new connections can be refused while old ones stay."""
    far: Any = await asyncpg.connect(proxy.dsn)
    proxy.delay = 0.05
    began = time.monotonic()
    await far.execute("select 1")
    assert time.monotonic() - began >= 0.1
    proxy.delay = 0.0
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await asyncpg.connect(proxy.dsn)
    assert await far.fetchval("select 1") == 1
    await proxy.start()
    other: Any = await asyncpg.connect(proxy.dsn)
    for one in (far, other):
        await one.close()


async def test_large_messages_pass(proxy: Proxy) -> None:
    """What is larger than a piece comes through whole, both ways."""
    far: Any = await asyncpg.connect(proxy.dsn)
    text = "x" * 3_000_000
    assert await far.fetchval("select $1::text", text) == text
    assert await far.fetchval(f"select length('{text}')") == len(text)
    await far.close()
