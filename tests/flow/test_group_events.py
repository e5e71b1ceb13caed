"""Groups that stop, die or lose messages are logged."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from postbus import Bus, Start
from postbus._maintenance.heartbeat import GroupHeartbeats
from support.eventually import eventually
from support.fix_database import Connect
from support.grouping import are_listed, are_shared, collect, create_log, is_through
from support.running import running, tasks_are

_QUIET = (
    "update postbus.subscription set seen_at = seen_at - interval '1 hour', stopped_at = stopped_at - interval '1 hour'"
)


def told(caplog: pytest.LogCaptureFixture, name: str) -> list[tuple[int, dict[str, Any]]]:
    return [(one.levelno, one.fields) for one in caplog.records if getattr(one, "event", "") == name]  # type: ignore[attr-defined]


async def dies(bus: Bus, conn: Any, dsn: str) -> None:
    """Let the group be found DEAD while two processes sweep."""
    await conn.execute(_QUIET + ", missed = 3")
    async with Bus.open(dsn) as other:

        async def is_dead() -> None:  # a sweep does nothing while that of a consumer is under way
            await asyncio.gather(bus.admin.sweep(), other.admin.sweep())
            assert (await bus.admin.group("t", "g")).state == "DEAD"

        await eventually(is_dead)


async def test_silent_group_is_logged_once(bus: Bus, conn: Any, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """One of the sweeping processes logs a warning with topic, group and numbers."""
    await create_log(bus)
    await (await bus.connect()).subscribe("t", "g", Start.NOW, "block")
    await bus.send("t", 1)
    with caplog.at_level(logging.INFO, "postbus"):
        await dies(bus, conn, dsn)
        await bus.admin.sweep()
    [(level, fields)] = told(caplog, "group.dead")
    assert level == logging.WARNING
    assert (fields["topic"], fields["group"], fields["after"], fields["lag"]) == ("t", "g", "silence", 1)
    assert fields["silent_seconds"] >= 3600


async def test_planned_stop_raises_no_alarm(bus: Bus, conn: Any, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """The group shows who stopped it and when; its death is logged at level info, and it is unhealthy after a day."""
    await create_log(bus)
    collect(bus)
    async with running(bus):
        await are_listed(conn)
        await bus.send("t", 1)
        await is_through(conn, passed=1)
        assert (await bus.admin.group("t", "g")).stopped_at is None
        [worker] = await bus.admin.workers()
    row = await bus.admin.group("t", "g")
    assert (row.stopped_by, row.healthy) == (worker.name, True)
    with caplog.at_level(logging.INFO, "postbus"):
        await dies(bus, conn, dsn)
    [(level, fields)] = told(caplog, "group.dead")
    assert (level, fields["after"], fields["stopped_by"]) == (logging.INFO, "stop", worker.name)
    assert (await bus.admin.group("t", "g")).healthy
    await conn.execute(_QUIET.replace("1 hour", "1 day"))
    row = await bus.admin.group("t", "g")
    assert not row.healthy
    assert (row.problem or "").startswith(f"stopped by {worker.name} 1 day 01:00:")


async def test_heartbeat_ends_a_stop(bus: Bus, conn: Any) -> None:
    """Every sign of life clears `stopped_by`."""
    await create_log(bus)
    store = await bus.connect()
    info = await store.subscribe("t", "g", Start.NOW, "block")
    await store.leave_groups("me", [info.id], is_stop=True)
    assert (await bus.admin.group("t", "g")).stopped_by == "me"
    await store.group_heartbeat([info.id], [])
    assert (await bus.admin.group("t", "g")).stopped_by is None


async def test_two_processes_that_leave_together_stop_the_group(bus: Bus, conn: Any, connect: Connect) -> None:
    """The later one waits for the first, and finds that it is the last."""
    await create_log(bus)
    info = await (await bus.connect()).subscribe("t", "g", Start.NOW, "block")
    for name in ("a", "b"):
        await conn.execute("select postbus.heartbeat($1, 'host', 1, '{}')", name)
        await conn.execute("insert into postbus.group_worker (subscription_id, worker) values ($1, $2)", info.id, name)
    first, second = await connect(), await connect()
    transaction = first.transaction()
    await transaction.start()
    await first.execute("select postbus.leave_groups('a', $1, true)", [info.id])
    leaving = asyncio.create_task(second.execute("select postbus.leave_groups('b', $1, true)", [info.id]))
    await asyncio.sleep(0.1)
    assert not leaving.done()
    await transaction.commit()
    await leaving
    assert (await bus.admin.group("t", "g")).stopped_by == "b"


async def test_group_is_stopped_when_its_last_process_stops(bus: Bus, conn: Any, dsn: str) -> None:
    """While another process works for the group, the group is not stopped."""
    await create_log(bus)
    async with Bus.open(dsn) as other:
        collect(bus)
        collect(other)
        async with running(other):
            async with running(bus):
                await are_shared(conn, 4, 4)
            assert (await bus.admin.group("t", "g")).stopped_by is None
            [left] = await bus.admin.workers()
    assert (await bus.admin.group("t", "g")).stopped_by == left.name


async def test_restart_ends_the_stop_without_an_event(bus: Bus, conn: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A deploy within the heartbeat timeout is not worth an event."""
    await create_log(bus)
    collect(bus)
    with caplog.at_level(logging.INFO, "postbus"):
        for _ in range(2):
            async with running(bus):
                await are_shared(conn, 8)
                assert (await bus.admin.group("t", "g")).stopped_by is None
            assert (await bus.admin.group("t", "g")).stopped_by is not None
            await bus.admin.sweep()
    assert not any(told(caplog, name) for name in ("group.dead", "group.resurrected", "group.lost"))


