"""A proxy before the test's database, which breaks or holds up a connection when the test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from faults.servers.proxy import OnCommit, Proxy

__all__ = ["OnCommit", "Proxy", "proxy"]


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[Proxy]:
    """Run a proxy before the test's database."""
    started = Proxy(dsn)
    await started.start()
    yield started
    await started.stop()
