"""The timeline of the run, and a check for each expectation."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from functools import partial
from statistics import mean
from typing import Any

import asyncpg

from bench.kill import processes
from bench.kill.processes import TOPIC
from bench.lab import Lab, connection
from bench.plan import Plan
from bench.processes import announce_end, doomed, elsewhere, until
from bench.report import Report
from bench.sweeper import Sweeper
from bench.upkeep import beside
from postbus import Bus, CatchUp

RATE = 1000  # messages per second
_STEADY = ("email", "analytics")
_KILLED = "inventory"
# In minutes of the timeline:
_KILL_AT = 4
_DEAD_FOR = 10
_TIMEOUT = 3
_RETENTION = 2
_LEAF = 0.5

_STATE = "select state from postbus.groups where group_name = $1"
_ARE_WORKING = "select count(*) filter (where passed > 0) = $1 from postbus.groups"
_IS_DEAD = "select state = 'DEAD' from postbus.groups where group_name = $1"
_IS_WELL = """
    select count(*) filter (where state = 'ACTIVE' and lag < $2 and retrying = 0 and parked = 0
                              and catch_up is distinct from 'IN_PROGRESS') = $1
      from postbus.groups
"""
_LAST = "select id from postbus.log where topic = $1 order by id desc limit 1"
_UNHEARD = """
    select extract(epoch from state_changed_at - seen_at)::float8 from postbus.groups where group_name = $1
"""
_CAUGHT_UP = """
    select total, skipped, extract(epoch from ended_at - started_at)::float8 as seconds from postbus.catch_ups