async def test_stop_waits_for_a_heartbeat_under_way(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat after the stop would end the stop."""
    store = await bus.connect()
    sent, answered = asyncio.Event(), asyncio.Event()

    async def beat(*_: object) -> list[object]:
        sent.set()
        await answered.wait()
        return []

    monkeypatch.setattr(store, "group_heartbeat", beat, raising=False)
    heartbeats = GroupHeartbeats(store, on_failing=lambda: None, on_recovered=lambda: None)
    heartbeats.add(1, timedelta(0))
    sending = asyncio.create_task(heartbeats.tick())
    await sent.wait()
    removing = asyncio.create_task(heartbeats.remove([1]))
    done, _ = await asyncio.wait([removing], timeout=0.1)
    assert not done
    answered.set()
    await asyncio.gather(sending, removing)


async def test_return_of_a_pulling_group_is_logged_once(
    bus: Bus, conn: Any, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first process to sweep logs it, with the number of missed messages."""
    await create_log(bus)
    await (await bus.connect()).subscribe("t", "g", Start.NOW, "block")
    await bus.send("t", 1)
    with caplog.at_level(logging.INFO, "postbus"):
        await dies(bus, conn, dsn)
        assert (await bus.pop("t", group="g")).payloads == [1]
        async with Bus.open(dsn) as other:
            await asyncio.gather(bus.admin.sweep(), other.admin.sweep())
    [(level, fields)] = told(caplog, "group.resurrected")
    assert (level, fields["topic"], fields["group"]) == (logging.WARNING, "t", "g")
    assert (fields["missed"], fields["skipped"], fields["after"]) == (1, 0, "silence")


async def test_return_after_a_planned_stop_is_no_warning(
    bus: Bus, conn: Any, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The stop announced the absence."""
    await create_log(bus)
    store = await bus.connect()
    info = await store.subscribe("t", "g", Start.NOW, "block")
    await store.leave_groups("me", [info.id], is_stop=True)
    with caplog.at_level(logging.INFO, "postbus"):
        await dies(bus, conn, dsn)
        await bus.pop("t", group="g")
        await bus.admin.sweep()
    [(level, fields)] = told(caplog, "group.resurrected")
    assert (level, fields["after"]) == (logging.INFO, "stop")


async def test_losses_are_logged_once_and_shown_for_a_day(
    bus: Bus, conn: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The event has the number of messages. The finding is a warning for a day, and its remedy never retains less."""
    await create_log(bus, storage="own", retention="30d", max_retention="60d")
    store = await bus.connect()
    await store.subscribe("t", "g", Start.NOW, "block")
    await bus.send_many("t", [1, 2, 3])
    await bus.admin.sweep()
    storage = await conn.fetchval("select storage_id from postbus.topic where name = 't'")
    topic = await conn.fetchval("select id from postbus.topic where name = 't'")
    with caplog.at_level(logging.INFO, "postbus"):
        await conn.execute(
            "select postbus.record_loss(l, array[$2::bigint], clock_timestamp()) "
            "from postbus.log_partition l where l.storage_id = $1 and l.epoch = 1",
            storage,
            topic,
        )
        await bus.admin.sweep()
        await bus.admin.sweep()
    [(level, fields)] = told(caplog, "group.lost")
    assert (level, fields["topic"], fields["group"], fields["messages"]) == (logging.WARNING, "t", "g", 3)
    [lost] = [one for one in await bus.admin.group_findings() if one.kind == "lost"]
    assert "--max-retention LONGER" in lost.remedy
    levels = [lost.level]
    await conn.execute("update postbus.loss set at = at - interval '2 days'")
    levels += [one.level for one in await bus.admin.group_findings() if one.kind == "lost"]
    assert levels == ["warning", "info"]


async def test_failing_handlers_are_logged_once_and_unhealthy(
    bus: Bus, conn: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A group whose calls all fail is logged once, with numbers, and is healthy again when they succeed."""
    await create_log(bus, max_attempts=1)
    is_broken = True

    @bus.subscribe("t", group="g", start=Start.BEGINNING)
    async def handle(payload: int) -> None:
        if is_broken:
            raise ValueError(payload)

    await bus.send_many("t", range(6))
    with caplog.at_level(logging.INFO, "postbus"):
        async with running(bus):
            await is_through(conn, passed=6)
        await bus.admin.sweep()
        await bus.admin.sweep()
        [(level, fields)] = told(caplog, "group.failing")
        assert (level, fields["topic"], fields["group"], fields["failed"], fields["calls"]) == (
            logging.WARNING, "t", "g", 6, 6
        )  # fmt: skip
        await conn.execute("update postbus.subscription set stopped_at = null")
        row = await bus.admin.group("t", "g")
        assert (row.problem_kind, row.problem) == ("failing", "6 of 6 calls failed in the last 5 minutes")
        is_broken = False
        await bus.send_many("t", range(20))
        async with running(bus):
            await is_through(conn, passed=26)
        await bus.admin.sweep()
    assert await conn.fetchval("select failing_since from postbus.subscription") is None
    assert len(told(caplog, "group.failing")) == 1


async def test_failing_pops_are_logged_too(bus: Bus, conn: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A popped message that is retried or given up counts like a failing handler."""
    await create_log(bus)
    await (await bus.connect()).subscribe("t", "g", Start.NOW, "block")
    await bus.send_many("t", range(12))
    popped = await bus.pop("t", group="g", batch=12)
    await tasks_are("postbus-sweep", 0)  # otherwise the sweep beside the pop may find the failures, and log them
    for number, one in enumerate(popped):
        match number % 3:
            case 0:
                await one.retry(delay=60)
            case 1:
                await one.dead_letter("no")
            case _:
                await one.ack()
    with caplog.at_level(logging.INFO, "postbus"):
        await bus.admin.sweep()
        await bus.admin.sweep()
    [(_, fields)] = told(caplog, "group.failing")
    assert (fields["failed"], fields["calls"]) == (8, 12)


async def test_released_messages_do_not_count_as_calls(bus: Bus, conn: Any) -> None:
    """Nobody has tried them."""
    await create_log(bus)
    await (await bus.connect()).subscribe("t", "g", Start.NOW, "block")
    await bus.send_many("t", range(6))
    await (await bus.pop("t", group="g", batch=6)).release()
    row = await bus.admin.group("t", "g")
    assert (row.recently_handled, row.recently_failed, row.healthy) == (0, 0, True)


async def test_call_counts_are_folded_and_expire(bus: Bus, conn: Any) -> None:
    """A thousand settlements a second leave few rows, and the sums stay."""
    await create_log(bus)
    info = await (await bus.connect()).subscribe("t", "g", Start.NOW, "block")
    await conn.execute(
        "insert into postbus.group_tally select $1, clock_timestamp() - n * interval '1 s' / 2, 2, 1 "
        "from generate_series(1, 590) as n",
        info.id,
    )
    before = await conn.fetchrow("select * from postbus.recent_calls($1)", info.id)
    storage = await conn.fetchval("select storage_id from postbus.topic where name = 't'")
    await conn.execute("select postbus.fold_tallies($1, clock_timestamp())", storage)
    rows = await conn.fetchval("select count(*) from postbus.group_tally")
    assert rows <= 5 + 19 + 21, "of five minutes, of one that has only begun, and of the last ten seconds"
    assert await conn.fetchval("select sum(handled) from postbus.group_tally") == 1180
    assert before["handled"] == 1180
    await conn.execute("select postbus.fold_tallies($1, clock_timestamp() + interval '1 hour')", storage)
    assert await conn.fetchval("select count(*) from postbus.group_tally") == 0


async def test_closing_a_bus_stops_the_groups_it_popped_for(bus: Bus, conn: Any, dsn: str) -> None:
    """A pulling consumer that closes its bus says goodbye, and a pop of another one ends the stop at once."""
    await create_log(bus)
    async with Bus.open(dsn) as other:
        await other.pop("t", group="g", member="cron")
        assert (await bus.admin.group("t", "g")).stopped_by is None
    row = await bus.admin.group("t", "g")
    assert (row.stopped_by, row.healthy) == ("cron", True)
    await bus.pop("t", group="g")
    assert (await bus.admin.group("t", "g")).stopped_by is None


async def test_closing_a_bus_leaves_a_dead_group_dead(bus: Bus, conn: Any, dsn: str) -> None:
    """A goodbye is no sign of life."""
    await create_log(bus)
    async with Bus.open(dsn) as other:
        await other.pop("t", group="g")
        await dies(bus, conn, dsn)
    assert (await bus.admin.group("t", "g")).state == "DEAD"


async def test_last_heartbeat_stops_a_group_in_its_scope(bus: Bus, conn: Any) -> None:
    """It stops the group in all topics of the scope, except where a worker consumes for it."""
    await create_log(bus, "a.one")
    await create_log(bus, "a.two")
    await bus.admin.subscribe_group("g", pattern="a.*")
    await bus.heartbeat("a.*", group="g", last=True, member="me")
    assert [one.stopped_by for one in await bus.admin.groups()] == ["me", "me"]
    await bus.heartbeat("a.*", group="g")
    assert [one.stopped_by for one in await bus.admin.groups()] == [None, None]
    await conn.execute("select postbus.heartbeat('w', 'host', 1, '{}')")
    await conn.execute(
        "insert into postbus.group_worker (subscription_id, worker) select max(id), 'w' from postbus.subscription"
    )
    await bus.heartbeat("a.*", group="g", last=True, member="me")
    assert sorted(one.stopped_by or "" for one in await bus.admin.groups()) == ["", "me"]


async def test_untaken_events_are_removed_after_a_day(bus: Bus, conn: Any) -> None:
    """The table stays small where only SQL sweeps."""
    await conn.execute(
        "insert into postbus.group_event (at, name, topic, group_name, fields) "
        "select clock_timestamp() - n * interval '23 hours', 'group.dead', 't', 'g', '{}' "
        "from generate_series(1, 3) as n"
    )
    await conn.execute("select postbus.sweep_subscriptions()")
    assert await conn.fetchval("select count(*) from postbus.group_event") == 1
