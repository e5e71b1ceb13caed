"""Every driver reports the end of a transaction, whether it commits or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.drivers import PROGRAMS, Program
from postbus import Bus
from postbus._drivers.known import driver_of
from support.eventually import eventually


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


@pytest.fixture(params=list(PROGRAMS))
async def program(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[Program]:
    """Run a program with each driver in turn."""
    async with PROGRAMS[request.param](dsn) as opened:
        yield opened


@pytest.mark.parametrize("is_committed", [True, False])
async def test_end_of_a_transaction_is_reported_once(
    bus: Bus, program: Program, topic: str, is_committed: bool
) -> None:
    """The report comes after a ROLLBACK as after a COMMIT, and not before."""
    told: list[str] = []

    def listen(name: str) -> Any:
        return driver_of(program.conn).when_ended(program.conn, lambda: told.append(name))

    async def is_told() -> None:
        assert told == ["first", "second"]

    await program.begin()
    await program.publish(bus, topic, 1)
    await program.call(lambda: listen("first"))
    await program.publish(bus, topic, 2)
    await program.call(lambda: listen("second"))
    assert told == []
    await (program.commit if is_committed else program.rollback)()

    await eventually(is_told)
    await program.begin()
    await program.publish(bus, topic, 3)
    await program.rollback()
    await is_told()