"""


def bound(plan: Plan) -> int:
    """How many messages the group may catch up with: a ninth of what it misses."""
    return int(RATE * _DEAD_FOR * plan.minute / 9)


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn:
        await _create_topic(bus, conn, plan.minute)
        upkeep = Sweeper(dsn)
        working = [asyncio.create_task(elsewhere(partial(processes.work, dsn, group))) for group in _STEADY]
        async with beside(upkeep.run()):
            with doomed(partial(processes.work, dsn, _KILLED)) as process:
                publishing = asyncio.create_task(elsewhere(partial(processes.publish, dsn, RATE)))
                await until(dsn, _ARE_WORKING, 3, worker=publishing)
                await asyncio.sleep(_KILL_AT * plan.minute)
                process.kill()
            await _die(dsn, conn, plan, report, upkeep, publishing)
            passed = (await bus.admin.group(TOPIC, _KILLED)).passed or 0
            catch_up = CatchUp(max_messages=bound(plan), beside_from=100)
            working.append(asyncio.create_task(elsewhere(partial(processes.work, dsn, _KILLED, catch_up))))
            await _come_back(dsn, conn, plan, report, working[-1])
            await asyncio.sleep(plan.minute)
            publishing.cancel()
            await asyncio.wait([publishing])
            await until(dsn, _IS_WELL, 3, 1, worker=working[-1])
        passed = ((await bus.admin.group(TOPIC, _KILLED)).passed or 0) - passed
        await announce_end(conn)
        *steady, back = await asyncio.gather(*working)
    lags = [lag for one in steady for lag in one.lags]
    report.add(
        caught_up_handled_messages=len(back.numbers) - passed,
        others_lag_mean_s=mean(lags),
        others_lag_max_s=max(lags),
        lost_messages=sum(_gaps(one.numbers) for one in (*steady, back)),
    )
    report.check(
        "bounded_backfill_handled_messages", report.figures["caught_up_handled_messages"], "<", bound(plan) + 1
    )
    report.check("no_stalls_others_lag_max_s", max(lags), "<", 1)
    report.check("no_stalls_lost_messages", report.figures["lost_messages"], "<", 1)


async def _create_topic(bus: Bus, conn: asyncpg.Connection, minute: float) -> None:
    await bus.admin.create_topic(
        TOPIC,
        semantics="PUB_SUB",
        storage="own",
        lanes=4,
        lease=max(minute, 1.0),
        heartbeat_interval=max(minute, 1.0),
        heartbeat_timeout=_TIMEOUT * max(minute, 1.0),
        retention=_RETENTION * minute,
        zero_subscription_retention=_RETENTION * minute,
        dead_retention=0,
    )
    await conn.execute("update postbus.log_storage set period = make_interval(secs => $1)", _LEAF * minute)


async def _die(
    dsn: str, conn: asyncpg.Connection, plan: Plan, report: Report, upkeep: Sweeper, publishing: asyncio.Task[Any]
) -> None:
    """From the kill to the end of the time in which nobody works for the group."""
    killed, killed_at = time.monotonic(), await conn.fetchval("select clock_timestamp()")
    is_active = await conn.fetchval(_STATE, _KILLED) == "ACTIVE"
    healthy = upkeep.mean_bytes(killed - plan.minute, killed)
    await until(dsn, _IS_DEAD, _KILLED, worker=publishing)
    unheard = await conn.fetchval(_UNHEARD, _KILLED)
    last = await conn.fetchval(_LAST, TOPIC)
    required = await conn.fetchval("select required from postbus.message_state($1, $2)", TOPIC, last)
    await asyncio.sleep(max(killed + _DEAD_FOR * plan.minute - time.monotonic(), 0))
    now = time.monotonic()
    oldest: datetime = await conn.fetchval("select min(published_at) from postbus.segment")
    report.add(
        detection_s=unheard,
        detection_minutes=unheard / plan.minute,
        size_healthy_mb=healthy / 2**20,
        size_dead_mb=upkeep.mean_bytes(now - plan.minute, now) / 2**20,
        size_largest_mb=upkeep.most_bytes / 2**20,
        oldest_message_after_kill_minutes=(oldest - killed_at).total_seconds() / plan.minute,
    )
    report.check("dead_detection_active_when_killed", float(is_active), ">=", 1)
    report.check("dead_detection_minutes", report.figures["detection_minutes"], "<", 5)
    report.check("dead_detection_required_groups_left", len(set(required) - {_KILLED}), ">=", 2)
    report.check("dead_detection_required_for_the_dead", float(_KILLED in required), "<", 1)
    # All that was published before the kill is gone, and more: nothing is kept for the dead.
    oldest_minutes = report.figures["oldest_message_after_kill_minutes"]
    report.check("cleanup_unblocked_oldest_message_after_kill_minutes", oldest_minutes, ">=", _DEAD_FOR / 2)
    growth = 100 * (report.figures["size_dead_mb"] / report.figures["size_healthy_mb"] - 1)
    report.check("growth_while_dead_percent", growth, "<", 10)


async def _come_back(dsn: str, conn: asyncpg.Connection, plan: Plan, report: Report, back: asyncio.Task[Any]) -> None:
    began = time.monotonic()
    await until(dsn, "select exists (select from postbus.catch_ups)", worker=back)
    await until(dsn, _IS_WELL, 3, RATE // 2, worker=back)
    found = await conn.fetchrow(_CAUGHT_UP)
    assert found is not None
    report.add(
        caught_up_messages=found["total"],
        skipped_messages=found["skipped"],
        catch_up_s=found["seconds"],
        recovery_s=time.monotonic() - began,
    )
    report.check("bounded_backfill_messages", found["total"], "<", bound(plan) + 1)
    report.check("bounded_backfill_skipped_messages", found["skipped"], ">=", 1)
    report.check("bounded_backfill_minutes", found["seconds"] / plan.minute, "<", 5)
    report.check("steady_state_recovery_minutes", report.figures["recovery_s"] / plan.minute, "<", 30)


def _gaps(numbers: list[int]) -> int:
    """The numbers that are missing between the first and the last."""
    return max(numbers) - min(numbers) + 1 - len(set(numbers))
