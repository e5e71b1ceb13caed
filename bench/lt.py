"""Load tests of fan-out: a steady rate to many groups, each at its own position, with and without receipts."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from statistics import mean, median
from typing import NamedTuple

import asyncpg

from bench import load, receipts
from bench.consume import running
from bench.lab import Lab, connection
from bench.log.fanout import publish_paced
from bench.log.groups import all_hold_their_lane
from bench.plan import Plan
from bench.processes import elsewhere
from bench.reads import percentile_ms, read_times
from bench.report import Report
from bench.scenario import Scenario
from bench.upkeep import Upkeep, beside, disk_mb_per_s
from postbus import Bus, Start
from postbus.options import Tracking

_TOPIC = "bench.load"
_STORAGE = 100  # id of the first log storage that belongs to one topic
_KEPT = "select coalesce(sum(count), 0) from postbus.segment"
_PATIENCE = 30.0  # seconds for the last messages to be delivered


class _Test(NamedTuple):
    groups: int
    rate: int
    tracking: Tracking = "OFFSET_WATERMARK"

    @property
    def has_receipts(self) -> bool:
        return self.tracking == "REFERENCE_COUNTING"


class Followed(NamedTuple):
    """The result of the consuming process."""

    handled: list[int]
    """Handled messages, by group."""
    lags: list[float]
    """The age of the last message that the slowest group has handled, sampled once per second."""
    read_seconds: list[float]


async def _measure(test: _Test, lab: Lab, plan: Plan, report: Report) -> None:
    async with lab.database() as dsn:
        async with Bus.open(dsn) as bus:
            await bus.admin.create_topic(_TOPIC, semantics="PUB_SUB", tracking=test.tracking, lanes=plan.lanes,
                                         storage="own", retention="1 minute",
                                         zero_subscription_retention="1 minute")  # fmt: skip
        async with connection(dsn) as conn:
            await conn.execute("create table published (messages bigint not null)")
        consuming = asyncio.create_task(elsewhere(partial(_follow, dsn, test.groups)))
        await all_hold_their_lane(dsn, plan.lanes * test.groups, consuming)
        if test.has_receipts:
            async with connection(dsn) as conn:
                await receipts.age_ledger(conn)
        upkeep = Upkeep(dsn)
        async with beside(upkeep.watch()):
            rate = await elsewhere(partial(_publish, dsn, test.rate, plan.load_seconds))
            followed = await consuming
        async with connection(dsn) as conn:
            published: int = await conn.fetchval("select messages from published")
            if test.has_receipts:
                await receipts.measure(conn, report, topic=_TOPIC, storage=_STORAGE, groups=test.groups)
            swept, seconds = await _sweep(conn)
    lags, reads = followed.lags, followed.read_seconds
    half = len(lags) // 2
    report.add(
        published_per_s=rate,
        published_messages=published,
        deliveries_per_s=sum(followed.handled) / plan.load_seconds,
        delivered_messages=sum(followed.handled),
        delivered_again_messages=sum(max(handled - published, 0) for handled in followed.handled),
        lag_median_s=median(lags),
        lag_max_s=max(lags),
        lag_first_half_s=mean(lags[:half] or lags),
        lag_second_half_s=mean(lags[half:]),
        fetch_p50_ms=percentile_ms(reads, 0.5),
        fetch_p95_ms=percentile_ms(reads, 0.95),
        fetches=len(reads),
        **upkeep.figures(),
        swept_messages=swept,
        sweep_per_s=swept / seconds,
    )
    report.check("published_to_wanted_rate_ratio", rate / test.rate, ">=", 0.98)
    report.check("delivered_to_published_ratio", min(followed.handled) / published, ">=", 1)
    report.check("lag_max_s", max(lags), "<", 5)
    report.check("lag_growth_s", report.figures["lag_second_half_s"] - report.figures["lag_first_half_s"], "<", 1)
    report.check("fetch_p95_ms", report.figures["fetch_p95_ms"], "<", 10)
    report.check("bloat_worst_table_percent", report.figures["bloat_worst_table_percent"], "<", 20)
    if lab.is_ours:
        report.add(disk_mb_per_s=disk_mb_per_s())
        report.check(
            "wal_to_disk_rate_ratio", report.figures["wal_mb_per_s"] / report.figures["disk_mb_per_s"], "<", 0.5
        )
    report.check("sweep_to_publish_rate_ratio", report.figures["sweep_per_s"] / rate, ">=", 1)


async def _sweep(conn: asyncpg.Connection) -> tuple[int, float]:
    """Sweep until all published messages are dropped. Returns their number, and how many seconds it took."""
    kept = await conn.fetchval(_KEPT)
    began = time.perf_counter()
    await conn.execute("update postbus.log_storage set period = '0'")
    for days in range(1, 6):  # a new partition is opened, and the old one closed and dropped
        await conn.execute("select postbus.sweep_log_as_of($1, now() + make_interval(days => $2))", _STORAGE, days)
    seconds = time.perf_counter() - began
    return kept - await conn.fetchval(_KEPT), seconds


def _scenario(name: str, test: _Test) -> Scenario:
    return Scenario(
        name,
        {"steady load": partial(_measure, test)},
        lambda plan: {
            "groups": test.groups,
            "messages_per_second": test.rate,
            "tracking": test.tracking,
            "lanes": plan.lanes,
            "seconds": plan.load_seconds,
        },
    )


SCENARIOS = (
    *(
        _scenario(f"lt{number}", _Test(groups=groups, rate=10_000, tracking="REFERENCE_COUNTING"))
        for number, groups in enumerate((4, 8, 16, 32), 1)
    ),
    _scenario("lt5", _Test(groups=16, rate=10_000)),
    _scenario("lt6", _Test(groups=64, rate=10_000)),
    _scenario("lt7", _Test(groups=100, rate=30_000)),
)


async def _publish(dsn: str, rate: int, seconds: float) -> float:
    """Publish at a pace. Returns the number of messages as the database counts them, after a sweep."""
    published_per_s = await publish_paced(dsn, _TOPIC, rate, seconds, batch=max(rate // 100, 1))
    async with connection(dsn) as conn:
        async with conn.transaction():
            # A sweep that is already running may have begun too early to count everything.
            await conn.execute("select pg_advisory_xact_lock(hashtext('postbus.sweep_log'), $1)", _STORAGE)
            await conn.execute("select postbus.sweep_log($1)", _STORAGE)
        await conn.execute("insert into published select sum(messages) from postbus.topic_count")
    return published_per_s


async def _follow(dsn: str, groups: int) -> Followed:
    """Consume until each group has had all messages, and sample the lag meanwhile."""
    seen = _Arrivals(groups)
    lags: list[float] = []
    published: int | None = None
    with read_times(_TOPIC) as reads:
        async with Bus.open(dsn) as bus, connection(dsn) as conn:
            for number in range(groups):
                _subscribe(bus, number, seen)
            async with running(bus) as worker:
                while published is None and not worker.done():
                    await asyncio.wait([worker], timeout=1.0)
                    published = await conn.fetchval("select messages from published")
                    if published is None and all(seen.sent_at):
                        lags.append((time.monotonic_ns() - min(seen.sent_at)) / 1e9)
                until = time.monotonic() + _PATIENCE
                while published is not None and min(seen.handled) < published and time.monotonic() < until:
                    await asyncio.wait([worker], timeout=0.1)
    return Followed(seen.handled, lags or [0.0], [one.seconds for one in reads])


class _Arrivals:
    """How many messages each group has handled, and when the last of them was sent."""

    def __init__(self, groups: int) -> None:
        self.handled = [0] * groups
        self.sent_at = [0] * groups


def _subscribe(bus: Bus, number: int, seen: _Arrivals) -> None:
    @bus.subscribe(_TOPIC, group=f"group-{number}", start=Start.NOW, batch=1000)
    async def handle(orders: list[load.Order]) -> None:
        for order in orders:  # decodes every message
            if order.sent_at:
                seen.sent_at[number] = order.sent_at
        seen.handled[number] += len(orders)
