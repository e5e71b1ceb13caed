"""Starting, stopping, losing the database, and coming back."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from postbus import Bus, InvalidHandler
from postbus._db.connect import connect
from postbus._wakeup.listener import Listener
from postbus._wakeup.waiters import Wakers
from postbus.embedded import EmbeddedPostgres
from support.eventually import eventually
from support.queue_sql import states
from support.running import Endless, running, send_surely


async def test_stop_drains_a_queue(bus: Bus, conn: Any) -> None:
    """Running handlers finish and settle, and messages that have not begun are released with their attempts."""
    begun, finish = asyncio.Event(), asyncio.Event()

    @bus.subscribe("t", concurrency=1, batch=1)
    async def handle(payloads: list[list[int]]) -> None:
        begun.set()
        await finish.wait()

    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", [[n] for n in range(5)])
    run = asyncio.create_task(bus.run())
    await begun.wait()
    bus.stop()
    finish.set()

    assert await run is True
    assert await states(conn) == {"waiting": 4}
    assert {row["attempts"] for row in await conn.fetch("select attempts from postbus.queued")} == {0}


async def test_second_stop_aborts_a_queue(bus: Bus, conn: Any) -> None:
    """Handlers are cancelled without using up an attempt, and their messages are released."""
    endless = Endless()
    bus.subscribe("t")(endless.handle)
    await bus.send("t", 1)

    assert await endless.is_stopped_twice(bus) is False
    assert endless.cancelled.is_set()
    assert await states(conn) == {"waiting": 1}
    assert await conn.fetchval("select attempts from postbus.queued") == 0


async def test_stopping_an_unstarted_bus_is_safe(bus: Bus) -> None:
    """A bus can be stopped before it runs, and run again after it was stopped."""
    bus.stop()

    @bus.subscribe("t")
    async def handle(payload: Any) -> None: ...

    for _ in range(3):
        async with running(bus):
            pass


async def test_running_without_a_handler_is_refused(bus: Bus) -> None:
    """There is nothing to run."""
    with pytest.raises(InvalidHandler, match="no handler"):
        await bus.run()


async def test_bug_in_the_worker_ends_it(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that does not mean an unavailable database is not retried in silence."""

    @bus.subscribe("t")
    async def handle(payload: Any) -> None: ...

    async def broken(self: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("postbus._maintenance.sweeper.Sweeper.sweep", broken)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(bus.run(), 10)


async def test_workers_are_listed_while_they_run(bus: Bus) -> None:
    """A heartbeat shows the process and its topics, and the process signs off when it stops."""

    @bus.subscribe("t")
    async def handle(payload: Any) -> None: ...

    async def listed() -> None:
        assert [worker.topics for worker in await bus.admin.workers()] == [["t"]]

    async with running(bus):
        await eventually(listed)
    assert await bus.admin.workers() == []


async def send(bus: Bus, n: int) -> None:
    await send_surely(bus, {"n": n}, dedup_key=str(n))


async def test_worker_survives_cut_connections(bus: Bus, conn: Any) -> None:
    """Every connection is cut repeatedly while messages flow, and all messages are handled."""
    got: set[int] = set()

    @bus.subscribe("t", concurrency=4, lease="2s")
    async def handle(payload: Any) -> None:
        got.add(payload["n"])

    async def all_handled() -> None:
        assert got == set(range(60))

    async def started() -> None:
        assert await bus.admin.workers()

    async with running(bus):
        await eventually(started)
        for round_number in range(6):
            sends = asyncio.gather(*(send(bus, round_number * 10 + n) for n in range(10)))
            await conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
            await sends
        await eventually(all_handled, within=40)


@pytest.mark.parametrize("turns", range(5))
async def test_listener_reconnects_when_its_connection_ends_at_once(
    dsn: str, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """This holds whatever the driver has seen of the end when the first statement is sent."""
    ended = 0

    async def connect_in_vain(*args: Any, **options: Any) -> Any:
        nonlocal ended
        conn = await connect(*args, **options)
        if ended < 3:
            ended += 1
            with psycopg.connect(dsn, autocommit=True) as other:  # blocks the loop, so that the end waits to be read
                other.execute("select pg_terminate_backend(%s, 5000)", [conn.get_server_pid()])
            for _ in range(turns):
                await asyncio.sleep(0)
        return conn

    monkeypatch.setattr("postbus._wakeup.listener.connect", connect_in_vain)
    wakers, waker, stop = Wakers(), asyncio.Event(), asyncio.Event()
    wakers.register("t", waker)
    listening = asyncio.create_task(Listener(dsn, wakers).run(stop))
    await asyncio.wait([listening, asyncio.ensure_future(waker.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert (waker.is_set(), ended) == (True, 3)
    stop.set()
    await listening


async def refused(dsn: str) -> None:
    """Check that the server accepts no connection."""
    try:
        conn: Any = await asyncpg.connect(dsn)
    except (OSError, asyncpg.PostgresError):
        return
    await conn.close()
    raise AssertionError("the server still answers")


async def test_worker_waits_for_a_killed_server(own_folder: Path) -> None:
    """The server is killed under a running worker and started again, and the worker continues by itself."""
    got: set[int] = set()

    async def handled(n: int) -> None:
        assert n in got

    home = own_folder / "pg"
    with EmbeddedPostgres.start(home) as server:
        async with Bus(server.dsn(), migrate=True) as bus:

            @bus.subscribe("t")
            async def handle(payload: Any) -> None:
                got.add(payload["n"])

            async with running(bus):
                await send(bus, 1)
                await eventually(handled, 1)
                os.kill(int((home / "pgdata" / "postmaster.pid").read_text().splitlines()[0]), signal.SIGKILL)
                await eventually(refused, server.dsn())
                with EmbeddedPostgres.start(home):
                    await send(bus, 3)
                    await eventually(handled, 3, within=30)
                    bus.stop()
