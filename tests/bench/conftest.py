"""Quick runs on the server of the tests."""

from __future__ import annotations

from functools import partial

import pytest

from postbus.embedded import EmbeddedPostgres
from support.bench_reports import Quick, quick_report


@pytest.fixture(scope="session")
def quick(server: EmbeddedPostgres) -> Quick:
    """Quick runs in databases on the server of the tests, so that none of them has to start a server."""
    return partial(quick_report, dsn=server.dsn())
