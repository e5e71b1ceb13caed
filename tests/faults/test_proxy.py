"""The fault driver's proxy cuts, swallows, slows down and refuses, and a bus behind it recovers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
import psycopg
import pytest

from faults.servers.proxy import CommitOdds, OnCommit, Proxy
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
    """The client gets an error, and the row exists if the server had got the COMMIT."""
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
    """psycopg raises another error for the same cut."""
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
async def test_autocommitted_statement_is_cut_on_request(proxy: Proxy, conn: Any, cut: OnCommit) -> None:
    """A statement outside of a transaction is cut in the same way."""
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


async def test_odds_of_cuts_are_kept_and_repeatable() -> None:
    """Cuts are as frequent as requested, and come in the same order for the same seed."""
    first, second = (CommitOdds(before=0.1, during=0.2, after=0.3, seed=7) for _ in range(2))
    drawn = [first.next() for _ in range(10_000)]
    assert drawn == [second.next() for _ in range(10_000)]
    assert [round(drawn.count(cut) / 10_000, 1) for cut in CUTS] == [0.1, 0.2, 0.3]
    with pytest.raises(ValueError, match="more than 1"):
        CommitOdds(before=0.6, after=0.6)


async def test_reported_commit_outcomes_are_true(proxy: Proxy, conn: Any) -> None:
    """Whatever is cut, a sent message exists, and a message with unknown outcome may exist."""
    proxy.on_commit = CommitOdds(before=0.1, during=0.1, after=0.1, seed=1)
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


async def test_half_open_proxy_answers_and_closes_nothing(proxy: Proxy, conn: Any) -> None:
    """When it ends, connections that lost data are reset."""
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


async def test_half_open_proxy_hides_a_client_that_left(proxy: Proxy, conn: Any) -> None:
    """The server notices only when it is over."""
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


async def test_proxy_can_be_slow_and_refuse(proxy: Proxy) -> None:
    """Each chunk takes longer in both directions, and new connections can be refused while old ones stay."""
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


async def test_large_messages_pass_the_proxy(proxy: Proxy) -> None:
    """Data larger than a chunk arrives whole in both directions."""
    far: Any = await asyncpg.connect(proxy.dsn)
    text = "x" * 3_000_000
    assert await far.fetchval("select $1::text", text) == text
    assert await far.fetchval(f"select length('{text}')") == len(text)
    await far.close()
