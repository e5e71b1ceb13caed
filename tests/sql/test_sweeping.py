"""Sweeping as operators see it: settings, due jobs, results of jobs, and health."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from support.eventually import eventually
from support.fix_database import Connect
from support.log_sql import (
    beat,
    create_topic,
    let_die,
    publish_many,
    refused,
    rotate,
    subscribe,
    sweep,
)
from support.queue_sql import ack, claim, publish

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)


async def set_sweeping(conn: Any, **options: Any) -> None:
    await conn.execute("select postbus.set_sweeping($1)", json.dumps(options))


async def settings(conn: Any) -> tuple[Any, ...]:
    return tuple(await conn.fetchrow("select * from postbus.sweeping()"))[:-1]


async def health(conn: Any, later: timedelta = timedelta(0), max_backlog: int = 1_000_000) -> Any:
    return await conn.fetchrow(
        "select * from postbus.sweep_health_as_of(clock_timestamp() + $1, $2)", later, max_backlog
    )


async def job(conn: Any, name: str) -> Any:
    return await conn.fetchrow("select * from postbus.sweep_jobs where job = $1", name)


async def finish(conn: Any, *payloads: str) -> None:
    """Publish messages to the queue q and finish them."""
    await publish(conn, *payloads, topic="q")
    await ack(conn, await claim(conn, topic="q"))


async def sweep_queue(conn: Any, later: timedelta = timedelta(0), *, if_due: bool = False) -> Any:
    return await conn.fetchrow(
        "select * from postbus.sweep_as_of(as_of => clock_timestamp() + $1, if_due => $2)", later, if_due
    )


async def closed_partition(conn: Any, *payloads: str, **options: Any) -> int:
    """Create a topic that retains nothing, with a closed partition. Returns its storage."""
    storage = await create_topic(conn, retention="0", zero_subscription_retention="0", **options)
    await publish_many(conn, *payloads)
    await rotate(conn, storage)
    await sweep(conn, storage)
    return storage


async def drops(conn: Any, storage: int, later: timedelta, *names: str) -> None:
    """Wait until a due sweep drops these partitions. Transactions of other databases may delay that."""
    query = "select dropped from postbus.sweep_log_as_of($1, clock_timestamp() + $2, if_due => true)"

    async def are_dropped() -> None:
        assert await conn.fetchval(query, storage, later) == list(names)

    await eventually(are_dropped)


# Settings


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("default", (5 * _MINUTE, 10_000, _MINUTE, 5 * _MINUTE, 30 * _DAY)),
        ("low_throughput", (15 * _MINUTE, 5_000, 5 * _MINUTE, 10 * _MINUTE, 30 * _DAY)),
        ("high_throughput", (_MINUTE, 50_000, _MINUTE, 5 * _MINUTE, 7 * _DAY)),
        ("critical", (5 * _MINUTE, 10_000, 2 * _MINUTE, 10 * _MINUTE, 90 * _DAY)),
    ],
)
async def test_presets_set_all_sweeping_options(conn: Any, preset: str, expected: tuple[Any, ...]) -> None:
    """The default preset applies from the start, and `heartbeat_timeout` applies to topics created later."""
    await create_topic(conn, "before")
    if preset == "default":
        assert await settings(conn) == expected
    await set_sweeping(conn, preset=preset)
    assert await settings(conn) == expected
    await create_topic(conn, "after")
    timeouts = dict(await conn.fetch("select name, heartbeat_timeout from postbus.topic where id <> 0"))
    assert timeouts == {"before": 5 * _MINUTE, "after": expected[3]}


async def test_each_value_is_set_alone_or_with_a_preset(conn: Any) -> None:
    """An explicit value overrides the preset's."""
    await set_sweeping(conn, preset="critical", interval="30 seconds")
    await set_sweeping(conn, batch_size=7, detection_interval="10s")
    await set_sweeping(conn, heartbeat_timeout="20 minutes", subscription_retention="1 day")
    assert await settings(conn) == (timedelta(seconds=30), 7, timedelta(seconds=10), 20 * _MINUTE, _DAY)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"audit_retention": "29 days"}, "30 days"),
        ({"preset": "reckless"}, "high_throughput"),
        ({"speed": 3}, "batch_size"),
        ({"interval": None}, "interval"),
        ({"interval": "1 second"}, "5 seconds"),
        ({"interval": "soon"}, "30s"),
        ({"batch_size": 0}, "1 to 1000000"),
        ({"detection_interval": "2 hours"}, "1 hour"),
        ({"heartbeat_timeout": "1 minute"}, "twice heartbeat_interval"),
        ({"subscription_retention": "0"}, "1 hour"),
    ],
)
async def test_bad_values_are_refused_with_a_remedy(conn: Any, options: dict[str, Any], remedy: str) -> None:
    """A refused call changes nothing, not even its valid options."""
    before = await settings(conn)
    assert remedy in await refused(set_sweeping(conn, **{"subscription_retention": "3 days", **options}), "PB402")
    assert await settings(conn) == before


