"""A database that the examples of a property share: each example has its own topic in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from property.world import World


@pytest.fixture
def world(dsn: str) -> Iterator[World]:
    """Provide a connection for state machines, which are not asynchronous: with an event loop of its own."""
    with asyncio.Runner() as runner:
        conn = runner.run(asyncpg.connect(dsn))
        yield World(runner, conn)
        runner.run(conn.close())
