"""Real servers for the sinks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from postbus.bench.peers import servers


@pytest.fixture
async def nats_server() -> AsyncIterator[servers.Server]:
    """A NATS server with JetStream."""
    async with servers.nats() as server:
        yield server
