"""Handlers annotated with events: which ones they get, which not, and which become dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postbus import Bus, InvalidHandler, Message, Retry, Start
from postbus.events import emission
from support.eventually import eventually
from support.grouping import SOON, create_log, has, is_through
from support.licensing import LicenseExpired, LicensePrinted, LicenseStatusChanged, headers
from support.running import running

CHANGED = LicenseStatusChanged(1, "pending")
_REASONS = {
    "unknown": "event type 'unheard_of' is not in the registry (register it, or publish by bus.emit())",
    "plain": "the message has no header event-type (register it, or publish by bus.emit())",
    "invalid": "the payload of event 'license_status_changed' is invalid: Invalid enum value 'lost' - at `$.status` "
    "(publish what its class declares; bus.emit() checks that)",
    "newer": "event 'license_status_changed' has version 9, which is not known here "
    "(register an upcaster, or update this program; it knows 1, 2)",
}


async def publish_bad_ones(bus: Bus) -> None:
    """Publish by hand, as a program in another language might."""
    for payload, told in (
        ({}, headers("unheard_of")),
        ({}, {}),
        ({"license_id": 1, "status": "lost"}, headers()),
        ({}, headers(version=9)),
    ):
        await bus.send("licenses", payload, headers=told)


async def emit(bus: Bus, *events: Any) -> None:
    async with bus.transaction() as conn:
        for event in events:
            await bus.emit(conn, event, aggregate_id=1)


async def reasons(bus: Bus) -> list[str]:
    return sorted(row.reason or "" for row in await bus.admin.dead_letters("licenses"))


async def are_given_up(bus: Bus, count: int) -> list[str]:
    async def as_many() -> list[str]:
        found = await reasons(bus)
        assert len(found) == count, found
        return found

    return await eventually(as_many)


Register = Callable[[Bus, list[Any], dict[str, Any]], None]


def plain(bus: Bus, got: list[Any], options: dict[str, Any]) -> None:
    @bus.subscribe("licenses", **options)
    async def handle(event: LicenseStatusChanged) -> None:
        got.append(event)


def with_message(bus: Bus, got: list[Any], options: dict[str, Any]) -> None:
    @bus.subscribe("licenses", **options)
    def handle(event: LicenseStatusChanged, message: Message) -> None:
        got.append(event)


def batches(bus: Bus, got: list[Any], options: dict[str, Any]) -> None:
    @bus.subscribe("licenses", batch=10, **options)
    async def handle(events: list[LicenseStatusChanged], messages: list[Message]) -> None:
        got.extend(events)


def transactional(bus: Bus, got: list[Any], options: dict[str, Any]) -> None:
    @bus.subscribe("licenses", transactional=True, **options)
    async def handle(event: LicenseStatusChanged, conn: Any) -> None:
        got.append(event)


def transactional_batches(bus: Bus, got: list[Any], options: dict[str, Any]) -> None:
    @bus.subscribe("licenses", transactional=True, batch=10, **options)
    async def handle(events: list[LicenseStatusChanged], conn: Any) -> None:
        got.extend(events)


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("register", [plain, with_message, batches, transactional, transactional_batches])
async def test_invalid_event_becomes_a_dead_letter_at_once(bus: Bus, register: Register, group: str | None) -> None:
    """The dead letter has the reason after one attempt; valid events come, older versions upcast."""
    if group:
        await create_log(bus, "licenses", lanes=1)
    await publish_bad_ones(bus)
    await bus.send("licenses", {"id": 5, "status": "verified"}, headers=headers(version=1))
    await emit(bus, CHANGED)
    got: list[Any] = []
    register(bus, got, {"group": group, "start": Start.BEGINNING} if group else {})

    async with running(bus):
        await has(got, 2)
        assert await are_given_up(bus, 4) == sorted(_REASONS.values())
    assert got == [LicenseStatusChanged(5, "verified"), CHANGED]
    assert {row.attempts for row in await bus.admin.dead_letters("licenses")} == {1}


async def test_group_gets_the_events_that_its_handler_takes(bus: Bus, conn: Any) -> None:
    """Other registered events count as filtered, and members of one group may take different ones."""
    await create_log(bus, "licenses")
    changed: list[Any] = []
    expired: list[Any] = []
    both: list[Any] = []
    odd: list[Any] = []

    async def on_change(event: LicenseStatusChanged) -> None:
        changed.append(event)

    async def on_expiry(event: LicenseExpired) -> None:
        expired.append(event)

    members = bus.group("members", "licenses")
    members.add_member("changes", on_change)
    members.add_member("expiries", on_expiry)
    await members.start(Start.BEGINNING)

    @bus.subscribe("licenses", group="both", start=Start.BEGINNING)
    async def on_either(event: LicenseStatusChanged | LicenseExpired) -> None:
        both.append(event)

    @bus.subscribe("licenses", group="odd", start=Start.BEGINNING, filter=lambda message: message.key != "1")
    async def on_odd(event: LicenseExpired) -> None:
        odd.append(event)

    await emit(bus, CHANGED, LicensePrinted(3), LicenseExpired(1))
    async with running(bus):
        for group in ("members", "both", "odd"):
            await is_through(conn, group, "licenses")
    assert (changed, expired, both, odd) == ([CHANGED], [LicenseExpired(1)], [CHANGED, LicenseExpired(1)], [])
    assert members.filtered == 1
    assert await reasons(bus) == []


async def test_event_can_be_sent_without_a_transaction(bus: Bus) -> None:
    """The registry makes the message, and `bus.send` publishes it."""
    got: list[Any] = []
    plain(bus, got, {})
    await bus.send(*emission(CHANGED, aggregate_id=1))

    async with running(bus):
        await has(got, 1)
    assert got == [CHANGED]


async def test_queue_gives_up_events_that_its_handler_does_not_take(bus: Bus) -> None:
    """A queue has only the one handler, so nobody else could take the event."""
    await emit(bus, LicenseExpired(1), CHANGED)
    got: list[Any] = []
    plain(bus, got, {})

    async with running(bus):
        await has(got, 1)
        [reason] = await are_given_up(bus, 1)
    assert reason == (
        "event 'license_expired' is not one that this handler accepts "
        "(it accepts license_status_changed; annotate it with a union of event classes)"
    )


async def test_retried_event_is_checked_again(bus: Bus, conn: Any) -> None:
    """A group's second attempt gets the same event."""
    await create_log(bus, "licenses")
    got: list[Any] = []

    @bus.subscribe("licenses", group="g", start=Start.BEGINNING, retry=SOON)
    async def handle(event: LicenseStatusChanged, message: Message) -> Retry | None:
        got.append((event, message.attempt))
        return Retry(delay=0) if message.attempt == 1 else None

    await emit(bus, CHANGED)
    async with running(bus):
        await is_through(conn, topic="licenses")
    assert got == [(CHANGED, 1), (CHANGED, 2)]


async def test_redriven_event_is_decoded_by_the_current_registry(bus: Bus, conn: Any) -> None:
    """A dead letter is handled after the reason for it is gone."""
    await create_log(bus, "licenses")
    got: list[Any] = []
    plain(bus, got, {"group": "g", "start": Start.BEGINNING})
    await bus.send("licenses", {"license_id": 1, "status": "lost"}, headers=headers())
    async with running(bus):
        await are_given_up(bus, 1)
        await conn.execute("""update postbus.dead_letter set payload = '{"license_id": 1, "status": "pending"}'""")
        await bus.admin.redrive("licenses", group="g")
        await has(got, 1)
    assert got == [CHANGED]


def test_handler_of_events_and_other_types_is_refused() -> None:
    """The error is raised at registration."""

    async def mixed(event: LicenseStatusChanged | int) -> None: ...

    with pytest.raises(InvalidHandler, match="union of events"):
        Bus("postgresql://nobody@localhost/nowhere").subscribe("licenses")(mixed)
