"""postbus groups …: health, removal, resurrection, checks, and skipping old messages"""

from __future__ import annotations

from typing import Any

import pytest

from cli.helpers import Cli
from postbus import Bus
from support.grouping import bury


async def let_die(conn: Any, group: str = "mail") -> None:
    await conn.execute("update postbus.subscription set state = 'DEAD' where group_name = $1", group)


async def test_group_list_shows_the_health(cli: Cli, conn: Any, events: str) -> None:
    """The reason is shown beside an unhealthy group."""
    await let_die(conn)

    listed = (await cli.quick("groups", "list")).done().out.splitlines()
    as_json = (await cli.quick("groups", "list", "--json")).done().json

    assert listed[0].split()[-1] == "health"
    assert "it is DEAD" in listed[1]
    assert listed[2].split()[-1] == "ok"
    assert [one["healthy"] for one in as_json] == [False, True]


async def test_group_show_prints_the_metrics(cli: Cli, bus: Bus, events: str) -> None:
    """It includes the stop, the rate and the time per message."""
    await bury(bus, 1, 2)

    shown = (await cli.quick("groups", "show", events, "mail")).done().out
    as_json = (await cli.quick("groups", "show", events, "mail", "--json")).done().json

    told = dict(line.split(maxsplit=1) for line in shown.partition("\n\n")[0].splitlines())
    assert told["health"].startswith("stopped by ")
    assert "as planned, by " in told["stopped"]
    assert told["rate"].endswith("messages per second in the last minute")
    assert told["handling"].endswith("ms per message")
    assert (as_json["rate"] > 0, as_json["handling_ms"] > 0, as_json["pending"]) == (True, True, 0)
    assert as_json["members"][0]["handling_ms"] == as_json["handling_ms"]


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 4)])
async def test_group_remove_asks(cli: Cli, bus: Bus, events: str, answer: str, code: int) -> None:
    """The question says how many messages and dead letters the group has."""
    await bury(bus, 1)
    await bus.send(events, 2)

    asked = await cli("groups", "remove", events, "mail", given=answer)

    assert asked.code == code
    assert "which has 1 message to do and 1 dead letter?" in asked.err
    left = [one.group_name for one in await bus.admin.groups(events, cancelled=True)]
    assert left == (["stock"] if code == 0 else ["mail", "stock"])
    assert len(await bus.admin.dead_letters()) == (0 if code == 0 else 1)


async def test_group_remove_waits_only_as_long_as_told(cli: Cli, bus: Bus, conn: Any, events: str) -> None:
    """Messages in hand of a process that keeps its lanes are not settled then."""
    store = await bus.connect()
    subscription = (await bus.admin.group(events, "mail")).subscription_id
    await store.heartbeat("w", "host", 1, [])
    await store.lease_lanes("w", [subscription], [])

    removed = await cli.quick("groups", "remove", events, "mail", "--wait", "0.3s", "--yes", "--json")

    assert removed.done().json == {"topic": events, "group": "mail", "removed": True, "held": 2}


@pytest.mark.parametrize(("option", "skipped", "lag"), [((), 0, 3), (("--no-catch-up",), 3, 0)])
async def test_resurrect_revives_a_dead_group(
    cli: Cli, bus: Bus, conn: Any, events: str, option: tuple[str, ...], skipped: int, lag: int
) -> None:
    """The group continues at its position or with new messages; missed and skipped ones are counted."""
    for number in range(3):
        await bus.send(events, number)
    await (await bus.connect()).sweep_log()
    await let_die(conn)

    told = await cli.quick("groups", "resurrect", events, "mail", *option)

    assert told.done().out == f"resurrected mail on events: it missed 3 messages, {skipped} are skipped\n"
    row = await bus.admin.group(events, "mail")
    assert (row.state, row.lag) == ("ACTIVE", lag)
    again = await cli.quick("groups", "resurrect", events, "mail", "--json")
    assert again.failed(4).error["remedy"] == "it is alive: nothing has to be done"


async def test_group_check_without_findings_says_so(cli: Cli, bus: Bus, events: str) -> None:
    """The exit code is 0."""
    checked = (await cli.quick("groups", "check")).done()
    as_json = (await cli.quick("groups", "check", "--json")).done().json
    assert checked.out == "all is well with the groups\n"
    assert (as_json.pop("ok"), any(as_json.values())) == (True, False)


async def test_group_check_and_doctor_agree(cli: Cli, bus: Bus, conn: Any, events: str) -> None:
    """Both have the same findings about groups, with the same words and remedies."""
    await bus.send(events, 1)
    await bus.admin.pause_group(events, "stock")
    await conn.execute("update postbus.subscription set seen_at = seen_at - interval '1 minute'")

    checked = (await cli.quick("groups", "check", "--json")).failed(1).json["findings"]
    found = [one for one in (await cli.quick("doctor", "--json")).done().json["checks"] if one["check"] == "groups"]

    assert [one["kind"] for one in checked] == ["idle", "paused"]
    told = [(one["level"], f"{one['group']} on {one['topic']}: {one['text']}", one["remedy"]) for one in checked]
    assert [(one["level"], one["text"], one["remedy"]) for one in found] == told


