"""A server on the test's database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from http_api.serving import client, serving
from postbus import Bus


@pytest.fixture
async def http(bus: Bus) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client of a server without authentication."""
    async with serving(bus) as url, client(url) as opened:
        yield opened
