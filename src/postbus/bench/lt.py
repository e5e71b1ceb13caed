"""Load tests of fan-out: a steady rate to many groups, each with its own durable position."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, NamedTuple

from postbus import Bus, Start
from postbus._segment import Piece
from postbus._store import Store
from postbus.bench import load
from postbus.bench.lab import Lab, connection
from postbus.bench.load import PAYLOAD_BYTES
from postbus.bench.log.fanout import publish_paced
from postbus.bench.machine import machine
from postbus.bench.plan import Plan
from postbus.bench.processes import elsewhere
from postbus.bench.progress import Progress
from postbus.bench.report import Report

_TOPIC = "bench.load"
PARTS = ("steady load",)


class _Test(NamedTuple):
    groups: int
    rate: int


TESTS = {"lt5": _Test(16, 10_000), "lt6": _Test(64, 10_000), "lt7": _Test(100, 30_000)}


class Followed(NamedTuple):
    """What the consuming process saw."""

    handled: int
    lags: list[float]
    """The age of the last message that the slowest group has handled, once per second."""
    read_seconds: list[float]


async def run(name: str, lab: Lab, plan: Plan, progress: Progress) -> Report:
    """Publish at the test's rate from one process, consume in another, and watch."""
    test = TESTS[name]
    settings = {
        **await lab.settings(),
        "payload_bytes": PAYLOAD_BYTES,
        "groups": test.groups,
        "messages_per_second": test.rate,
        "seconds": plan.load_seconds,
    }
    report = Report(name, machine(), settings)
    progress.begin(PARTS[0])
    await _measure(test, lab, plan, report)
    progress.end()
    return report


async def _measure(test: _Test, lab: Lab, plan: Plan, report: Report) -> None:
    async with lab.database() as dsn:
        async with Bus.open(dsn) as bus:
            await bus.admin.create_topic(_TOPIC, semantics="PUB_SUB", lanes=1, storage="own", retention="1 minute",
                                         zero_subscription_retention="1 minute")  # fmt: skip
        consuming = asyncio.create_task(elsewhere(partial(_consumer, dsn, test.groups, plan.load_seconds)))
        await asyncio.sleep(4.0)
        rate = await elsewhere(partial(_publisher, dsn, test.rate, plan.load_seconds))
        followed = await consuming
        async with connection(dsn) as conn:
            published = await conn.fetchval("select sum(count) from postbus.segment") or 0
            dead, live = await conn.fetchrow(  # type: ignore[misc]
                "select sum(n_dead_tup), sum(n_live_tup) from pg_stat_user_tables where schemaname = 'postbus'"
            )
            began = time.perf_counter()
            await conn.execute("update postbus.storage set period = '0'")
            for days in range(1, 6):  # a new leaf, the old one closed, and dropped
                await conn.execute("select postbus.sweep_log(100, now() + make_interval(days => $1))", days)
            swept = time.perf_counter() - began
            left = await conn.fetchval("select sum(count) from postbus.segment") or 0
    lags, reads = followed.lags, sorted(followed.read_seconds)
    half = len(lags) // 2
    report.add(
        published_per_s=rate,
        deliveries_per_s=followed.handled / plan.load_seconds,
        delivered_messages=followed.handled,
        lag_median_s=sorted(lags)[half],
        lag_max_s=max(lags),
        lag_first_half_s=sum(lags[:half]) / half,
        lag_second_half_s=sum(lags[half:]) / (len(lags) - half),
        fetch_p50_ms=1000 * reads[len(reads) // 2],
        fetch_p95_ms=1000 * reads[int(len(reads) * 0.95)],
        fetches=len(reads),
        dead_tuple_percent=100 * float(dead or 0) / max(float((dead or 0) + (live or 0)), 1),
        swept_messages=published - left,
        sweep_per_s=(published - left) / swept,
    )
    report.check("published_to_wanted_rate_ratio", rate / test.rate, ">=", 0.98)
    report.check("delivered_to_published_ratio", followed.handled / (published * test.groups), ">=", 1)
    report.check("lag_max_s", max(lags), "<", 5)
    report.check("lag_growth_s", report.figures["lag_second_half_s"] - report.figures["lag_first_half_s"], "<", 1)
    report.check("fetch_p95_ms", report.figures["fetch_p95_ms"], "<", 10)
    report.check("dead_tuple_percent", report.figures["dead_tuple_percent"], "<", 20)
    report.check("sweep_to_publish_rate_ratio", report.figures["sweep_per_s"] / rate, ">=", 1)


def _publisher(dsn: str, rate: int, seconds: float) -> float:
    return asyncio.run(publish_paced(dsn, _TOPIC, rate, seconds, batch=max(rate // 100, 1)))


def _consumer(dsn: str, groups: int, seconds: float) -> Followed:
    return asyncio.run(_follow(dsn, groups, seconds))


async def _follow(dsn: str, groups: int, seconds: float) -> Followed:
    seen = _Seen(groups)
    reads: list[float] = []
    lags: list[float] = []
    whole = Store.read_log

    async def timed(self: Store, *args: Any, **options: Any) -> Piece:
        began = time.perf_counter()
        piece = await whole(self, *args, **options)
        if piece.segments:
            reads.append(time.perf_counter() - began)
        return piece

    Store.read_log = timed  # type: ignore[method-assign]
    async with Bus.open(dsn) as bus:
        for number in range(groups):
            _subscribe(bus, number, seen)
        worker = asyncio.create_task(bus.run())
        began = time.monotonic()
        while time.monotonic() - began < seconds + 8 and not worker.done():
            await asyncio.sleep(1.0)
            if min(seen.sent_at) and time.monotonic() - began < seconds + 3:
                lags.append((time.monotonic_ns() - min(seen.sent_at)) / 1e9)
        bus.stop()
        await worker
    return Followed(sum(seen.handled), lags or [0.0, 0.0], reads or [0.0])


class _Seen:
    """What each group has handled: how many messages, and when the last of them was sent."""

    def __init__(self, groups: int) -> None:
        self.handled = [0] * groups
        self.sent_at = [0] * groups


def _subscribe(bus: Bus, number: int, seen: _Seen) -> None:
    @bus.subscribe(_TOPIC, group=f"group-{number}", start=Start.NOW, batch=1000)
    async def handle(orders: list[load.Order]) -> None:
        for order in orders:  # looks at every message
            if order.sent_at:
                seen.sent_at[number] = order.sent_at
        seen.handled[number] += len(orders)
