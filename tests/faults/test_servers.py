"""The servers of the fault driver can be hurt, and recover."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import psutil
import pytest

from faults.servers import NotInstalled
from faults.servers.disk import TABLES, WAL
from faults.servers.hogs import all_connections, finish_prepared, open_transaction, prepare
from faults.servers.postgres import Server, ServerFailed, dsn_of_all, has_ended
from faults.servers.run import USER, Servers
from postbus import Bus
from support.eventually import eventually

T = TypeVar("T")
TIMEOUTS = {"statement_timeout": asyncpg.QueryCanceledError, "lock_timeout": asyncpg.LockNotAvailableError}


@pytest.fixture
async def server(servers: Servers) -> AsyncIterator[Server]:
    """Start a server of the test's own."""
    made = await servers.new(settings={"max_prepared_transactions": "1"})
    await made.start()
    yield made
    await made.remove()


async def connect(server: Server) -> Any:
    return await asyncpg.connect(server.dsn())


async def present(made: Awaitable[T]) -> T:
    """Return the object, or skip the test if this machine cannot have it."""
    try:
        return await made
    except NotInstalled as absent:
        pytest.skip(str(absent))


async def is_doing(server: Server, pid: int, what: str) -> None:
    """Check what a backend does, according to pg_stat_activity."""
    assert await server.ask(f"select {what} from pg_stat_activity where pid = $1", pid)


async def test_server_keeps_what_was_committed(server: Server) -> None:
    """A bus can open it at once, and after each way to end it all commits are there."""
    async with Bus.open(server.dsn(user=USER)) as bus:
        await bus.send("t", 0)
    assert await server.ask("show fsync") == "on"
    ends = [server.stop, lambda: server.stop("immediate"), server.kill]
    for count, end in enumerate(ends, 1):
        await end()
        assert not await server.is_up()
        await server.start()
        async with Bus.open(server.dsn()) as bus:
            await bus.send("t", count)
        assert await server.ask("select sum(waiting)::int from postbus.topics", database="postbus") == count + 1


async def test_killed_server_leaves_no_process(server: Server) -> None:
    """Busy backends do not outlive the killed postmaster, so that the next start succeeds at once."""
    conn = await connect(server)
    busy = asyncio.create_task(conn.execute("select count(*) from generate_series(1, 1e9)"))
    pid = conn.get_server_pid()
    await eventually(is_doing, server, pid, "state = 'active'")
    await server.kill()
    assert has_ended(pid)
    assert isinstance((await asyncio.gather(busy, return_exceptions=True))[0], Exception)
    await server.start()
    assert await server.is_up()


async def test_settings_apply_to_the_next_start(servers: Servers) -> None:
    """They are given when a server is made, and may change before it is started again."""
    server = await servers.new(settings={"max_connections": "33", "synchronous_commit": "local"})
    await server.start()
    assert await server.ask("show max_connections") == "33"
    assert await server.ask("show synchronous_commit") == "local"
    server.settings["max_connections"] = "44"
    await server.restart("immediate")
    assert await server.ask("show max_connections") == "44"
    await server.remove()


async def test_killed_backend_makes_the_server_recover(server: Server) -> None:
    """All connections end with it, and the server comes back by itself."""
    victim, other = await connect(server), await connect(server)
    await server.kill_backend(victim.get_server_pid())
    await server.until_up()
    assert victim.is_closed()
    assert other.is_closed()


async def test_backend_can_be_terminated_alone(server: Server) -> None:
    """Other connections stay open."""
    victim = await asyncpg.connect(server.dsn(), server_settings={"application_name": "victim-1"})
    other = await connect(server)
    assert await server.backends("victim-%") == [victim.get_server_pid()]
    assert await server.terminate_backend(victim.get_server_pid())

    async def is_closed() -> None:
        assert victim.is_closed()

    await eventually(is_closed)
    assert await other.fetchval("select 1") == 1
    await other.close()
    assert not await server.terminate_backend(victim.get_server_pid())


async def test_standby_takes_over(servers: Servers, server: Server) -> None:
    """Commits wait for the standby, so it has all of them when it is promoted, and accepts new ones."""
    standby = await servers.standby_of(server)
    conn = await connect(server)
    await conn.execute("create table done (id integer)")
    await standby.stop()
    waiting = asyncio.create_task(conn.execute("insert into done values (1)"))
    await eventually(is_doing, server, conn.get_server_pid(), "wait_event = 'SyncRep'")
    await standby.start()
    await asyncio.wait_for(waiting, 10)
    await server.kill()
    assert await standby.ask("select pg_is_in_recovery()")
    await standby.promote()
    assert await standby.ask("insert into done select id + 1 from done returning id", database="postbus") == 2
    await standby.remove()