# Due jobs


async def test_finished_messages_are_removed_once_per_interval(conn: Any) -> None:
    """The first caller after the interval removes them, and the others do nothing."""
    await conn.execute("""select postbus.create_topic('q', '{"retention": "1 hour"}')""")
    await set_sweeping(conn, interval="10 minutes")
    assert (await sweep_queue(conn, if_due=True))["finished_rows"] == 0
    await finish(conn, "a")
    hour = _HOUR + _MINUTE
    assert (await sweep_queue(conn, hour, if_due=True))["finished_rows"] == 1
    await finish(conn, "b")
    assert (await sweep_queue(conn, hour + 9 * _MINUTE, if_due=True))["finished_rows"] == 0
    assert (await sweep_queue(conn, hour + 11 * _MINUTE, if_due=True))["finished_rows"] == 1


async def test_batch_size_limits_a_sweep(conn: Any) -> None:
    """A sweep that reaches the limit reports `more`."""
    await conn.execute("""select postbus.create_topic('q', '{"retention": "1 hour"}')""")
    await set_sweeping(conn, batch_size=2)
    for payload in "abc":
        await finish(conn, payload)
    first, second = await sweep_queue(conn, _DAY), await sweep_queue(conn, _DAY)
    assert [(one["finished_rows"], one["more"]) for one in (first, second)] == [(2, True), (1, False)]


async def test_partitions_are_dropped_once_per_interval(conn: Any) -> None:
    """Counting messages, and beginning and closing partitions, do not wait for the interval."""
    storage = await closed_partition(conn, "a")
    await _nothing_is_open(conn)
    await conn.execute(
        "select postbus.note_run('drop_partitions', $1, 1, interval '5 minutes', clock_timestamp(), clock_timestamp())",
        storage,
    )
    await publish_many(conn, "b")
    await conn.execute("update postbus.log_storage set partition_bytes = 1")
    query = "select * from postbus.sweep_log_as_of($1, clock_timestamp() + $2, if_due => true)"
    swept = [await conn.fetchrow(query, storage, timedelta(seconds=n)) for n in range(4)]
    assert [one["counted"] for one in swept] == [1, 0, 0, 0]
    assert [one["opened"] for one in swept] == [None, 3, None, None]
    assert [one["dropped"] for one in swept] == [[]] * 4
    await _nothing_is_open(conn)
    await drops(conn, storage, 6 * _MINUTE, "segment_1_1")
    await drops(conn, storage, 12 * _MINUTE, "segment_1_2")


async def _nothing_is_open(conn: Any) -> None:
    """Wait until all transactions that were open when the partition was closed have ended."""

    async def has_ended() -> None:
        assert await conn.fetchval(
            "select bool_and(closed_txid < pg_snapshot_xmin(pg_current_snapshot())) from postbus.log_partition"
        )

    await eventually(has_ended)


async def test_blocked_drop_stays_due(conn: Any, connect: Connect) -> None:
    """A transaction that uses the partition delays its drop for no longer than it lasts."""
    storage = await closed_partition(conn, "a")
    await _nothing_is_open(conn)
    reader = await connect()
    query = "select dropped from postbus.sweep_log_as_of($1, clock_timestamp() + $2, if_due => true)"
    async with reader.transaction():
        await reader.fetch("select count(*) from postbus.segment_1_1")
        for seconds in range(3):
            assert await conn.fetchval(query, storage, 6 * _MINUTE + timedelta(seconds=seconds)) == []
    await drops(conn, storage, 6 * _MINUTE, "segment_1_1")


async def test_short_timeout_is_checked_often_whatever_the_setting(conn: Any) -> None:
    """Checks for heartbeats are never more than a fifth of the timeout apart."""
    await set_sweeping(conn, detection_interval="1 hour")
    storage = await create_topic(conn, heartbeat_interval="10s", heartbeat_timeout="50s")
    await subscribe(conn)
    died = [(await sweep(conn, storage, timedelta(seconds=n)))["dead"] for n in (20, 25, 31, 42, 51)]
    assert died == [0, 0, 0, 0, 1]


