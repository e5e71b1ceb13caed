"""Over time: dead rows while a transaction stays open, and the memory of workers."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial

import asyncpg

from bench import load, peer
from bench.consume import running
from bench.curves.topics import LOG, QUEUE
from bench.lab import Lab, connection
from bench.machine import resident_mb
from bench.plan import Plan
from bench.processes import announce_end, elsewhere, until, until_over
from bench.report import Report
from bench.series import point
from postbus import Bus, Start

_RATE = 1000  # messages per second, to each
_BATCH = 50
_LOOKS = 15
_MOST_GROWTH_MB = 20.0
_TABLES = {
    "queue": ("queued", "delayed", "lease"),
    "log": ("segment_%", "cursor", "lane", "subscription", "receipt_%", "topic_count", "storage_count"),
    "handwritten": ("handwritten",),
}
_DEAD = "select coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables where relname like any ($1::text[])"
_IS_AT_WORK = "select to_regclass('worked_queue') is not null and to_regclass('worked_log') is not null"

_Memory = list[tuple[float, float]]


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Send a thousand messages a second through the queue, the log and the hand-written queue, in other processes."""
    seconds = plan.points.over_seconds
    async with lab.database() as dsn, connection(dsn) as conn, connection(dsn) as old:
        async with Bus.open(dsn) as bus:
            await bus.admin.create_topic(QUEUE)
            await bus.admin.create_topic(LOG, semantics="PUB_SUB", lanes=1)
        await peer.create(conn)
        workers = {
            kind: asyncio.create_task(elsewhere(partial(_consume, dsn, kind, seconds))) for kind in ("queue", "log")
        }
        publishing = asyncio.create_task(elsewhere(partial(_publish, dsn)))
        await until(dsn, _IS_AT_WORK, worker=publishing)
        await old.execute("begin isolation level repeatable read; select pg_current_xact_id()")
        dead = await _watch(conn, seconds)
        await old.execute("rollback")
        publishing.cancel()
        await asyncio.wait([publishing])
        await announce_end(conn)
        memory = {kind: await worker for kind, worker in workers.items()}
    for at, by_kind in dead:
        report.add(**{point(f"dead_{kind}_rows", "seconds", round(at, 1)): rows for kind, rows in by_kind.items()})
    for kind, marks in memory.items():
        report.add(**{point(f"worker_memory_{kind}_mb", "seconds", round(at, 1)): mb for at, mb in marks})
        later = [mb for at, mb in marks if at >= seconds / 3]
        report.check(f"worker_memory_{kind}_growth_mb", later[-1] - later[0], "<", _MOST_GROWTH_MB)
    last = dead[-1][1]
    for kind in ("queue", "log"):
        ratio = last[kind] / max(last["handwritten"], 1)
        report.check(f"dead_{kind}_to_handwritten_rows_ratio", ratio, "<", 1)


async def _watch(conn: asyncpg.Connection, seconds: float) -> list[tuple[float, dict[str, int]]]:
    """Sample the dead rows of each kind, from the server's statistics."""
    seen = []
    began = time.monotonic()
    for look in range(_LOOKS + 1):
        await asyncio.sleep(max(began + look * seconds / _LOOKS - time.monotonic(), 0))
        at = time.monotonic() - began
        seen.append((at, {kind: await conn.fetchval(_DEAD, names) for kind, names in _TABLES.items()}))
    return seen


async def _publish(dsn: str) -> None:
    """Publish batches to all three, and consume the hand-written queue, until this process is terminated."""
    rng = random.Random(9)
    given = [load.payload(rng, number) for number in range(_BATCH)]
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        began, sent = time.monotonic(), 0
        while True:
            await asyncio.sleep(max(began + sent / _RATE - time.monotonic(), 0))
            for topic in (QUEUE, LOG):
                async with conn.transaction():
                    await bus.publish_many(conn, topic, given)
            await peer.fill(conn, given, _BATCH)
            await peer.lease_and_delete(conn, batch=_BATCH)
            sent += _BATCH


async def _consume(dsn: str, kind: str, seconds: float) -> _Memory:
    """Consume until the run is over. Returns samples of this process's memory, from the first message on."""
    memory: _Memory = []
    has_begun = asyncio.Event()
    group = "bench" if kind == "log" else None
    async with Bus.open(dsn) as bus, connection(dsn) as conn:

        @bus.subscribe(LOG if group else QUEUE, group=group, start=Start.NOW, concurrency=10)
        async def handle(order: load.Order) -> None:
            has_begun.set()

        async with running(bus) as worker:
            over = asyncio.create_task(until_over(dsn))
            await asyncio.wait([asyncio.create_task(has_begun.wait()), worker], return_when=asyncio.FIRST_COMPLETED)
            await conn.execute(f"create table worked_{kind} ()")
            began = time.monotonic()
            while not over.done() and not worker.done():
                memory.append((time.monotonic() - began, resident_mb()))
                await asyncio.wait([over, worker], timeout=seconds / _LOOKS, return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
    return memory
