"""By lanes and processes: the processes of one group share the lanes of a topic."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from bench import load
from bench.consume import DrainFailed, running
from bench.curves.at_once import publish_at_once
from bench.lab import Lab, connection
from bench.plan import BATCH, Plan
from bench.processes import announce_end, elsewhere, until, until_over_or_ended
from bench.report import Report
from bench.series import point
from postbus import Bus, Start

_GROUP = "readers"
_ARE_SHARED = """
    select count(*) = $2 and max(lanes) <= ceil($3 / $2::float8)
      from (select count(*) as lanes from postbus.lane l
              join postbus.subscription s on s.id = l.subscription_id
              join postbus.topic t on t.id = s.topic_id
             where t.name = $1 and l.holder is not null group by l.holder) as held
    having sum(lanes) = $3
"""
_HAS_ALL = "select passed >= $2 from postbus.groups where topic = $1"


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """One commit makes all messages visible, after the processes have divided the lanes among themselves."""
    async with lab.database() as dsn:
        for processes in plan.points.processes:
            for lanes in plan.points.lanes:
                if processes <= lanes:
                    name = f"consume_{processes}_process{'es' if processes > 1 else ''}_per_s"
                    rate = await _rate(dsn, lanes, processes, plan.points.lane_messages)
                    report.add(**{point(name, "lanes", lanes): rate})


async def _rate(dsn: str, lanes: int, processes: int, count: int) -> float:
    topic, over = f"bench.lanes-{lanes}-{processes}", f"over_{lanes}_{processes}"
    given = load.payloads(count)
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(topic, semantics="PUB_SUB", tracking="OFFSET_WATERMARK", lanes=lanes)
        members = [asyncio.create_task(elsewhere(partial(_consume, dsn, topic, over))) for _ in range(processes)]
        await until(dsn, _ARE_SHARED, topic, processes, lanes, worker=members[0])
        committed = await publish_at_once(bus, conn, topic, given, batch=BATCH)
        await until(dsn, _HAS_ALL, topic, count, worker=members[0])
        await announce_end(conn, over)
        had = await asyncio.gather(*members)
    if sum(handled for handled, _ in had) != count:
        raise DrainFailed(f"{sum(handled for handled, _ in had)} messages were handled instead of {count}")
    return count / (max(last for _, last in had) - committed)


async def _consume(dsn: str, topic: str, over: str) -> tuple[int, float]:
    """Consume until the run is over. Returns the number of messages, and the time of the last one."""
    handled, last = 0, 0.0
    async with Bus.open(dsn) as bus:

        @bus.subscribe(topic, group=_GROUP, start=Start.NOW, batch=1000)
        async def handle(orders: list[load.Order]) -> None:
            nonlocal handled, last
            handled += len(orders)
            last = time.monotonic()

        async with running(bus) as worker:
            await until_over_or_ended(dsn, worker, over)
    return handled, last
