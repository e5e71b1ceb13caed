"""Programs without an event loop: they wake consumers, and end when they want to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from api.drivers import psycopg_sync
from api.ear import Ear
from postbus import Bus
from support.eventually import eventually

pytestmark = pytest.mark.usefixtures("rung_after_commit")


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


_PROGRAM = """
import sys
import psycopg
from postbus import Bus

dsn, topic, ending = sys.argv[1:]
bus = Bus.open(dsn)
with psycopg.connect(dsn) as conn:
    bus.publish(conn, topic, "x")
if ending == "close":
    bus.close_sync()
elif ending == "wait":
    sys.stdin.read()
"""


def _notifiers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "postbus-notifier"]


async def _publish(program: Any, bus: Bus, topic: str) -> None:
    await program.publish(bus, topic, "x")
    await program.commit()


@pytest.mark.parametrize("ending", ["close", "wait"])
async def test_plain_program_wakes_consumers(dsn: str, ear: Ear, topic: str, ending: str) -> None:
    """A program with psycopg wakes consumers, and ends by itself whether it closes the bus or not."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", _PROGRAM, dsn, topic, ending,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    await ear.hears(topic, within=10)

    output, _ = await asyncio.wait_for(process.communicate(b""), 10)

    assert (process.returncode, output) == (0, b"")


async def test_program_that_ends_at_once_does_not_hang(dsn: str, conn: Any, topic: str) -> None:
    """A program that publishes and ends, without closing anything, has published."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", _PROGRAM, dsn, topic, "nothing",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip

    output, _ = await asyncio.wait_for(process.communicate(), 10)

    assert (process.returncode, output) == (0, b"")
    assert await conn.fetchval("select count(*) from postbus.messages where topic = $1", topic) == 1


async def test_close_sync_ends_the_notifier_thread(dsn: str, ear: Ear, topic: str) -> None:
    """The thread lives from the first commit to `close_sync()`, which may be called twice."""
    bus = Bus(dsn)
    async with psycopg_sync(dsn) as program:
        await _publish(program, bus, topic)
        await ear.hears(topic)
        assert len(_notifiers()) == 1

        await program.call(bus.close_sync)
        assert not _notifiers()
        await program.call(bus.close_sync)


async def test_close_sync_notifies_for_the_last_commit(dsn: str, ear: Ear, topic: str) -> None:
    """Calling it right after a commit loses no wake-up."""
    bus = Bus(dsn)
    async with psycopg_sync(dsn) as program:

        def publish_and_close() -> None:
            bus.publish(program.conn, topic, "x")
            program.conn.commit()
            bus.close_sync()

        await program.call(publish_and_close)

        await ear.hears(topic)


async def test_closed_bus_starts_no_thread_again(dsn: str, conn: Any, topic: str) -> None:
    """A transaction that ends after the close publishes, and leaves nothing running."""
    bus = Bus(dsn)
    async with psycopg_sync(dsn) as program:
        await program.publish(bus, topic, "x")
        await program.call(bus.close_sync)
        await program.commit()
        await program.publish(bus, topic, "y")
        await program.commit()

        async def nobody_watches() -> None:
            assert not [one for one in threading.enumerate() if one.name == "postbus-watch"]

        await eventually(nobody_watches)
        assert not _notifiers()
    assert await conn.fetchval("select count(*) from postbus.messages where topic = $1", topic) == 2


async def test_notifier_thread_survives_a_lost_connection(dsn: str, conn: Any, ear: Ear, topic: str) -> None:
    """The next commit is notified over a new connection."""
    bus = Bus(dsn)
    async with psycopg_sync(dsn) as program:
        await _publish(program, bus, topic)
        await ear.hears(topic)
        ended = await conn.fetchval(
            "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity "
            "where datname = current_database() and query like 'select %pg_notify(%' and pid <> pg_backend_pid()"
        )
        assert ended == 1

        await _publish(program, bus, topic)

        await ear.hears(topic)
        await program.call(bus.close_sync)


async def test_unreachable_server_does_not_harm_publishing(dsn: str, conn: Any, topic: str) -> None:
    """A bus that cannot notify publishes all the same, and can be closed."""
    bus = Bus("postgresql://nobody@127.0.0.1:1/nowhere")
    async with psycopg_sync(dsn) as program:
        await _publish(program, bus, topic)
        await program.call(bus.close_sync)

    assert await conn.fetchval("select count(*) from postbus.messages where topic = $1", topic) == 1


async def test_many_threads_publish_at_once(dsn: str, ear: Ear, topic: str) -> None:
    """Threads share one bus and one notifier thread."""
    bus = Bus(dsn)
    topics = [f"{topic}.{number}" for number in range(8)]
    for one in topics:
        ear.listen(one)

    async def publish(name: str) -> None:
        async with psycopg_sync(dsn) as program:
            for _ in range(5):
                await _publish(program, bus, name)
            await ear.hears(name)

    await asyncio.gather(*(publish(one) for one in topics))

    assert len(_notifiers()) == 1
    await asyncio.to_thread(bus.close_sync)
