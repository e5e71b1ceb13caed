"""Subscription modes: the start is recorded at a group's first contact, and applies to topics it finds later."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postbus import Bus, Start
from support.grouping import create_log, is_through
from support.running import running
from support.scoping import age, gather, gets


async def test_new_mode_starts_just_before_the_first_contact(bus: Bus) -> None:
    """A new group gets messages from just before its first contact, and later ones."""
    await create_log(bus, "test")
    await bus.send("test", "M1", key="p1")
    got = gather(bus, "cg1", "test", key="p1", mode="new")

    async with running(bus):
        await gets(got, "M1")
        await bus.send("test", "M2", key="p1")
        await gets(got, "M1", "M2")


async def test_new_mode_reads_a_later_partition_from_its_first_message(bus: Bus, conn: Any) -> None:
    """A partition that appears ten minutes later is read from its first message."""
    await create_log(bus, "test")
    await bus.send("test", "M1", key="p1")
    got = gather(bus, "cg1", "test", mode="new")
    async with running(bus):
        await gets(got, "M1")

    await age(conn, 600)
    await bus.send("test", "M2", key="p2")
    await age(conn, 300)
    async with running(bus):
        await gets(got, "M1", "M2")


async def test_later_topic_of_a_namespace_starts_at_the_groups_record(bus: Bus, conn: Any) -> None:
    """A topic created later in the namespace starts at the group's record, not where it is found."""
    await create_log(bus, "q1", namespace="ns1")
    await bus.send("q1", "M1")
    got = gather(bus, "cg1", namespace="ns1", mode="new")
    async with running(bus):
        await gets(got, "M1")

    await create_log(bus, "q2", namespace="ns1")
    await bus.send("q2", "M2")
    await age(conn, 600)
    async with running(bus):
        await gets(got, "M1", "M2")
    [record] = await bus.admin.scopes("cg1")
    assert (record.namespace, record.mode, record.topics) == ("ns1", "new", ["q1", "q2"])


async def test_each_group_has_a_record_of_its_own(bus: Bus, conn: Any) -> None:
    """Each group has its own record: one starts with the history, the other without."""
    await create_log(bus, "test")
    await bus.send("test", "old")
    await age(conn, 60)
    new, everything = gather(bus, "cg1", "test", mode="new"), gather(bus, "cg2", "test", mode="all")

    async with running(bus):
        await gets(everything, "old")
        await bus.send("test", "M1")
        await gets(everything, "old", "M1")
        await gets(new, "M1")
    records = await bus.admin.scopes()
    assert [(one.group_name, one.mode) for one in records] == [("cg1", "new"), ("cg2", "all")]


async def test_topic_found_late_is_read_from_the_record_on(bus: Bus, conn: Any) -> None:
    """A topic and three messages come ten minutes after the record, and the group finds them five minutes later."""
    await create_log(bus, "P1", namespace="orders")
    await bus.send("P1", "before")
    await age(conn, 60)
    got = gather(bus, "cg1", namespace="orders", mode="new")
    async with running(bus):
        await bus.send("P1", "at once")
        await gets(got, "at once")

    await age(conn, 600)
    await create_log(bus, "P2", namespace="orders")
    for payload in ("M1", "M2", "M3"):
        await bus.send("P2", payload)
    await age(conn, 300)
    async with running(bus):
        await gets(got, "at once", "M1", "M2", "M3")


async def test_group_from_before_records_keeps_its_position(bus: Bus, conn: Any) -> None:
    """A group from before records existed keeps its position, and one without a record starts from the beginning."""
    await create_log(bus, "test", namespace="ns")
    await bus.send("test", "M1")
    got = gather(bus, "old", "test", start=Start.BEGINNING)
    async with running(bus):
        await gets(got, "M1")
    assert await bus.admin.scopes("old") == []

    async with Bus.open(bus.dsn) as later:
        again = gather(later, "old", namespace="ns", mode="all")
        first = gather(later, "first", namespace="ns")
        async with running(later):
            await bus.send("test", "M2")
            await gets(first, "M1", "M2")
            await gets(again, "M2")


