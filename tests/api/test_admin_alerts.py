"""Alerts: stuck messages, messages that no group needs, and inconsistencies."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from postbus import Bus, CatchUp, InvalidGroup, Start
from support.grouping import create_log
from support.log_sql import let_die


async def subscribed(bus: Bus, *groups: str, start: Start = Start.NOW) -> list[int]:
    store = await bus.connect()
    return [(await store.subscribe("t", group, start, "block", CatchUp(beside_from=1))).id for group in groups]


async def pass_time(conn: Any, hours: int = 2) -> None:
    """Make everything older."""
    await conn.execute("update postbus.segment set published_at = published_at - $1 * interval '1 hour'", hours)
    await conn.execute("update postbus.subscription set subscribed_at = subscribed_at - $1 * interval '1 hour'", hours)


async def stuck(bus: Bus, **options: Any) -> list[tuple[str, list[str], int]]:
    await (await bus.connect()).sweep_log()
    return [(one.topic, one.groups, one.messages) for one in await bus.admin.stuck_messages(**options)]


async def test_messages_that_live_groups_have_not_settled_are_stuck(bus: Bus, conn: Any) -> None:
    """Messages count after an hour, or after the given age: by topic, with groups, number and the oldest."""
    await create_log(bus)
    await subscribed(bus, "a", "b")
    for n in range(3):
        await bus.send("t", n)
    assert await stuck(bus) == []
    await pass_time(conn)

    assert await stuck(bus) == [("t", ["a", "b"], 3)]
    assert await stuck(bus, older_than=timedelta(hours=3)) == []
    [row] = await bus.admin.stuck_messages()
    assert row.oldest_at == min(one.published_at for one in await bus.admin.log("t"))
    await bus.admin.seek("t", "a", Start.NOW)
    assert await stuck(bus) == [("t", ["b"], 3)]
    await conn.execute("update postbus.subscription set state = 'DEAD'")
    assert await stuck(bus) == [], "nothing waits for the dead"


async def test_messages_retried_for_long_are_stuck_too(bus: Bus, conn: Any) -> None:
    """A deferred message counts as stuck from its publishing time."""
    await create_log(bus)
    [group] = await subscribed(bus, "a")
    await conn.execute(
        "insert into postbus.deferred (subscription_id, lane, id, sequence, published_at, content_type, payload) "
        "values ($1, 0, 1, 1, clock_timestamp() - interval '2 hours', 'text/plain', '')",
        group,
    )
    await pass_time(conn)
    assert await stuck(bus) == [("t", ["a"], 1)]


async def test_group_that_has_just_begun_with_history_is_not_stuck(bus: Bus, conn: Any) -> None:
    """The age counts from the subscription if the messages are older."""
    await create_log(bus)
    await bus.send("t", 1)
    await pass_time(conn)
    await subscribed(bus, "a", start=Start.BEGINNING)
    assert await stuck(bus) == []


async def test_messages_without_any_group_are_reported(bus: Bus, conn: Any) -> None:
    """Messages that no group was ever required for are counted, also after a group joins later."""
    await create_log(bus)
    await create_log(bus, "empty")
    await bus.admin.create_topic("queue")
    await bus.send("queue", 1)
    assert await bus.admin.zero_subscription_messages() == []
    for n in range(3):
        await bus.send("t", n)
    [row] = await bus.admin.zero_subscription_messages()
    assert (row.topic, row.messages) == ("t", 3)
    assert row.oldest_at == min(one.published_at for one in await bus.admin.log("t"))
    await subscribed(bus, "late")
    assert [row.messages for row in await bus.admin.zero_subscription_messages()] == [3]
    await subscribed(bus, "a", start=Start.BEGINNING)
    await bus.admin.pause_group("t", "a")
    assert await bus.admin.zero_subscription_messages() == []


async def test_stopped_group_leaves_its_messages_unreported(bus: Bus, conn: Any) -> None:
    """If a group dies or is removed, messages that it was required for are not reported; later ones are."""
    await create_log(bus)
    await subscribed(bus, "a")
    await bus.send("t", 1)
    storage = await conn.fetchval("select storage_id from postbus.topic where name = 't'")
    assert await let_die(conn, storage) == 1
    assert await bus.admin.zero_subscription_messages() == []
    await bus.send("t", 2)
    assert [row.messages for row in await bus.admin.zero_subscription_messages()] == [1]
    assert (await bus.admin.remove_group("t", "a", wait=0)).removed
    assert [row.messages for row in await bus.admin.zero_subscription_messages()] == [1]


# Inconsistencies, and how they are reported.
DAMAGE = {
    "delete from postbus.subscription where id = {group}": [
        ("lane", "lane 0 belongs to a subscription that has ended or is not there"),
        ("lane", "lane 1 belongs to a subscription that has ended or is not there"),
        ("catch-up", "it is in progress, and the group it is for has ended or is not there"),
    ],
    "update postbus.subscription set state = 'CANCELLED' where id = {group}": [
        ("lane", "lane 0 belongs to a subscription that has ended or is not there"),
        ("lane", "lane 1 belongs to a subscription that has ended or is not there"),
        ("catch-up", "it is in progress, and the group it is for has ended or is not there"),
    ],
    "delete from postbus.lane where subscription_id = {group} and lane = 1": [
        ("subscription", "it has 1 of the 2 lanes of its topic"),
        ("cursor", "there are cursors of lane 1, and no such lane"),
    ],
    "delete from postbus.cursor where subscription_id = {group} and lane = 1": [("lane", "lane 1 has no cursor")],
    "insert into postbus.deferred (subscription_id, lane, id, sequence, published_at, content_type, payload) "
    "values (0, 0, 1, 1, now(), 'text/plain', '')": [
        ("deferred", "1 deferred messages belong to a subscription that has ended or is not there")
    ],
    "update postbus.subscription set state = 'CANCELLED' where catch_up_of = {group}": [
        ("lane", "lane 0 belongs to a subscription that has ended or is not there"),
        ("lane", "lane 1 belongs to a subscription that has ended or is not there"),
        ("catch-up", "it is in progress, and the subscription that reads it has ended or is not there"),
    ],
    "update postbus.subscription set topic_id = 7 where id = {group}": [
        ("subscription", "its topic is not there, or is a QUEUE")
    ],
}


@pytest.fixture
async def group(bus: Bus) -> int:
    """Return a group that is catching up."""
    await create_log(bus, lanes=2)
    for n in range(4):
        await bus.send("t", n)
    [id] = await subscribed(bus, "g", start=Start.BEGINNING)
    return id


@pytest.mark.parametrize("damage", DAMAGE)
async def test_each_inconsistency_is_reported(bus: Bus, conn: Any, group: int, damage: str) -> None:
    """Each kind of damage is found with its kind and explanation."""
    assert await bus.admin.inconsistencies() == []
    await conn.execute(damage.format(group=group))
    found = await bus.admin.inconsistencies()
    assert sorted((one.kind, one.explanation) for one in found) == sorted(DAMAGE[damage])


async def no_history_goes_on(bus: Bus) -> None:
    with pytest.raises(InvalidGroup, match="is not catching up"):
        await bus.admin.resume_catch_up("t", "g")


async def test_group_operations_leave_no_inconsistency(bus: Bus, conn: Any, group: int) -> None:
    """Pausing, cancelling and resuming a catch-up, seeking, ending and removing keep the tables consistent."""
    admin = bus.admin
    for act in (
        lambda: admin.pause_group("t", "g"),
        lambda: admin.resume_group("t", "g"),
        lambda: admin.cancel_catch_up("t", "g"),
        lambda: admin.resume_catch_up("t", "g"),
        lambda: admin.seek("t", "g", Start.BEGINNING),
        lambda: no_history_goes_on(bus),
        lambda: admin.force_complete("t", timedelta(0)),
        lambda: admin.cancel_group("t", "g"),
        lambda: admin.remove_group("t", "g"),
    ):
        await act()
        await (await bus.connect()).sweep_log()
        assert await admin.inconsistencies() == []
