"""Limits beyond which groups count as unhealthy: set once, and applied everywhere."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from postbus import Bus, InvalidInput, InvalidOption, Start
from postbus.results import GroupHealthLimits
from support.grouping import create_log


async def subscribed(bus: Bus, *topics: str) -> None:
    for topic in topics:
        await create_log(bus, topic)
        await (await bus.connect()).subscribe(topic, "g", Start.NOW, "block")


async def kind(bus: Bus, topic: str = "t") -> str | None:
    found: str | None = (await bus.admin.group(topic, "g")).problem_kind
    return found


async def test_default_limits_cover_failures_and_stops(bus: Bus) -> None:
    """The limits are half of the calls and a day after a planned stop; the lag is not limited."""
    assert await bus.admin.health_limits() == GroupHealthLimits(
        failed_share=0.5, lag=None, lag_age=None, stopped_for=timedelta(days=1)
    )


async def test_lag_in_messages_can_be_limited(bus: Bus) -> None:
    """A group is unhealthy with more messages before it than the limit."""
    await subscribed(bus, "t")
    await bus.send_many("t", range(3))
    await bus.admin.sweep()
    await bus.admin.set_health_limits("t", lag=3)
    assert await kind(bus) is None
    await bus.admin.set_health_limits("t", lag=2)
    assert await kind(bus) == "behind"
    found = str(await bus.admin.group_findings())
    assert "3 messages behind, more than 2" in found
    assert "postbus groups limits --topic t --group g --lag NUMBER" in found


async def test_lag_in_seconds_can_be_limited(bus: Bus, conn: Any) -> None:
    """The limit is for the age of the oldest message before the group."""
    await subscribed(bus, "t")
    await bus.send("t", 1)
    await conn.execute("update postbus.segment set published_at = published_at - interval '20 s'")
    await bus.admin.set_health_limits(lag_age="1m")
    assert await kind(bus) is None
    await bus.admin.set_health_limits(lag_age="10s")
    assert await kind(bus) == "behind"
    assert "--group g --lag-age DURATION" in str(await bus.admin.group_findings())


async def test_share_of_failing_calls_can_be_limited(bus: Bus) -> None:
    """The share counts from five calls on."""
    await subscribed(bus, "t")
    await bus.send_many("t", range(25))
    for number, one in enumerate(await bus.pop("t", group="g", batch=25)):
        await (one.ack() if number % 5 else one.dead_letter("no"))
    assert await kind(bus) is None
    await bus.admin.set_health_limits("t", failed_share=0.2)
    assert await kind(bus) == "failing"
    await bus.admin.set_health_limits("t", failed_share=0.21)
    assert await kind(bus) is None


async def test_time_after_a_planned_stop_can_be_limited(bus: Bus, conn: Any) -> None:
    """Until then a stop raises no alarm, whatever the group's state."""
    await subscribed(bus, "t")
    await bus.heartbeat("t", group="g", last=True, member="me")
    await conn.execute(
        "update postbus.subscription "
        "set stopped_at = stopped_at - interval '1 h', seen_at = stopped_at - interval '1 h'"
    )
    assert await kind(bus) is None
    await bus.admin.set_health_limits(stopped_for="30m")
    assert await kind(bus) == "stopped"
    await bus.admin.set_health_limits(stopped_for="off")
    await conn.execute(
        "update postbus.subscription "
        "set stopped_at = stopped_at - interval '1 year', seen_at = seen_at - interval '1 year'"
    )
    assert await kind(bus) is None


async def test_most_specific_limit_applies(bus: Bus) -> None:
    """The order is a group of a topic, the group's name, the topic, all; each value separately."""
    admin = bus.admin
    await admin.set_health_limits(lag=1, failed_share=0.1)
    await admin.set_health_limits("t", lag=2)
    await admin.set_health_limits(group="g", lag=3)
    await admin.set_health_limits("t", "g", lag="off")
    found = [await admin.health_limits(*of) for of in ((), ("t",), (None, "g"), ("t", "g"), ("other", "g"))]
    assert [one.lag for one in found] == [1, 2, 3, None, 3]
    assert {one.failed_share for one in found} == {0.1}
    assert (await admin.set_health_limits("t", "g", lag=None)).lag == 3


async def test_withdrawn_limits_leave_nothing(bus: Bus, conn: Any) -> None:
    """The defaults apply again."""
    await bus.admin.set_health_limits("t", lag=1, stopped_for="off")
    await bus.admin.set_health_limits("t", lag=None, stopped_for=None)
    assert await conn.fetchval("select count(*) from postbus.health_limit") == 0


@pytest.mark.parametrize(
    ("limits", "remedy"),
    [
        ({"failed_share": 2}, "a share above 0 and up to 1"),
        ({"failed_share": "all"}, "a share above 0 and up to 1"),
        ({"lag": -1}, "a number of messages"),
        ({"lag_age": "never"}, "24h"),
        ({"delay": 1}, "failed_share, lag, lag_age"),
    ],
)
async def test_bad_limits_are_refused(bus: Bus, limits: dict[str, Any], remedy: str) -> None:
    """The error has a remedy, and nothing has changed."""
    with pytest.raises((InvalidOption, InvalidInput)) as refused:
        await bus.admin.set_health_limits(**limits)
    assert remedy in refused.value.remedy
    assert (await bus.admin.health_limits()).failed_share == 0.5


async def test_health_is_false_while_there_is_a_warning(bus: Bus, conn: Any) -> None:
    """A paused group is no warning and a DEAD one is; sweeping is part of the health."""
    await subscribed(bus, "t", "u")
    await bus.admin.pause_group("t", "g")
    found = await bus.admin.health()
    assert (found.healthy, [one.kind for one in found.findings]) == (True, ["paused"])
    await conn.execute("update postbus.subscription set state = 'DEAD' where state = 'ACTIVE'")
    found = await bus.admin.health()
    assert (found.healthy, sorted(one.kind for one in found.findings)) == (False, ["dead", "paused"])
    assert all(one.remedy for one in found.findings)
    assert found.sweeping.healthy
