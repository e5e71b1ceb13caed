"""A real Redis for the tests that need one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from bench.peers import servers
from bench.peers.system import Absent


@pytest.fixture
async def redis_url() -> AsyncIterator[str]:
    """Start a Redis of the test's own that syncs each write."""
    try:
        async with servers.redis() as server:
            yield server.address
    except Absent as absent:
        pytest.skip(str(absent))


@pytest.fixture
async def redis_client(redis_url: str) -> AsyncIterator[Any]:
    """Open a client of it."""
    async with redis.asyncio.from_url(redis_url) as client:
        yield client
