"""Emitting events in the caller's transaction, with every driver."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.drivers import Program
from postbus import Bus, InvalidEvent
from support.licensing import LicenseStatusChanged

_UNCHECKED: Any = LicenseStatusChanged  # as in a program without a type checker
_BAD = _UNCHECKED(7, "lost")


async def of(conn: Any, aggregate_id: str) -> list[Any]:
    """Return the messages of an aggregate."""
    return list(await conn.fetch("select * from postbus.messages where topic = 'licenses' and key = $1", aggregate_id))


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


async def test_event_exists_if_and_only_if_its_transaction_commits(
    program: Program, bus: Bus, conn: Any, topic: str
) -> None:
    """It is a message of the registry's topic, with type, version and aggregate in its headers."""
    await program.begin()
    await program.call(lambda: bus.emit(program.conn, LicenseStatusChanged(1, "rejected"), aggregate_id=topic))
    await program.rollback()
    await program.begin()
    event = LicenseStatusChanged(7, "pending")
    message_id = await program.call(
        lambda: bus.emit(program.conn, event, aggregate_id=topic, correlation_id="c", headers={"trace": "t"})
    )
    await program.commit()

    (row,) = await of(conn, topic)
    assert (row["id"], row["payload"], row["correlation_id"]) == (
        message_id,
        b'{"license_id":7,"status":"pending"}',
        "c",
    )
    assert json.loads(row["headers"]) == {
        "event-type": "license_status_changed",
        "event-version": "2",
        "aggregate-type": "license",
        "aggregate-id": topic,
        "trace": "t",
    }


async def test_refused_event_leaves_the_transaction_usable(program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """A bad payload is found before the database is asked, so that the caller can go on."""
    await program.begin()
    with pytest.raises(InvalidEvent, match="is invalid"):
        await program.call(lambda: bus.emit(program.conn, _BAD, aggregate_id=topic))
    await program.call(lambda: bus.emit(program.conn, LicenseStatusChanged(7, "pending"), aggregate_id=topic))
    await program.commit()

    assert len(await of(conn, topic)) == 1
