"""Heartbeats of groups: how often they are sent, over which connections, and what happens when they fail."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postbus import Bus, Start
from postbus._db.store import Store
from postbus._maintenance.heartbeat import MemberCounts
from postbus.embedded import EmbeddedPostgres
from support.eventually import eventually
from support.fix_database import Connect
from support.grouping import (
    are_listed,
    are_shared,
    collect,
    create_log,
    has,
    is_through,
    look_often,
    publish_numbers,
    shares,
)
from support.running import running

OFTEN = {"heartbeat_interval": "1s", "heartbeat_timeout": "1 hour"}


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[tuple[int, dict[str, Any]]]:
    """Return levels and fields of the logged events with this name."""
    return [(one.levelno, one.__dict__["fields"]) for one in caplog.records if one.__dict__.get("event") == name]


async def were_logged(caplog: pytest.LogCaptureFixture, name: str, count: int = 1) -> None:
    async def as_often() -> None:
        assert len(events(caplog, name)) >= count

    await eventually(as_often)


class Sent:
    """The calls of `group_heartbeat` that this process made: groups and counters."""

    def __init__(self) -> None:
        self.beats: list[list[int]] = []
        self.counts: list[list[tuple[Any, ...]]] = []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    noted = Sent()
    original = Store.group_heartbeat

    async def send(self: Store, subscription_ids: Sequence[int], counts: Sequence[Any]) -> Any:
        resurrected = await original(self, subscription_ids, counts)
        if subscription_ids:
            noted.beats.append(sorted(subscription_ids))
        if counts:
            noted.counts.append([tuple(one[1:]) for one in counts])
        return resurrected

    monkeypatch.setattr(Store, "group_heartbeat", send)
    return noted


async def seen_at(conn: Any, topic: str = "t") -> Any:
    return await conn.fetchval(
        "select seen_at from postbus.subscription s join postbus.topic t on t.id = s.topic_id where t.name = $1", topic
    )


async def test_each_group_is_seen_as_often_as_its_topic_says(bus: Bus, conn: Any) -> None:
    """A group with an interval of a second is seen repeatedly, and one with an hour's not even once meanwhile."""
    await create_log(bus, "often", **OFTEN)
    await create_log(bus, "seldom", heartbeat_interval="1 hour", heartbeat_timeout="1 day")
    for topic in ("often", "seldom"):
        collect(bus, topic=topic)
    async with running(bus):
        await are_listed(conn, 2)
        seldom, last = await seen_at(conn, "seldom"), await seen_at(conn, "often")
        for _ in range(3):

            async def is_seen_again(before: Any = last) -> None:
                assert await seen_at(conn, "often") > before

            await eventually(is_seen_again, within=2)
            last = await seen_at(conn, "often")
        assert await seen_at(conn, "seldom") == seldom


async def test_one_statement_sends_the_heartbeats_of_all_groups(bus: Bus, conn: Any, sent: Sent) -> None:
    """Groups that started at different times come to be sent together."""
    await create_log(bus, **OFTEN)
    groups = [bus.group(f"g{number}", "t") for number in range(5)]
    for group in groups:
        group.add_member("a", ignore)
    await groups[0].start()
    async with running(bus):
        for group in groups[1:]:
            beats = len(sent.beats)
            await group.start()
            if group is groups[2]:  # in the middle of an interval
                await has(sent.beats, beats + 1)
        ids = [row["id"] for row in await conn.fetch("select id from postbus.subscription order by id")]
        assert len(ids) == 5

        async def all_together() -> None:
            assert sent.beats[-3:] == [ids] * 3

        await eventually(all_together)


async def ignore(n: int) -> None: ...