async def test_each_key_has_a_record_of_its_own(bus: Bus, conn: Any) -> None:
    """Each key has its own record: the second one starts where it says, and the first stays as it is."""
    await create_log(bus, "q")
    for payload, key in (("old p1", "p1"), ("old p2", "p2"), ("old p3", "p3")):
        await bus.send("q", payload, key=key)
    await age(conn, 60)
    got = gather(bus, "cg", "q", key="p1", mode="new")
    async with running(bus):
        await bus.send("q", "new p2", key="p2")
        await bus.send("q", "new p1", key="p1")
        await gets(got, "new p1")
        await is_through(conn, "cg", "q")

        await bus.admin.subscribe_group("cg", "q", key="p2", mode="new")
        await gets(got, "new p1", "new p2")
        await is_through(conn, "cg", "q")  # a message in hand while its lanes are taken away comes again
        await bus.admin.subscribe_group("cg", "q", key="p3", mode="all")
        await gets(got, "new p1", "new p2", "old p3")
        for key in ("p1", "p2", "p3", "p4"):
            await bus.send("q", f"last {key}", key=key)
        await gets(got, "new p1", "new p2", "old p3", "last p1", "last p2", "last p3")
    assert [(one.key, one.mode) for one in await bus.admin.scopes("cg")] == [
        ("p1", "new"),
        ("p2", "new"),
        ("p3", "all"),
    ]


async def test_group_may_start_in_another_mode_per_topic(bus: Bus, conn: Any) -> None:
    """One group may start in another mode in each topic."""
    for topic in ("q1", "q2", "q3"):
        await create_log(bus, topic)
        await bus.send(topic, f"old {topic}")
        await age(conn, 60)
    got = gather(bus, "cg", "q1", mode="new")
    more = gather(bus, "cg", "q2", mode="all")
    half = gather(bus, "cg", "q3", mode="timestamp", start=datetime.now(UTC) - timedelta(seconds=90))

    async with running(bus):
        await gets(more, "old q2")
        await gets(half, "old q3")
        for topic in ("q1", "q2", "q3"):
            await bus.send(topic, f"new {topic}")
        await gets(got, "new q1")
        await gets(more, "old q2", "new q2")
        await gets(half, "old q3", "new q3")


async def test_first_mode_stays_until_its_record_is_forgotten(bus: Bus, conn: Any) -> None:
    """The first mode stays, for later topics too, until its record is forgotten."""
    await create_log(bus, "q1", namespace="ns")
    await bus.send("q1", "old")
    await age(conn, 60)
    await bus.admin.subscribe_group("cg", namespace="ns", mode="new")

    got = gather(bus, "cg", namespace="ns", mode="all")
    async with running(bus):
        await bus.send("q1", "new")
        await gets(got, "new")
    assert [one.mode for one in await bus.admin.scopes("cg")] == ["new"]

    await bus.admin.forget_scope("cg", namespace="ns", cancel=True)
    async with running(bus):
        await gets(got, "new", "old", "new")
    assert [one.mode for one in await bus.admin.scopes("cg")] == ["all"]


async def test_changed_default_mode_applies_to_new_groups_only(
    dsn: str, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed default applies to new groups, and others keep their recorded mode."""
    variable = "POSTBUS_DEFAULT_SUBSCRIPTION_MODE"
    monkeypatch.delenv(variable, raising=False)
    async with Bus.open(dsn) as bus:
        await create_log(bus, "q1", namespace="ns")
        await bus.send("q1", "old")
        await age(conn, 60)
        await bus.admin.subscribe_group("cg", namespace="ns")

    monkeypatch.setenv(variable, "new")
    async with Bus.open(dsn) as bus:
        known, later = gather(bus, "cg", namespace="ns"), gather(bus, "later", namespace="ns")
        plain = gather(bus, "plain", "q1")
        async with running(bus):
            await gets(known, "old")
            await bus.send("q1", "new")
            for got, payloads in ((known, ("old", "new")), (later, ("new",)), (plain, ("new",))):
                await gets(got, *payloads)
        modes = {one.group_name: one.mode for one in await bus.admin.scopes()}
        assert modes == {"cg": "all", "later": "new", "plain": "new"}

    async with Bus.open(dsn, default_mode="all") as bus:
        assert (await bus.admin.subscribe_group("third", namespace="ns")) == ["q1"]
        assert [one.mode for one in await bus.admin.scopes("third")] == ["all"], "rather than the environment's"
