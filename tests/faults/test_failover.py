"""A bus whose DSN names several hosts follows the primary by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from faults.servers.postgres import Server, dsn_of_all
from faults.servers.proxy import Proxy
from faults.servers.run import USER, Servers
from postbus import AccessDenied, Bus, DatabaseUnavailable, Message
from postbus._db import connect, failover
from support.eventually import eventually
from support.running import running, send_surely


@dataclass
class Pair:
    """A primary and its standby, each behind a proxy."""

    primary: Server
    standby: Server
    before_primary: Proxy
    before_standby: Proxy

    @property
    def dsn(self) -> str:
        return dsn_of_all([self.before_primary.port, self.before_standby.port], user=USER)

    async def fail_over(self) -> None:
        await self.primary.kill()
        await self.standby.promote()


async def _machines(servers: Servers) -> tuple[Server, Server]:
    primary = await servers.new()
    await primary.start()
    return primary, await servers.standby_of(primary)


@pytest.fixture(scope="module")
def lasting(servers: Servers) -> tuple[Server, Server]:
    """Start a primary and a standby, for tests that leave them as they are."""
    return asyncio.run(_machines(servers))


@asynccontextmanager
async def _behind_proxies(primary: Server, standby: Server) -> AsyncIterator[Pair]:
    proxies = [Proxy(one.dsn()) for one in (primary, standby)]
    for proxy in proxies:
        await proxy.start()
    yield Pair(primary, standby, *proxies)
    for proxy in proxies:
        await proxy.stop()


@pytest.fixture
async def whole_pair(lasting: tuple[Server, Server]) -> AsyncIterator[Pair]:
    async with _behind_proxies(*lasting) as pair:
        yield pair


@pytest.fixture
async def pair(servers: Servers) -> AsyncIterator[Pair]:
    """Start a pair of the test's own."""
    primary, standby = await _machines(servers)
    async with _behind_proxies(primary, standby) as pair:
        yield pair
    for server in (standby, primary):
        await server.remove()


@pytest.mark.parametrize("how", ["refuses", "resets", "is silent"])
async def test_bus_continues_at_the_new_primary(pair: Pair, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders, consumers and users' transactions go on, whatever the former primary does with connections."""
    monkeypatch.setattr(failover, "_PATIENCE", 0.6)
    monkeypatch.setattr(connect, "TIMEOUT", 1.0)
    monkeypatch.setattr(connect, "_NEXT_AFTER", 0.1)
    got: set[int] = set()
    async with Bus.open(pair.dsn) as bus:

        @bus.subscribe("t", transactional=True)
        async def note(payload: int, message: Message, conn: Any) -> None:
            await conn.execute("select 1")
            got.add(payload)

        async def has_got(payload: int) -> None:
            assert payload in got

        async with running(bus):
            await send_surely(bus, 1, dedup_key="1")
            await eventually(lambda: has_got(1))
            if how == "refuses":
                pair.before_primary.refuse()
            elif how == "is silent":
                pair.before_primary.half_open()
            await pair.fail_over()
            await asyncio.wait_for(send_surely(bus, 2, dedup_key="2"), 20)
            await eventually(lambda: has_got(2), within=20)
            async with bus.transaction() as conn:
                await bus.publish(conn, "t", 3)
            await eventually(lambda: has_got(3))


async def test_send_fails_while_there_is_no_primary(pair: Pair) -> None:
    """The lack of a primary is transient: the send works after the promotion."""
    async with Bus.open(pair.dsn) as bus:
        await pair.primary.kill()
        with pytest.raises(DatabaseUnavailable):
            await bus.send("t", 1)
        await pair.standby.promote()
        await bus.send("t", 1)


async def test_long_statement_is_left_alone(whole_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection in use for long is kept while its server accepts others."""
    monkeypatch.setattr(failover, "_PATIENCE", 0.1)
    proxy = whole_pair.before_primary
    other: Any = await asyncpg.connect(whole_pair.primary.dsn())
    await other.execute("select pg_advisory_lock(1)")
    async with Bus.open(whole_pair.dsn) as bus, bus.transaction() as conn:
        long = asyncio.create_task(conn.execute("select pg_advisory_lock(1)"))
        before = proxy.counts["connections"]

        async def the_server_was_asked_again_and_again() -> None:
            assert proxy.counts["connections"] >= before + 3

        await eventually(the_server_was_asked_again_and_again)
        await other.close()
        await long


async def test_order_of_hosts_does_not_matter(whole_pair: Pair) -> None:
    """A standby that is named first is skipped, and a silent one costs a second."""
    dsn = dsn_of_all([whole_pair.before_standby.port, whole_pair.before_primary.port], user=USER)
    async with Bus.open(dsn) as bus:
        await bus.send("t", 1)
    whole_pair.before_standby.half_open()
    async with asyncio.timeout(5), Bus.open(dsn) as bus:
        await bus.send("t", 2)


async def test_error_of_all_hosts_is_raised(whole_pair: Pair) -> None:
    """A permanent error is raised only if all hosts report it."""
    ports = [whole_pair.before_primary.port, whole_pair.before_standby.port]
    with pytest.raises(AccessDenied):
        async with Bus.open(dsn_of_all(ports, user="nobody_we_know")):
            pass
    whole_pair.before_primary.cut()
    with pytest.raises(DatabaseUnavailable):
        async with Bus.open(dsn_of_all(ports, user="nobody_we_know")):
            pass


async def test_abandoned_connection_attempt_leaves_nothing(whole_pair: Pair) -> None:
    """Connecting that times out leaves neither a task nor a connection."""
    for proxy in (whole_pair.before_primary, whole_pair.before_standby):
        proxy.half_open()
    with pytest.raises(TimeoutError):
        await connect.connect(whole_pair.dsn, timeout=1.2)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "postbus-connect"]
    for proxy in (whole_pair.before_primary, whole_pair.before_standby):
        proxy.heal()

    async def nobody_is_connected() -> None:
        assert not await whole_pair.primary.backends()

    await eventually(nobody_is_connected)
    conn: asyncpg.Connection = await connect.connect(whole_pair.dsn)
    await conn.close()