async def test_heartbeat_checks_keep_the_detection_interval(conn: Any) -> None:
    """With a long timeout the setting applies: after an outage a group has three intervals to send a heartbeat."""
    await set_sweeping(conn, detection_interval="10 minutes")
    storage = await create_topic(conn, heartbeat_timeout="2 hours")
    await subscribe(conn)
    minutes = (120, 125, 131, 139, 142)
    died = [(await sweep(conn, storage, n * _MINUTE))["dead"] for n in minutes]
    assert died == [0, 0, 0, 0, 1]


# Results of jobs


async def test_jobs_report_their_results(conn: Any) -> None:
    """The view shows runs, the last start and duration, and how much was removed then and in total."""
    await conn.execute("""select postbus.create_topic('q', '{"retention": "1 hour"}')""")
    storage = await closed_partition(conn, "a", "b", "c")
    await drops(conn, storage, 6 * _MINUTE, "segment_1_1")
    await finish(conn, "d")
    await sweep_queue(conn, _DAY)
    await publish(conn, "e", topic="q")
    await claim(conn, topic="q")
    await conn.execute("select postbus.return_expired_as_of(as_of => clock_timestamp() + interval '1 day')")
    await subscribe(conn)
    assert await let_die(conn, storage, _HOUR) == 1
    rows = {row["job"]: row for row in await conn.fetch("select * from postbus.sweep_jobs")}
    assert {name: (row["removed"], row["removed_total"]) for name, row in rows.items()} == {
        "sweep": (1, 1),
        "drop_partitions": (0, 3),  # the last run found nothing
        "detect_dead": (1, 1),
        "return_expired": (1, 1),
        "sweep_log": (0, 0),
    }
    now = await conn.fetchval("select clock_timestamp()")
    for row in rows.values():
        assert row["runs"] >= 1
        assert row["started_at"] >= now - _MINUTE
        assert timedelta(0) <= row["took"] < timedelta(seconds=10)
        assert row["error"] is None


async def test_idle_runs_are_recorded_once_per_interval(conn: Any) -> None:
    """A run that found nothing to do is counted only when the interval has passed."""
    for _ in range(5):
        await sweep_queue(conn)
        await conn.execute("select postbus.return_expired()")
    assert [(await job(conn, name))["runs"] for name in ("sweep", "return_expired")] == [1, 1]
    await sweep_queue(conn, 6 * _MINUTE)
    assert (await job(conn, "sweep"))["runs"] == 2


# Health


async def test_new_database_is_healthy(conn: Any) -> None:
    """It stays healthy, because there is no process to sweep and nothing to be swept."""
    await create_topic(conn)
    for later in (timedelta(0), 30 * _DAY):
        row = await health(conn, later)
        assert (row["healthy"], row["reason"], row["backlog"], row["processes"]) == (True, None, 0, 0)


async def test_backlog_is_unhealthy(conn: Any) -> None:
    """Expired messages and partitions count once a sweep should have removed them."""
    await conn.execute("""select postbus.create_topic('q', '{"retention": "1 hour"}')""")
    await closed_partition(conn, "a", "b")
    await finish(conn, "c", "d", "e")
    assert (await health(conn, timedelta(0), 4))["backlog"] == 0
    row = await health(conn, 2 * _HOUR, 4)
    assert (row["finished_rows"], row["finished_messages"]) == (1, 3)
    assert (row["partitions"], row["partition_messages"]) == (1, 2)
    assert (row["healthy"], row["backlog"]) == (False, 5)
    assert "5 messages are past their retention" in row["reason"]
    assert "5 messages are past" not in (await health(conn, 2 * _HOUR, 5))["reason"]


async def test_partition_that_a_group_needs_is_no_backlog(conn: Any) -> None:
    """It is kept on purpose, until `max_retention`."""
    storage = await create_topic(conn, retention="0", heartbeat_timeout="10 days", zombie_time="20 days")
    await subscribe(conn)
    await publish_many(conn, "a")
    await rotate(conn, storage)
    await sweep(conn, storage)
    await _nothing_is_open(conn)
    assert (await health(conn, _DAY))["partitions"] == 1, "nobody has looked yet"
    assert (await sweep(conn, storage))["dropped"] == []
    assert (await health(conn, _DAY))["partitions"] == 0
    assert (await health(conn, 31 * _DAY))["partitions"] == 1