async def test_multi_host_dsn_finds_the_primary(servers: Servers, server: Server) -> None:
    """Clients reach the primary before and after a failover."""
    standby = await servers.standby_of(server)
    dsn = dsn_of_all([standby.port, server.port])
    for primary in (server, standby):
        conn: Any = await asyncpg.connect(dsn)
        assert await conn.fetchval("select inet_server_port()") == primary.port
        conn.terminate()
        if primary is server:
            await server.stop("immediate")
            await standby.promote()
    await standby.remove()


async def test_full_disk_for_tables_fails_writes_only(servers: Servers) -> None:
    """The server stays up, and continues when there is space."""
    server, disk = await present(servers.with_disk(TABLES, megabytes=100))
    await server.start()
    conn = await connect(server)
    await conn.execute("create table big (text text)")
    disk.fill()
    assert disk.free_bytes == 0
    with pytest.raises(asyncpg.DiskFullError):
        await conn.execute("insert into big select repeat('x', 1000) from generate_series(1, 10000)")
    assert await server.is_up()
    disk.free()
    await conn.execute("insert into big select repeat('x', 1000) from generate_series(1, 10000)")
    await conn.close()
    await server.remove()
    assert str(server.home.path) not in Path("/proc/mounts").read_text()


async def test_full_disk_for_the_wal_stops_the_server(servers: Servers) -> None:
    """It starts again when there is space."""
    server, disk = await present(servers.with_disk(WAL, megabytes=100))
    await server.start()
    conn = await connect(server)
    await conn.execute("create table big (text text)")
    disk.fill()
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        for _ in range(100):
            await conn.execute("insert into big select repeat('x', 1000) from generate_series(1, 10000)")
    await server.until_down()
    with pytest.raises(ServerFailed, match="No space left"):
        await server.start()
    disk.free()
    await server.start()
    assert await server.ask("select count(*) >= 0 from big", database="postbus")
    await server.remove()


async def test_clock_can_jump(servers: Servers) -> None:
    """Old and new backends follow the clock in both directions at once, and the server's timeouts work."""
    server, clock = await present(servers.with_clock())
    await server.start()
    conn = await connect(server)
    await conn.execute("select pg_advisory_lock(1)")
    for seconds in (3600, -7200, 3600):
        clock.jump(seconds)
        other = await connect(server)
        for one in (conn, other):
            servers_time = await one.fetchval("select clock_timestamp()")
            assert abs((servers_time - datetime.now(UTC)).total_seconds() - clock.ahead) < 5
        for timeout, error in TIMEOUTS.items():
            began = time.monotonic()
            with pytest.raises(error):
                await other.execute(f"set {timeout} = '100ms'; select pg_advisory_lock(1)")
            assert 0.1 <= time.monotonic() - began < 5
            await other.execute(f"reset {timeout}")
        await other.close()
    await conn.close()
    await server.restart()
    await server.remove()


async def test_resources_can_be_hogged(servers: Servers, server: Server) -> None:
    """A hog takes all connections, leaves a prepared transaction, or keeps a transaction open."""
    dsn = server.dsn(user=USER)
    async with all_connections(dsn, leave=1) as count:
        assert count > 80
        last: Any = await asyncpg.connect(dsn)
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await asyncpg.connect(dsn)
        assert await server.is_up()
        await last.close()
    await prepare(server.dsn(), "mine", ["create table prepared (id integer)"])
    assert await server.ask("select gid from pg_prepared_xacts") == "mine"
    await server.restart("immediate")
    await finish_prepared(server.dsn(), "mine", commit=True)
    assert await server.ask("select count(*) from prepared", database="postbus") == 0
    async with open_transaction(dsn) as conn:
        assert conn.is_in_transaction()


_RUN = """
import asyncio
from faults.servers.run import Servers

async def main():
    server = await Servers().new()
    await server.start()
    print(server.home.path, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_servers_end_with_a_killed_run() -> None:
    """The next run removes the folder of the killed one."""
    run = subprocess.Popen([sys.executable, "-c", _RUN], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    home = Path((await asyncio.to_thread(run.stdout.readline)).strip())
    run.stdout.close()
    postmaster = int((home / "pgdata/postmaster.pid").read_text().splitlines()[0])
    pids = [postmaster, *(child.pid for child in psutil.Process(postmaster).children())]
    os.kill(run.pid, signal.SIGKILL)
    run.wait()

    async def all_have_ended() -> None:
        assert all(has_ended(pid) for pid in pids)

    await eventually(all_have_ended)
    await Servers().close()
    assert not home.parent.exists()
