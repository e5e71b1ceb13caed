"""A client of a real server on the test's database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from http_api.serving import serving
from postbus import Bus
from postbus.http_client import HttpBus


@pytest.fixture
async def url(bus: Bus) -> AsyncIterator[str]:
    """Return the address of a server without authentication."""
    async with serving(bus) as address:
        yield address


@pytest.fixture
async def http(url: str) -> AsyncIterator[HttpBus]:
    """Open a client of it."""
    async with HttpBus(url) as opened:
        yield opened