async def test_sweeping_that_falls_behind_is_unhealthy(conn: Any) -> None:
    """With too small batches the backlog grows from interval to interval, although the jobs run."""
    await conn.execute("""select postbus.create_topic('q', '{"retention": "1 hour"}')""")
    await set_sweeping(conn, batch_size=1)
    states = []
    for round in range(1, 6):
        for payload in "abc":
            await finish(conn, payload)
        later = _DAY + round * 6 * _MINUTE
        assert (await sweep_queue(conn, later, if_due=True))["more"]
        states.append((await health(conn, later))["healthy"])
    assert states == [True, True, True, False, False]
    assert "falls behind" in (await health(conn, later))["reason"]
    while (await sweep_queue(conn, later))["more"]:
        pass
    await sweep_queue(conn, later + 6 * _MINUTE, if_due=True)
    assert (await health(conn, later))["healthy"]


async def test_health_reports_rates_of_publishing_and_sweeping(conn: Any) -> None:
    """The rates are averages over the last half hour."""
    storage = await create_topic(conn, retention="0", zero_subscription_retention="0")
    await sweep_queue(conn)
    await publish_many(conn, *"abcdef")
    await rotate(conn, storage)
    await sweep(conn, storage)
    await drops(conn, storage, 6 * _MINUTE, "segment_1_1")
    await publish_many(conn, *"ghijkl")
    await sweep(conn, storage)
    row = await health(conn, 10 * _MINUTE)
    assert row["published_rate"] == pytest.approx(12 / 600, rel=0.05)
    assert row["swept_rate"] == pytest.approx(6 / 600, rel=0.05)
    await sweep_queue(conn, 10 * _MINUTE)
    row = await health(conn, 10 * _MINUTE + 2 * _HOUR)
    assert (row["published_rate"], row["swept_rate"]) == (0, 0), "nothing in the last half an hour"


async def test_failed_job_is_unhealthy_until_it_succeeds(conn: Any) -> None:
    """The error remains readable after the next success."""
    await create_topic(conn)
    await conn.execute("select postbus.note_failure('sweep', 0, 'no space left on device')")
    row = await health(conn)
    assert (row["healthy"], row["reason"]) == (False, "sweep failed: no space left on device")
    await sweep_queue(conn)
    assert (await health(conn))["healthy"]
    await conn.execute("select postbus.note_failure('sweep_log', 2, 'deadlock')")
    assert (await health(conn))["reason"] == "sweep_log of storage 2 failed: deadlock"
    await sweep(conn, 2)
    assert (await health(conn))["healthy"]
    assert (await job(conn, "sweep_log"))["error"] == "deadlock", "it is still to be read"


async def test_job_that_does_not_run_beside_live_processes_is_unhealthy(conn: Any) -> None:
    """Each job has its own deadline."""
    storage = await create_topic(conn)
    await beat(conn, "w")
    later = 20 * _MINUTE
    await conn.execute("update postbus.worker set seen_at = seen_at + $1::interval", later)
    assert "sweep has not run since" in (await health(conn, later))["reason"]
    await sweep_queue(conn, later)
    while (await sweep(conn, storage, later))["more"]:
        pass
    await conn.execute("select postbus.return_expired_as_of(as_of => clock_timestamp() + $1::interval)", later)
    assert (await health(conn, later))["reason"] is None
    await conn.execute("update postbus.worker set seen_at = seen_at + interval '4 hours'")
    reason = (await health(conn, later + 4 * _HOUR))["reason"]
    assert "drop_partitions of storage 2 has not run" in reason
    assert "subscriptions has not run" in reason


async def test_run_of_more_than_ten_seconds_is_unhealthy(conn: Any) -> None:
    """The duration of the last recorded run counts, and long runs are always recorded."""
    await sweep_queue(conn)
    note = "select postbus.note_run('sweep', 0, 0, '5 minutes', clock_timestamp() - $1::interval, clock_timestamp())"
    await conn.execute(note, timedelta(seconds=11))
    assert "sweep took 11.0 s" in (await health(conn))["reason"]
    await conn.execute(note, timedelta(seconds=9))
    assert (await health(conn))["healthy"]


# No process sweeps


async def test_publishers_without_a_sweeper_are_unhealthy(conn: Any) -> None:
    """The open partition is found overdue from its messages alone, and the remedy is named."""
    await create_topic(conn)
    await publish(conn, "one")
    assert (await health(conn, 2 * _HOUR))["healthy"], "its period is two hours"
    found = await health(conn, 3 * _HOUR)
    assert not found["healthy"]
    assert found["processes"] == 0
    assert "postbus sweep --forever" in found["reason"]
    assert "open partition of storage 2" in found["reason"]


