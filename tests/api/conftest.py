"""A program for each driver, and a database that the tests of a module share."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from api.drivers import PROGRAMS, Program
from api.ear import Ear
from postbus._wakeup.listener import Listener
from postbus._wakeup.waiters import Wakers
from postbus.embedded import EmbeddedPostgres
from support.fix_database import Connect, _make_template


@pytest.fixture(scope="module")
def module_dsn(server: EmbeddedPostgres) -> Iterator[str]:
    """Create a database for tests that need none of their own: each has its own topic in it."""
    name = f"module_{secrets.token_hex(8)}"
    asyncio.run(_on(server, f"create database {name} template postbus_template"))
    yield server.dsn(name)
    asyncio.run(_on(server, f"drop database {name} with (force)"))


async def _on(server: EmbeddedPostgres, sql: str) -> None:
    root: Any = await asyncpg.connect(server.dsn())
    await _make_template(root, server)
    await root.execute(sql)
    await root.close()


@pytest.fixture
def topic() -> str:
    """Return a topic that no other test uses."""
    return f"topic-{secrets.token_hex(8)}"


@pytest.fixture(params=PROGRAMS)
async def program(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[Program]:
    """Run a publishing program with each driver in turn."""
    async with PROGRAMS[request.param](dsn) as opened:
        yield opened


@pytest.fixture
async def ear(dsn: str, conn: Any, topic: str) -> AsyncIterator[Ear]:
    """Listen for the test's topic."""
    wakers = Wakers()
    heard = Ear(wakers, conn)
    heard.listen(topic)
    stop = asyncio.Event()
    listening = asyncio.create_task(Listener(dsn, wakers).run(stop))
    await heard.hears(topic)  # a new listener wakes itself once
    yield heard
    stop.set()
    await listening


@pytest.fixture
async def rung_after_commit(connect: Connect) -> None:
    """Make the wake-up come after the commit, because another session holds the turn to notify."""
    await (await connect()).execute("select pg_advisory_lock(hashtext('postbus.wake'))")


@pytest.fixture(params=[None, "rung_after_commit"])
def rung(request: pytest.FixtureRequest) -> None:
    """Wake consumers by the commit, or afterwards."""
    if request.param is not None:
        request.getfixturevalue(request.param)
