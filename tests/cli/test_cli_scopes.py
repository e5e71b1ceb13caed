"""postbus groups subscribe, scopes and forget; topics by namespace and task"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from cli.helpers import Cli
from postbus import Bus
from support.grouping import create_log


@pytest.fixture
async def billing(bus: Bus) -> None:
    """Create topics of one namespace, and one of another."""
    await create_log(bus, "billing.paid", namespace="billing", task="send")
    await create_log(bus, "billing.due", namespace="billing")
    await create_log(bus, "stock.low", namespace="stock", task="send")


async def test_topics_are_listed_by_label(cli: Cli, bus: Bus, billing: None) -> None:
    """A list can be limited by namespace and task; labels are shown, and can be removed."""
    for flags, names in (
        (["--namespace", "billing"], ["billing.due", "billing.paid"]),
        (["--task", "send"], ["billing.paid", "stock.low"]),
        (["--task", "send", "--namespace", "stock"], ["stock.low"]),
    ):
        listed = (await cli.quick("topics", "list", *flags, "--json")).done().json
        assert [one["name"] for one in listed] == names
    assert "namespace billing, task send" in (await cli.quick("topics", "list")).done().out
    assert "no topics in namespace x" in (await cli.quick("topics", "list", "--namespace", "x")).done().err

    (await cli.quick("topics", "set", "billing.paid", "--namespace", "", "--task", "mail")).done()
    shown = (await cli.quick("topics", "show", "billing.paid")).done().out
    assert "mail" in shown
    assert "namespace" not in shown


@pytest.mark.parametrize(
    ("flags", "topics"),
    [
        (["--namespace", "billing"], ["billing.due", "billing.paid"]),
        (["--task", "send"], ["billing.paid", "stock.low"]),
        (["--pattern", "*.low"], ["stock.low"]),
        (["billing.*"], ["billing.due", "billing.paid"]),
        (["stock.low", "--key", "k"], ["stock.low"]),
        (["stock.low"], ["stock.low"]),
    ],
    ids=str,
)
async def test_subscribe_covers_the_scope(
    cli: Cli, bus: Bus, billing: None, flags: list[str], topics: list[str]
) -> None:
    """The group is subscribed to each topic of the scope."""
    told = (await cli.quick("groups", "subscribe", "audit", *flags)).done().out
    assert told == f"subscribed audit to {len(topics)} topic{'s' * (len(topics) > 1)}: {', '.join(topics)}\n"
    again = (await cli.quick("groups", "subscribe", "audit", *flags, "--json")).done().json
    assert again == {"group": "audit", "topics": topics}
    [one] = (await cli.quick("groups", "scopes", "--json")).done().json
    assert (one["mode"], one["topics"]) == ("all", topics)


@pytest.mark.parametrize(
    ("flags", "mode", "back"),
    [
        (["--mode", "new"], "new", 4.0),
        (["--mode", "new", "--look-back", "1m"], "new", 60.0),
        (["--mode", "timestamp", "--at", "2h"], "timestamp", 7200.0),
        (["--mode", "all", "--on-failure", "pass"], "all", None),
    ],
    ids=str,
)
async def test_start_of_a_scope_is_recorded(
    cli: Cli, bus: Bus, flags: list[str], mode: str, back: float | None
) -> None:
    """The record has the mode and its parameters."""
    (await cli.quick("groups", "subscribe", "audit", "--namespace", "billing", *flags)).done()
    [one] = await bus.admin.scopes()
    assert one.mode == mode
    assert one.on_failure == ("pass" if "pass" in flags else "block")
    if back is None:
        assert one.start_at is None
    else:
        assert one.start_at is not None
        assert abs(one.recorded_at - one.start_at - timedelta(seconds=back)) < timedelta(seconds=2)


async def test_scopes_are_listed(cli: Cli, bus: Bus, billing: None) -> None:
    """There is a line for each record with its number of topics, of all groups or of one."""
    assert "no scopes are recorded" in (await cli.quick("groups", "scopes")).done().err
    await bus.admin.subscribe_group("audit", namespace="billing", mode="new")
    await bus.admin.subscribe_group("low", "stock.low", key="k")
    heading, audit, low = (await cli.quick("groups", "scopes")).done().out.splitlines()
    assert heading.split() == ["group", "scope", "mode", "since", "recorded", "topics"]
    assert audit.split()[:4] == ["audit", "namespace", "billing", "new"]
    assert low.split()[:5] == ["low", "stock.low,", "key", "k", "all"]
    assert (audit.split()[-1], low.split()[-1]) == ("2", "1")
    assert len((await cli.quick("groups", "scopes", "low")).done().out.splitlines()) == 2


async def test_forget_removes_the_record(cli: Cli, bus: Bus, billing: None) -> None:
    """Subscriptions are removed only with --cancel, which asks."""
    scope = ("--namespace", "billing")
    await bus.admin.subscribe_group("audit", namespace="billing")
    assert "2 subscriptions stay as they are" in (await cli.quick("groups", "forget", "audit", *scope)).done().out
    assert len(await bus.admin.groups(group="audit")) == 2

    await bus.admin.subscribe_group("audit", namespace="billing")
    refused = await cli("groups", "forget", "audit", *scope, "--cancel", given="n\n")
    assert "not confirmed" in refused.failed(4).err
    gone = (await cli.quick("groups", "forget", "audit", *scope, "--cancel", "--yes", "--json")).done().json
    assert gone == {"group": "audit", "subscriptions": 2, "cancelled": True}
    assert await bus.admin.groups(group="audit") == []
    assert await bus.admin.scopes() == []
    assert "has no record of that scope" in (await cli.quick("groups", "forget", "audit", *scope)).err


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ([], "a group subscribes to a topic, a namespace, a task or a pattern"),
        (["--namespace", "a", "--task", "b"], "a group subscribes to"),
        (["--namespace", "a", "--key", "k"], "a key belongs to one topic"),
        (["--pattern", "abc"], "bad pattern"),
        (["--namespace", "a b"], "bad namespace name"),
        (["--namespace", "a", "--mode", "old"], "'old' is not one of 'new', 'all', 'timestamp'"),
        (["--namespace", "a", "--mode", "timestamp"], "mode 'timestamp' has no time"),
        (["--namespace", "a", "--mode", "new", "--at", "2h"], "start and mode are both given"),
        (["--namespace", "a", "--look-back", "2h"], "look_back is for mode='new'"),
        (["--namespace", "a", "--mode", "new", "--look-back", "soon"], "not a duration"),
        (["--namespace", "a", "--on-failure", "x"], "'x' is not one of 'block', 'pass'"),
        (["unknown"], "there is no topic 'unknown'"),
    ],
    ids=str,
)
async def test_bad_scope_is_refused(cli: Cli, bus: Bus, flags: list[str], why: str) -> None:
    """The error says what to give instead, and nothing is recorded."""
    result: Any = await cli.quick("groups", "subscribe", "audit", *flags)
    assert result.code != 0
    assert why in result.err
    assert "Traceback" not in result.err
    assert await bus.admin.scopes() == []


@pytest.mark.parametrize(
    ("flags", "payloads"),
    [
        (["--namespace", "billing"], ["due", "paid"]),
        (["--task", "send"], ["low", "paid", "other"]),
        (["*.low"], ["low", "other"]),
        (["stock.low", "--key", "k"], ["low"]),
    ],
    ids=str,
)
async def test_consume_reads_all_topics_of_a_scope(
    cli: Cli, bus: Bus, billing: None, flags: list[str], payloads: list[str]
) -> None:
    """The topic is printed where there may be several."""
    await bus.send("billing.due", "due")
    await bus.send("billing.paid", "paid")
    await bus.send("stock.low", "low", key="k")
    await bus.send("stock.low", "other", key="other")

    consumed = await cli("consume", *flags, "--group", "audit", "--from", "beginning", "--max", str(len(payloads)))

    assert "audit is new on" in consumed.done().err
    again = await cli("consume", *flags, "--group", "audit", "--from", "beginning", "--idle", "0.1s")
    assert ("goes on at its position" in again.done().err, again.out) == (True, "")
    lines = consumed.out.splitlines()
    assert sorted(line.split()[-1].strip('"') for line in lines) == sorted(payloads)
    assert any("stock.low" in line for line in lines) == ("low" in payloads and "--key" not in flags)


async def test_consuming_a_scope_needs_a_group(cli: Cli, bus: Bus, billing: None) -> None:
    """A message id is refused as a start, because several topics have no message in common."""
    for flags in (["--namespace", "billing"], ["billing.*"], ["stock.low", "--key", "k"]):
        assert "add --group NAME" in (await cli.quick("consume", *flags)).failed(2).err
    assert "name a topic" in (await cli.quick("consume", "--group", "g")).failed(2).err
    refused = await cli.quick("consume", "billing.*", "--group", "g", "--from", "77")
    assert "have no message in common" in refused.failed(4).err


async def test_group_can_start_from_a_message(cli: Cli, bus: Bus) -> None:
    """--from accepts a message id, for a topic and for one key of it."""
    await create_log(bus, "t")
    ids = [await bus.send("t", n, key="k") for n in range(3)]

    (await cli.quick("groups", "subscribe", "g", "t", "--key", "k", "--from", str(ids[1]))).done()
    (await cli.quick("groups", "subscribe", "h", "t", "--from", "beginning")).done()
    popped = (await cli.quick("pop", "t", "--group", "p", "--from", str(ids[2]), "-n", "9")).done().out

    assert (await bus.pop("t", group="g", key="k", batch=9)).payloads == [1, 2]
    assert (await bus.pop("t", group="h", batch=9)).payloads == [0, 1, 2]
    assert str(ids[2]) in popped
    assert str(ids[1]) not in popped
    assert "Start.at" in (await cli.quick("groups", "subscribe", "g", "--pattern", "t.*", "--from", "1")).err


async def test_heartbeat_revives_a_dead_group(cli: Cli, bus: Bus, billing: None, conn: Any) -> None:
    """The command prints the group's state, in one topic or in all topics of a scope."""
    await bus.admin.subscribe_group("audit", namespace="billing")
    await conn.execute("update postbus.subscription set state = 'DEAD'")

    told = (await cli.quick("groups", "heartbeat", "audit", "--namespace", "billing")).done().out
    assert "ACTIVE, back with 0 messages before it" in told
    topics = [row["topic"] for row in await conn.fetch("select topic from postbus.groups where group_name = 'audit'")]
    again = (await cli.quick("groups", "heartbeat", "audit", topics[0], "--json")).done().json
    assert again == [{"topic": topics[0], "state": "ACTIVE", "missed": None, "skipped": None}]
