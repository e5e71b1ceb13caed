"""Eighteen days of a topic with a partition per day, and a check for each expectation.

One group is paused from the second day to the tenth: its messages have to stay beyond their retention. Another
group is killed on the ninth day: its messages must not stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import asyncpg

from bench.lab import Lab, connection
from bench.partitions import processes
from bench.partitions.processes import ENOUGH, TOPIC, PacedGroupRun, Published
from bench.partitions.watch import PartitionWatch
from bench.plan import Plan
from bench.processes import announce_end, doomed, elsewhere, until
from bench.reads import Read, percentile_ms
from bench.report import Report
from bench.series import point
from bench.sweeper import STORAGE, Sweeper
from bench.upkeep import beside
from postbus import Bus

RETENTION = 7
# Days from the beginning:
_PAUSE_AT = 1.5
_FIRST_IS_GONE_BY = 8.5
_KILL_AT = 9.0
_RESUME_AT = 9.5
_RESUME_BY = 16.0
"""A pause takes effect within three seconds, so with short days the first message that it misses is of a later day."""
DAYS = 18.5
"""By then the partition of the kill is past its retention …"""
_GONE_BY = 26.0
"""… and by then it has to be gone, even if the sweep is late."""

_FAST, _PAUSED, _KILLED = "email", "analytics", "inventory"
_PAUSES = {_FAST: 0.0, _PAUSED: 0.0005, _KILLED: 0.004}
_LATE = 0.3  # seconds that the sweep may need
_NEAR = 0.3  # seconds around a change of a partition
_ARE_WORKING = "select count(*) filter (where passed > 0) = $1 from postbus.groups"
_IS_LET_GO = """
    select count(l.holder) = 0 from postbus.subscription s join postbus.lane l on l.subscription_id = s.id
     where s.group_name = $1