async def test_nothing_is_overdue_right_after_an_outage_of_the_server(conn: Any) -> None:
    """Nobody could sweep meanwhile, so jobs are due three intervals after the server's start."""
    await create_topic(conn)
    await publish(conn, "one")
    overdue = "select count(*) from postbus.sweep_overdue(clock_timestamp() + $1, clock_timestamp() + $2)"
    assert await conn.fetchval(overdue, 9 * _HOUR, 9 * _HOUR - _MINUTE) == 0
    assert await conn.fetchval(overdue, 9 * _HOUR, 9 * _HOUR - 20 * _MINUTE) == 1


async def test_new_message_in_an_old_partition_is_healthy(conn: Any) -> None:
    """A topic that was silent for days is not overdue when a message arrives."""
    await create_topic(conn)
    await conn.execute("update postbus.log_partition set opened_at = opened_at - interval '9 days'")
    await publish(conn, "one")
    assert (await health(conn))["healthy"]


async def test_longer_lasting_partition_beside_old_messages_is_healthy(conn: Any) -> None:
    """While a group keeps messages for days, a partition is overdue only after 1/64 of that time."""
    storage = await create_topic(conn, retention="1 h", zero_subscription_retention="1 h", heartbeat_timeout="30 d")
    await subscribe(conn)
    await publish_many(conn, "old")
    await rotate(conn, storage)
    await sweep(conn, storage)
    await conn.execute("update postbus.log_partition set closed_at = closed_at - interval '128 h' where epoch = 1")
    await publish_many(conn, "new")
    overdue = "select count(*) from postbus.sweep_overdue(clock_timestamp() + $1, '-infinity') o where o ~ 'open'"

    assert await conn.fetchval(overdue, _HOUR) == 0
    assert await conn.fetchval(overdue, 3 * _HOUR) == 1


async def test_partition_that_nobody_drops_is_unhealthy(conn: Any) -> None:
    """It has been past its retention for three intervals, and no process has checked it since."""
    storage = await closed_partition(conn, *"abc")
    await sweep(conn, storage, -_HOUR)
    assert (await health(conn, 10 * _MINUTE))["healthy"]
    found = await health(conn, 40 * _MINUTE)
    assert not found["healthy"]
    assert "3 messages in 1 partitions of storage 1 are past their retention" in found["reason"]


async def test_lowered_retention_raises_no_alarm(conn: Any) -> None:
    """Messages past a new retention are not overdue before the next sweep was due."""
    storage = await create_topic(conn)
    await publish(conn, "one")
    await rotate(conn, storage)
    later = 3 * _HOUR
    await sweep(conn, storage, later)
    await conn.execute(
        """select postbus.set_topic('t', '{"retention": "1 min", "zero_subscription_retention": "1 min"}')"""
    )
    await conn.execute(
        "update postbus.log_partition set opened_at = opened_at + interval '3 hours' where closed_at is null"
    )
    assert (await health(conn, later))["healthy"]


@pytest.mark.parametrize("left", ["finished", "dedup", "lease", "group", "subscription"])
async def test_neglected_work_is_unhealthy(conn: Any, left: str) -> None:
    """It may be finished messages, deduplication keys, expired leases, groups to be found DEAD or ended
    subscriptions."""
    if left == "finished":
        await conn.execute("""select postbus.create_topic('q', '{"retention": "1 min"}')""")
        await finish(conn, "a")
    elif left == "dedup":
        await conn.execute("""select postbus.create_topic('q', '{"dedup_window": "1 min"}')""")
        await conn.execute("select postbus.publish('q', '1'::jsonb, dedup_key => 'k')")
    elif left == "lease":
        await publish(conn, "a", topic="q")
        assert await claim(conn, topic="q")
    else:
        await create_topic(conn)
        await subscribe(conn)
    later = _HOUR
    if left == "subscription":
        await conn.execute("select postbus.set_group_state('t', 'g', 'CANCELLED')")
        later = 31 * _DAY
    assert (await health(conn))["healthy"]
    found = await health(conn, later)
    assert not found["healthy"]
    words = {
        "finished": "finished messages",
        "dedup": "keys",
        "lease": "1 leases",
        "group": "1 groups",
        "subscription": "1 subscriptions that ended",
    }
    assert words[left] in found["reason"]
    assert "no process sweeps" in found["reason"]


async def test_sweepers_count_as_processes(conn: Any) -> None:
    """Processes that only sweep count for a while after each sign of life, and until they say goodbye."""
    await conn.execute("select postbus.note_sweeper('serve:1', 'host', 1)")
    await beat(conn, "w")
    assert (await health(conn))["processes"] == 2
    assert (await health(conn, 2 * _MINUTE))["processes"] == 0
    await conn.execute("select postbus.forget_sweeper('serve:1')")
    assert (await health(conn))["processes"] == 1
