"""Servers that a test may hurt."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from faults.servers.run import Servers


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Servers that share a template. Neither they nor their folder remain when the tests have ended."""
    made = Servers()
    yield made
    asyncio.run(made.close())
    assert not made.folder.exists()


@pytest.fixture
def seed() -> str:
    """Return the seed of chance events: the same in each run, unless another one is requested."""
    return os.environ.get("POSTBUS_FAULTS_SEED", "1")
