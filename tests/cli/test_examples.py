"""The examples run, and do what they say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.helpers import finish, start
from postbus import Bus

EXAMPLES = Path(__file__).parents[2] / "examples"


async def run(name: str, dsn: str) -> list[str]:
    process = await start(program=(sys.executable, str(EXAMPLES / name)), env={"POSTBUS_DSN": dsn})
    return (await finish(process)).done().out.splitlines()


async def test_order_service(dsn: str) -> None:
    """Handlers see the committed orders, and no others."""
    said = await run("order_service.py", dsn)

    assert said[0] == "rolled back: nobody cannot order"
    assert sorted(said[1:]) == ["thank you for order 1, ada", "thank you for order 3, eve"]


async def test_exactly_once(dsn: str) -> None:
    """The failed attempt leaves no trace, so that the amount is booked once."""
    said = await run("exactly_once.py", dsn)

    assert said[1:] == ["booked", "balance: 150"]


async def test_sqlalchemy_publisher(dsn: str, bus: Bus) -> None:
    """Only the message of the committed session exists."""
    (said,) = await run("sqlalchemy_publisher.py", dsn)

    (row,) = await bus.admin.messages("users.registered")
    assert said == f"published message {row.id}"
    assert row.payload == b'{"id":1,"name":"ada"}'


async def test_order_events(dsn: str) -> None:
    """Each group gets every event, and a failed one comes later, but before the next of its order."""
    said = await run("order_events.py", dsn)

    mails = [line for line in said if line.startswith("email: order")]
    assert len(mails) == 6
    for order in (1, 2, 3):
        kinds = [line.rpartition(" ")[2] for line in mails if f"order {order} " in line]
        assert kinds == ["placed", "paid"]
    assert said[6:] == [
        "inventory: 9 pieces of coffee",
        "inventory: 8 pieces of tea",
        "analytics: 0 before it",
        "email: 0 before it",
        "inventory: 0 before it",
    ]


async def test_license_notifications(dsn: str, bus: Bus, conn: Any) -> None:
    """Each event makes one notification, though one delivery fails after its insert and all are repeated."""
    said = await run("license_notifications.py", dsn)

    assert said[:2] == [
        "failing after the insert: it is undone, and the event comes again",
        "all events were delivered again",
    ]
    assert sorted(said[2:]) == [
        "admin: license 1 waits for a review",
        "admin: license 2 waits for a review",
        "store 7: license 1 is verified",
        "store 8: license 2 is rejected: the scan is not readable",
    ]
    assert await conn.fetchval("select count(*) from postbus.inbox where consumer = 'compliance'") == 4
    assert [row["status"] for row in await conn.fetch("select status from license order by id")] == [
        "verified",
        "rejected",
    ]
    events = await bus.admin.log("domain-events")
    assert [(row.key, json.loads(row.payload)["status"]) for row in events] == [
        ("1", "pending"),
        ("1", "verified"),
        ("2", "pending"),
        ("2", "rejected"),
    ]


async def test_relay_events(dsn: str, bus: Bus) -> None:
    """Events of committed transactions reach the sink in order, with their metadata."""
    said = await run("relay_events.py", dsn)

    first, second = await bus.admin.log("shop.orders")
    assert said == [
        "connected",
        f'orders.placed: {{"amount":150}} of order 7, event {first.event_id}',
        f'orders.paid: {{"amount":150}} of order 7, event {second.event_id}',
        "disconnected",
    ]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_has_a_test(path: Path) -> None:
    """No example is left out here."""
    assert f"test_{path.stem}" in globals()