"""
_HAVE_ALL = "select count(*) = $1 from postbus.groups where state = 'ACTIVE' and lag = 0"
_STATE = "select state from postbus.groups where group_name = $1"


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn:
        await _create_topic(bus, conn, plan.day)
        sizes, watch = Sweeper(dsn, tables="segment%"), PartitionWatch(dsn)
        working = [asyncio.create_task(elsewhere(_worker(dsn, group))) for group in (_FAST, _PAUSED)]
        with doomed(_worker(dsn, _KILLED)) as process:
            await until(dsn, "select count(holder) >= 12 from postbus.lane", worker=working[0])
            async with beside(sizes.run()), beside(watch.run()):
                publishing = asyncio.create_task(elsewhere(partial(processes.publish, dsn, plan.day_rate)))
                await until(dsn, _ARE_WORKING, 3, worker=publishing)
                days = _Days(plan.day)
                await _live(dsn, bus, conn, days, watch, report, process, working)
                report.check("zombie_lacks_leaves_that_are_dropped", len(_lacked_and_dropped(watch, days)), ">=", 1)
                left = _overdue(watch, days)
                growth = sizes.mean_bytes(days.at(DAYS - 1), days.at(DAYS)), sizes.mean_bytes(days.at(8), days.at(9))
                await announce_end(conn, ENOUGH)
                published = await publishing
                await until(dsn, _HAVE_ALL, 2, worker=working[0])
        await announce_end(conn)
        worked = await asyncio.gather(*working)
        state = await conn.fetchval(_STATE, _KILLED)
        emptied = await _empty(conn, sizes)
    _report_days(report, days, sizes, published.calls, [read for one in worked for read in one.reads])
    _report_leaves(report, watch, plan.day, left)
    _report_groups(report, published, worked, state)
    _report_latency(report, watch, published.calls, [read for one in worked for read in one.reads])
    _report_size(report, sizes.most_bytes, growth, emptied)


class _Days:
    """The calendar of the run."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began = time.monotonic()

    def at(self, day: float) -> float:
        return self.began + day * self.seconds

    async def until(self, day: float) -> None:
        await asyncio.sleep(max(self.at(day) - time.monotonic(), 0))

    async def until_seen(self, day: float, watch: PartitionWatch, is_so: Callable[[], bool]) -> None:
        """Wait until a sample of the partitions shows something, or the given time has come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.at(day) - time.monotonic()), watch.has_looked:
                await watch.has_looked.wait_for(is_so)


def _worker(dsn: str, group: str) -> partial[Coroutine[Any, Any, PacedGroupRun]]:
    return partial(processes.work, dsn, group, _PAUSES[group])


async def _create_topic(bus: Bus, conn: asyncpg.Connection, day: float) -> None:
    await bus.admin.create_topic(
        TOPIC,
        semantics="PUB_SUB",
        tracking="OFFSET_WATERMARK",
        storage="own",
        lanes=4,
        lease=1.0,
        heartbeat_interval=1.0,
        heartbeat_timeout=2.0,
        retention=RETENTION * day,
        zero_subscription_retention=RETENTION * day,
        dead_retention=0,
    )
    await conn.execute("update postbus.log_storage set period = make_interval(secs => $1)", day)


async def _live(
    dsn: str,
    bus: Bus,
    conn: asyncpg.Connection,
    days: _Days,
    watch: PartitionWatch,
    report: Report,
    process: Any,
    working: list[asyncio.Task[PacedGroupRun]],
) -> None:
    """The events of these days, and the checks at certain moments."""
    await days.until(_PAUSE_AT)
    await bus.admin.pause_group(TOPIC, _PAUSED)
    await until(dsn, _IS_LET_GO, _PAUSED, worker=working[1])
    await days.until(_FIRST_IS_GONE_BY)
    first = watch.partitions[min(watch.partitions)]
    report.check("first_leaf_dropped_on_day_8", float(bool(first.dropped_at)), ">=", 1)
    await days.until(_KILL_AT)
    process.kill()
    await days.until(_RESUME_AT)
    # Those of the second day: their retention is over, but a live group has not had them.
    await days.until_seen(_RESUME_BY, watch, lambda: bool(_overdue(watch, days)))
    report.check("leaves_kept_for_a_live_group", len(_overdue(watch, days)), ">=", 1)
    await bus.admin.resume_group(TOPIC, _PAUSED)
    await days.until(_KILL_AT + 6)
    report.check("zombie_is_dead_on_day_15", float(await conn.fetchval(_STATE, _KILLED) == "DEAD"), ">=", 1)
    await days.until(DAYS)
    await days.until_seen(_GONE_BY, watch, lambda: bool(_lacked_and_dropped(watch, days)) and not _overdue(watch, days))


def _overdue(watch: PartitionWatch, days: _Days) -> list[int]:
    """Partitions that are still there although their retention has been over for a moment."""
    due = time.monotonic() - RETENTION * days.seconds - _LATE
    return [partition.epoch for partition in watch.closed() if partition.closed_at < due and not partition.dropped_at]


def _lacked_and_dropped(watch: PartitionWatch, days: _Days) -> list[int]:
    """Dropped partitions that were written to when the group was killed, or later."""
    return [partition.epoch for partition in watch.dropped() if partition.closed_at >= days.at(_KILL_AT)]


async def _empty(conn: asyncpg.Connection, sizes: Sweeper) -> int:
    """Sweep until all published messages are dropped. Returns the bytes that are left."""
    for days in range(1, 40):  # a new partition is opened, the old one closed, and all are dropped one by one
        await conn.execute("select postbus.sweep_log_as_of($1, now() + make_interval(days => $2))", STORAGE, days)
    return await sizes.look()


def _report_days(report: Report, days: _Days, sizes: Sweeper, calls: list[Read], reads: list[Read]) -> None:
    """The checks of the partitions, day by day."""
    for day in range(1, int(DAYS) + 1):
        began, ended = days.at(day - 1), days.at(day)
        report.add(**{point("size_of_leaves_mb", "day", day): sizes.mean_bytes(began, ended) / 2**20})
        for name, times in (("publish", calls), ("fetch", reads)):
            of_day = [one.seconds for one in times if began <= one.at < ended]
            report.add(**{point(f"latency_{name}_p95_ms", "day", day): percentile_ms(of_day, 0.95)})


def _report_leaves(report: Report, watch: PartitionWatch, day: float, left: list[int]) -> None:
    closed, dropped = watch.closed(), watch.dropped()
    kept_days = [(partition.dropped_at - partition.last_at) / day for partition in dropped]
    report.add(
        leaves_made=len(watch.partitions),
        leaves_dropped=len(dropped),
        leaf_messages_mean=sum(partition.messages for partition in closed) / max(len(closed), 1),
        kept_shortest_days=min(kept_days, default=0.0),
        kept_longest_days=max(kept_days, default=0.0),
    )
    # Each is written to for a day, and until the next sweep.
    report.check("leaves_made_by_themselves", len(closed), ">=", int(0.75 * DAYS))
    report.check(
        "leaves_made_ahead_ratio", sum(partition.was_ahead for partition in closed) / max(len(closed), 1), ">=", 1
    )
    report.check("leaves_dropped", len(dropped), ">=", int(0.75 * (DAYS - RETENTION - 1)))
    report.check("kept_shortest_days", min(kept_days, default=0.0), ">=", RETENTION)
    report.check("leaves_pinned_by_the_zombie", len(left), "<", 1)


def _report_groups(report: Report, published: Published, worked: list[PacedGroupRun], state: str) -> None:
    lost = sum(one.missing + published.messages - 1 - one.last for one in worked)
    report.add(
        published_messages=published.messages,
        lost_messages=lost,
        zombie_is_dead=float(state == "DEAD"),
    )
    report.check("publish_failures", published.failures, "<", 1)
    report.check("lost_messages", lost, "<", 1)


def _report_latency(report: Report, watch: PartitionWatch, calls: list[Read], reads: list[Read]) -> None:
    """Compare the calls near a change of a partition with all others."""
    for name, times in (("publish", calls), ("fetch", reads)):
        near, apart = _divided(times, watch.events)
        report.add(
            **{
                f"{name}_p50_ms": percentile_ms([one.seconds for one in times], 0.5),
                f"{name}_p95_ms": percentile_ms([one.seconds for one in times], 0.95),
                f"{name}_max_ms": percentile_ms([one.seconds for one in times], 1.0),
                f"{name}_near_changes_p95_ms": percentile_ms(near, 0.95),
                f"{name}_apart_p95_ms": percentile_ms(apart, 0.95),
                f"{name}_near_changes": len(near),
            }
        )
        ratio = report.figures[f"{name}_near_changes_p95_ms"] / max(report.figures[f"{name}_apart_p95_ms"], 0.001)
        report.check(f"{name}_near_changes_to_apart_p95_ratio", ratio, "<", 2)
        report.check(f"{name}_p95_ms", report.figures[f"{name}_p95_ms"], "<", 50)


def _divided(times: list[Read], events: list[float]) -> tuple[list[float], list[float]]:
    near: list[float] = []
    apart: list[float] = []
    for one in times:
        is_near = any(-_NEAR < one.at - at < _NEAR for at in events)
        (near if is_near else apart).append(one.seconds)
    return near, apart


def _report_size(report: Report, most: int, growth: tuple[float, float], emptied: int) -> None:
    late, early = growth
    report.add(
        size_largest_mb=most / 2**20,
        size_on_day_8_mb=early / 2**20,
        size_at_end_mb=late / 2**20,
        size_when_all_is_dropped_mb=emptied / 2**20,
    )
    report.check("size_growth_percent", 100 * (late / max(early, 1) - 1), "<", 20)
    report.check("space_that_came_back_percent", 100 * (1 - emptied / most), ">=", 95)
