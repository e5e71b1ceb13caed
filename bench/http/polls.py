"""Many waiting polls on one server: their cost while idle, and how soon a message wakes one."""

from __future__ import annotations

import asyncio
import time

import msgspec

from bench.http.client import Connection, as_json, connections, served
from bench.http.throughput import Clients
from bench.latency import percentiles
from bench.machine import cpu_seconds, resident_mb
from bench.plan import Plan
from bench.report import Report
from postbus import Bus

_TOPIC = "bench.polls"
_RATE = 100
_LONGEST = 60.0  # seconds
_SETTLE = 1.0  # seconds until polls are idle


class _Stamped(msgspec.Struct):
    sent_ns: int


class _Message(msgspec.Struct):
    payload: _Stamped


class _PoppedStamp(msgspec.Struct):
    messages: list[_Message]


async def measure(clients: Clients, plan: Plan, report: Report) -> None:
    """Measure memory and processor time of a server with idle polls, and the time from a push until a poll wakes."""
    waits: list[int] = []
    count, all_came = int(_RATE * plan.latency_seconds), asyncio.Event()
    body = as_json({"wait": 60, "auto_ack": True})

    async def poll(one: Connection) -> None:
        while True:
            answer = await one.post(f"/v1/topics/{_TOPIC}/pop", body)
            now = time.monotonic_ns()
            waits.extend(now - got.payload.sent_ns for got in msgspec.json.decode(answer, type=_PoppedStamp).messages)
            if len(waits) == count:
                all_came.set()

    async with clients.lab.database() as dsn:
        async with Bus.open(dsn) as bus:
            await bus.admin.create_topic(_TOPIC)
        async with served(dsn, "--max-polls", str(plan.polls)) as server, connections(server, plan.polls) as opened:
            pusher = await Connection.open(server)
            before = resident_mb(server.pid)
            polling = [asyncio.create_task(poll(one)) for one in opened]
            try:
                await asyncio.sleep(_SETTLE + plan.polls / 1000)
                report.add(**await _idle(server.pid, plan, before))
                await _push(pusher, count)
                async with asyncio.timeout(_LONGEST):
                    await all_came.wait()
            finally:
                for task in polling:
                    task.cancel()
                await asyncio.gather(*polling, return_exceptions=True)
                await pusher.close()
    report.add(**percentiles("http_poll_wake_up", waits))
    report.check("http_poll_wake_up_p99_ms", report.figures["http_poll_wake_up_p99_ms"], "<", 50)
    report.check("http_polls_idle_cpu_percent", report.figures["http_polls_idle_cpu_percent"], "<", 20)
    report.check("http_poll_kib", report.figures["http_poll_kib"], "<", 100)


async def _idle(pid: int, plan: Plan, before: float) -> dict[str, float]:
    resident, cpu, began = resident_mb(pid), cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(plan.latency_seconds / 2)
    seconds = time.perf_counter() - began
    return {
        "http_polls": plan.polls,
        "http_polls_resident_mb": resident,
        "http_poll_kib": max(resident - before, 0.0) * 1024 / plan.polls,
        "http_polls_idle_cpu_percent": 100 * (cpu_seconds(pid) - cpu) / seconds,
    }


async def _push(pusher: Connection, count: int) -> None:
    """Push one message after the other, at a steady pace."""
    for _ in range(count):
        await pusher.post(f"/v1/topics/{_TOPIC}/messages", as_json({"payload": {"sent_ns": time.monotonic_ns()}}))
        await asyncio.sleep(1 / _RATE)
