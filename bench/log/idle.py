"""The cost of many topics and groups in an idle process."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from bench import load
from bench.consume import running
from bench.lab import Lab, connection
from bench.log.groups import all_hold_their_lane
from bench.machine import server_cpu_seconds
from bench.plan import Plan
from bench.processes import elsewhere
from bench.report import Report
from postbus import Bus, Start


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure the processor time of an idle process and of its server, with few and with many topics and groups."""
    topics, groups = plan.topics, plan.groups
    async with lab.database() as few, lab.database() as many:
        for dsn, topic_count, group_count in ((few, 10, 10), (many, topics, groups)):
            async with connection(dsn) as conn:
                await conn.execute(
                    "select count(*) from generate_series(1, $1) as n, "
                    "lateral (select postbus.create_topic('bench.' || n, $2)) as made",
                    topic_count,
                    '{"semantics": "PUB_SUB", "lanes": 1}',
                )
            async with Bus.open(dsn) as bus, connection(dsn) as conn:
                for number in range(10):
                    await load.fill(bus, conn, f"bench.{1 + number}", load.payloads(1000), plan.few)
            seconds = await elsewhere(partial(_run, dsn, group_count, plan.latency_seconds))
            name = "few" if dsn == few else "many"
            report.add(**{f"idle_{name}_groups_client_cpu_percent": 100 * seconds[0]})
            report.add(**{f"idle_{name}_groups_server_cpu_percent": 100 * seconds[1]})
            report.add(**{f"idle_{name}_groups": group_count, f"idle_{name}_topics": topic_count})
    report.check("idle_many_groups_client_cpu_percent", report.figures["idle_many_groups_client_cpu_percent"], "<", 50)


async def _run(dsn: str, groups: int, wanted_seconds: float) -> tuple[float, float]:
    """The share of a processor that a process with idle groups uses, and the share that its server uses."""
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        backend = conn.get_server_pid()
        for number in range(groups):

            @bus.subscribe(f"bench.{1 + number}", group="idle", start=Start.NOW)
            async def handle(order: load.Order) -> None:
                return

        async with running(bus) as worker:
            await all_hold_their_lane(dsn, groups, worker)
            await asyncio.sleep(wanted_seconds / 2)  # until all of them are idle
            began, cpu, server = time.perf_counter(), time.process_time(), server_cpu_seconds(backend)
            await asyncio.sleep(wanted_seconds)
            seconds = time.perf_counter() - began
            return (time.process_time() - cpu) / seconds, (server_cpu_seconds(backend) - server) / seconds