async def test_health_limits_are_set_and_shown(cli: Cli, bus: Bus, events: str) -> None:
    """They apply to all groups or to one; `off` means no limit, and `default` withdraws a limit."""
    set_ = await cli.quick("groups", "limits", "--lag", "1", "--lag-age", "10m", "--failed-share", "off")
    assert set_.done().out.splitlines() == [
        "failed share  off",
        "lag           1",
        "lag age       10m",
        "stopped for   1d",
    ]
    for_one = ("groups", "limits", "--topic", events, "--group", "mail", "--json")
    assert (await cli.quick(*for_one, "--lag", "5")).done().json["lag"] == 5
    assert (await cli.quick(*for_one)).done().json["lag"] == 5
    assert (await cli.quick(*for_one, "--lag", "default")).done().json["lag"] == 1
    assert (
        "a number of messages"
        in (await cli.quick("groups", "limits", "--lag", "many", "--json")).failed(4).error["remedy"]
    )


async def test_group_check_reports_each_finding(cli: Cli, bus: Bus, conn: Any, events: str) -> None:
    """Dead and silent groups, stuck messages, messages without groups and damage have a line each.

    The exit code is 1.
    """
    await bus.admin.create_topic("alone", semantics="PUB_SUB")
    await bus.send("alone", 1)
    await bus.send(events, 1)
    for table, column in (("segment", "published_at"), ("subscription", "subscribed_at")):
        await conn.execute(f"update postbus.{table} set {column} = {column} - interval '2 hours'")
    await let_die(conn)
    await conn.execute(
        "update postbus.subscription set seen_at = seen_at - interval '260 s' where group_name = 'stock'"
    )
    await conn.execute("delete from postbus.lane where lane = 1 and subscription_id = 1")

    checked = (await cli.quick("groups", "check")).failed(1).out
    as_json = (await cli.quick("groups", "check", "--json")).failed(1).json

    for finding in (
        "it is DEAD",
        "near its heartbeat timeout",
        "not settled, the oldest since ",
        "1 message for nobody",
        "it has 1 of the 2 lanes",
    ):
        assert finding in checked
    assert not as_json["ok"]
    assert [one["group_name"] for one in as_json["unhealthy"]] == ["mail", "stock"]
    assert [one["group_name"] for one in as_json["near_timeout"]] == ["stock"]
    assert [(one["topic"], one["groups"]) for one in as_json["stuck"]] == [("events", ["stock"])]
    assert [one["topic"] for one in as_json["zero_subscriptions"]] == ["alone"]
    assert {one["kind"] for one in as_json["inconsistent"]} == {"subscription", "cursor"}
    later = (await cli.quick("groups", "check", "--stuck-after", "3h", "--json")).failed(1).json
    assert later["stuck"] == []


async def test_force_complete_asks_and_skips_old_messages(cli: Cli, bus: Bus, conn: Any, events: str) -> None:
    """A dry run only counts; a real run asks, and moves all groups or one."""
    await bus.send(events, 1)
    await conn.execute("update postbus.segment set published_at = published_at - interval '8 days'")
    await bus.send(events, 2)
    await (await bus.connect()).sweep_log()
    call = ("groups", "force-complete", events, "--older-than", "7d")

    would = await cli.quick(*call, "--dry-run", "--json")
    refused = await cli(*call, given="n\n")
    one = await cli.quick(*call, "--group", "mail", "--yes")
    both = await cli.quick(*call, "--yes", "--json")
    none = await cli.quick(*call)

    assert would.done().json["skipped"] == {"mail": 1, "stock": 1}
    assert (refused.code, "skip messages: mail 1, stock 1?" in refused.err) == (4, True)
    assert one.done().out == "mail on events skipped 1 message\n"
    assert both.done().json == {
        "topic": events, "older_than": 7 * 86400.0, "skipped": {"stock": 1}, "dry_run": False,
    }  # fmt: skip
    assert none.done().out == "no group on events has messages before it that are older than 7d\n"
    assert [row.lag for row in await bus.admin.groups(events)] == [1, 1]


async def test_group_admin_mistakes_have_remedies(cli: Cli, bus: Bus, events: str) -> None:
    """Each mistake ends with the exit code of its kind."""
    await bus.admin.create_topic("jobs")
    for args, code in (
        (("remove", events, "gone", "--yes"), 3),
        (("remove", "jobs", "gone", "--yes"), 4),
        (("remove", events, "mail", "--wait", "soon", "--yes"), 4),
        (("resurrect", events, "gone"), 3),
        (("force-complete", events, "--older-than", "x"), 4),
        (("force-complete", "nowhere", "--older-than", "1d"), 3),
        (("force-complete", events, "--older-than", "1d", "--group", "gone"), 3),
        (("force-complete", "jobs", "--older-than", "1d"), 4),
        (("catch-up", events, "gone"), 3),
        (("catch-up", events, "mail"), 4),
        (("catch-up", events, "mail", "--cancel", "--resume"), 2),
    ):
        error = (await cli.quick("groups", *args, "--json")).failed(code).error
        assert error["remedy"], args
