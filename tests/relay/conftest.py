"""Real servers for the sinks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bench.peers import servers
from bench.peers.system import Absent
from cli.conftest import cli, end_what_was_started

__all__ = ["cli", "end_what_was_started"]


@pytest.fixture
async def nats_server() -> AsyncIterator[servers.Server]:
    """Start a NATS server with JetStream."""
    async with servers.nats() as server:
        yield server


@pytest.fixture
async def redis_server() -> AsyncIterator[servers.Server]:
    """Start a Redis that syncs each write."""
    try:
        async with servers.redis() as server:
            yield server
    except Absent as absent:
        pytest.skip(str(absent))


@pytest.fixture
async def rabbit_server() -> AsyncIterator[servers.Server]:
    """Start a RabbitMQ node."""
    try:
        async with servers.rabbitmq() as server:
            yield server
    except Absent as absent:
        pytest.skip(str(absent))