async def test_only_changed_counters_are_sent(bus: Bus, conn: Any, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members are reported once when they start, and later only if they have done something."""
    monkeypatch.setattr("postbus._group.started_groups.WRITE_COUNTS", 0.02)
    looks: list[int] = []
    original = MemberCounts.write

    async def write(self: MemberCounts, groups: Any) -> None:
        await original(self, groups)
        looks.append(len(groups))

    monkeypatch.setattr(MemberCounts, "write", write)
    for topic in ("busy", "idle"):
        await create_log(bus, topic)
        collect(bus, topic=topic, start=Start.BEGINNING)
    async with running(bus):
        await has(sent.counts, 1)
        await has(looks, len(looks) + 5)
        assert sorted(one[1:] for counts in sent.counts for one in counts) == [(0, 0, 0, 0, 0.0)] * 2
        names = [row["name"] for row in await conn.fetch("select name from postbus.members")]
        assert len(names) == 2
        sent.counts.clear()
        await bus.send("busy", 1)
        await is_through(conn, topic="busy", processed=1, in_flight=0)
        await has(looks, len(looks) + 5)
        assert sum(one[1] for counts in sent.counts for one in counts) == 1
        assert all(len(counts) == 1 for counts in sent.counts), "the idle member was told of too"


async def test_heartbeats_do_not_wait_for_other_connections(bus: Bus, conn: Any, connect: Connect) -> None:
    """With all connections for sweeping and lanes stuck behind a lock, process and group are still seen."""
    await create_log(bus, **OFTEN)
    collect(bus)
    blocker = await connect()
    async with running(bus):
        await are_shared(conn, 8)
        async with blocker.transaction():
            await blocker.execute("lock table postbus.sweep_setting in access exclusive mode")

            async def upkeep_is_stuck() -> None:
                stuck = await conn.fetchval(
                    "select count(*) from pg_stat_activity where datname = current_database() "
                    "and wait_event_type = 'Lock' and query ~ 'sweep|storages|return_expired'"
                )
                assert stuck >= 2, "of the two connections for upkeep"

            await eventually(upkeep_is_stuck, within=15)
            since = await conn.fetchval("select clock_timestamp()")

            async def both_are_seen() -> None:
                assert await conn.fetchval("select min(seen_at) from postbus.worker") > since
                assert await conn.fetchval("select min(seen_at) from postbus.subscription") > since

            await eventually(both_are_seen, within=5)


async def test_locked_group_holds_up_no_other_heartbeat(bus: Bus, conn: Any, connect: Connect) -> None:
    """While a transaction holds the row of one group, the other groups of the process are still seen."""
    await create_log(bus, **OFTEN)
    for name in ("locked", "free"):
        collect(bus, name)
    blocker = await connect()
    async with running(bus), blocker.transaction():
        await are_listed(conn, 2)
        await blocker.execute("select from postbus.subscription where group_name = 'locked' for update")
        since = await conn.fetchval("select clock_timestamp()")

        async def is_seen() -> None:
            assert await conn.fetchval("select seen_at from postbus.subscription where group_name = 'free'") > since

        await eventually(is_seen, within=4)  # less than a heartbeat's timeout


async def test_group_found_dead_returns_at_once(bus: Bus, conn: Any) -> None:
    """Its process does not wait for the next interval."""
    await create_log(bus, heartbeat_interval="1 hour", heartbeat_timeout="1 day")
    got = collect(bus)
    async with running(bus):
        await are_shared(conn, 8)
        await conn.execute("update postbus.subscription set state = 'DEAD'")
        await publish_numbers(bus, range(5))
        await is_through(conn, state="ACTIVE", lanes_held=8)
    assert Counter(got) == Counter(range(5))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let heartbeats fail after a tenth of a second, and stop groups after three failures."""
    monkeypatch.setattr("postbus._maintenance.heartbeat._TIMEOUT", 0.1)
    monkeypatch.setattr("postbus._maintenance.heartbeat._TOO_MANY_FAILURES", 3)
    look_often(monkeypatch)


@pytest.mark.usefixtures("impatient")
async def test_process_with_failing_heartbeats_stops_consuming(
    bus: Bus, conn: Any, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Groups give up their lanes and queues go on; a heartbeat that succeeds ends this."""
    caplog.set_level(logging.INFO, "postbus")
    await create_log(bus, **OFTEN)
    got = collect(bus)
    queued: list[int] = []

    @bus.subscribe("queue")
    async def handle(n: int) -> None:
        queued.append(n)

    blocker = await connect()
    async with running(bus):
        await are_shared(conn, 8)
        await publish_numbers(bus, range(5))
        await is_through(conn, passed=5)
        async with blocker.transaction():
            await blocker.execute("lock table postbus.subscription in share mode")  # allows reading, not writing
            await were_logged(caplog, "heartbeats.failed")
            await are_shared(conn)
            await publish_numbers(bus, range(5, 10))
            failures = len(events(caplog, "database.away"))
            await were_logged(caplog, "database.away", failures + 2)  # it goes on trying
            assert await shares(conn) == []
            assert len(got) == 5
            await bus.send("queue", 1)
            await has(queued, 1)
        await is_through(conn, passed=10)
    assert Counter(got) == Counter(range(10))
    [(level, fields)] = events(caplog, "heartbeats.failed")
    assert level == logging.ERROR
    assert fields["failures"] == 3
    assert len(events(caplog, "heartbeats.succeeded")) == 1


def processes_of(home: Path) -> list[int]:
    """Return the server's processes, the first one first."""
    first = int((home / "pgdata" / "postmaster.pid").read_text().splitlines()[0])
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return [first, *map(int, children)]


@pytest.mark.usefixtures("impatient")
async def test_process_survives_a_server_that_stands_still(own_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The process logs once that the server does not answer, and goes on when it does."""
    caplog.set_level(logging.INFO, "postbus")
    home = own_folder / "pg"
    with EmbeddedPostgres.start(home) as server:
        async with Bus(server.dsn(), migrate=True) as bus:
            await create_log(bus, **OFTEN)
            got = collect(bus, start=Start.BEGINNING)
            conn: Any = await asyncpg.connect(server.dsn())
            async with running(bus):
                await publish_numbers(bus, range(5), keys=5)
                await is_through(conn, passed=5)
                stopped = processes_of(home)
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
                try:
                    await were_logged(caplog, "heartbeats.failed")
                finally:
                    for pid in reversed(stopped):
                        os.kill(pid, signal.SIGCONT)
                await were_logged(caplog, "heartbeats.succeeded")
                await publish_numbers(bus, range(5, 10), keys=5)
                await is_through(conn, passed=10, lanes_held=8)
            await conn.close()
    assert Counter(got) == Counter(range(10))
    assert len(events(caplog, "heartbeats.failed")) == 1


@pytest.mark.parametrize("end", ["cancelled", "deleted", "topic deleted"])
async def test_ended_subscription_stops_only_its_own_members(
    bus: Bus, conn: Any, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    """The process logs which group it stops and what to do about it, and its other groups go on."""
    for topic in ("ends", "stays"):
        await create_log(bus, topic)
    ending, staying = bus.group("g", "ends"), bus.group("g", "stays")
    got: dict[str, list[int]] = {"ends": [], "stays": []}
    for group in (ending, staying):

        async def handle(n: int, topic: str = group.topic) -> None:
            got[topic].append(n)

        group.add_member("a", handle)
        await group.start()
    async with running(bus):
        await are_shared(conn, 16)
        for topic in got:
            await publish_numbers(bus, [1], topic)
            await is_through(conn, topic=topic)
        gone = await conn.fetchval("select subscription_id from postbus.groups where topic = 'ends'")
        match end:
            case "cancelled":
                await bus.admin.cancel_group("ends", "g")
            case "deleted":
                for table in ("deferred", "member", "group_worker", "cursor", "lane"):
                    await conn.execute(f"delete from postbus.{table} where subscription_id = $1", gone)
                await conn.execute("delete from postbus.subscription where id = $1", gone)
            case _:
                await bus.admin.delete_topic("ends", force=True)
        await were_logged(caplog, "group.stopped")
        await publish_numbers(bus, [2], "stays")
        await is_through(conn, topic="stays", lanes_held=8)
        assert (ending.is_started, staying.is_started) == (False, True)
    assert got == {"ends": [1], "stays": [1, 2]}
    [(level, fields)] = events(caplog, "group.stopped")
    assert level == logging.WARNING
    assert (fields["topic"], fields["group"]) == ("ends", "g")
    assert "subscribe again" in fields["remedy"]
