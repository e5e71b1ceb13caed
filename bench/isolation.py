"""A quiet topic beside one at full speed, in the same database, process and connection pool."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from statistics import median
from typing import NamedTuple

from bench import load
from bench.consume import running
from bench.lab import Lab, connection
from bench.log.groups import all_hold_their_lane
from bench.plan import BATCH, Plan
from bench.processes import announce_end, elsewhere, until, until_over_or_ended
from bench.reads import Read, percentile_ms, read_times
from bench.report import Report
from bench.scenario import Scenario
from postbus import Bus, Start

_QUIET = "low-volume.events"
_QUIET_GROUPS = 2
_QUIET_RATE = 10  # messages per second
_NOISY = "high-volume.events"
_NOISY_GROUPS = 10
_LEAST_NOISE = 10_000  # messages per second: a lower rate would not be noise
_PATIENCE = 30.0  # seconds for the last messages of the quiet topic to be delivered
_HAS_BEGUN = "select exists (select from postbus.log where topic = $1)"


class _QuietMessage(NamedTuple):
    """A message of the quiet topic that one of its groups handled."""

    group: int
    number: int
    at: float
    lag: float
    """Seconds from before publishing until the handler."""


class _Consumed(NamedTuple):
    """The result of the consuming process."""

    quiet: list[_QuietMessage]
    quiet_reads: list[Read]
    noisy: list[int]
    """Handled messages, by group."""


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure the quiet topic alone for a quarter of the time, then beside the other one."""
    alone, beside = plan.isolation_seconds / 4, plan.isolation_seconds * 3 / 4
    async with lab.database() as dsn:
        async with Bus.open(dsn) as bus:
            for topic in (_QUIET, _NOISY):
                await bus.admin.create_topic(topic, semantics="PUB_SUB", tracking="OFFSET_WATERMARK", lanes=1)
        consuming = asyncio.create_task(elsewhere(partial(_consume, dsn)))
        await all_hold_their_lane(dsn, _QUIET_GROUPS + _NOISY_GROUPS, consuming)
        quiet = asyncio.create_task(elsewhere(partial(_publish_quietly, dsn, alone + beside)))
        await until(dsn, _HAS_BEGUN, _QUIET, worker=quiet)
        began = time.monotonic()
        await asyncio.sleep(alone)
        noisy = asyncio.create_task(elsewhere(partial(_publish_noisily, dsn, beside)))
        await until(dsn, _HAS_BEGUN, _NOISY, worker=noisy)
        noise_began = time.monotonic()
        noisy_published, noisy_seconds = await noisy
        noise_ended = time.monotonic()
        published = await quiet
        async with connection(dsn) as conn:
            await conn.execute("create table published as select $1::bigint as messages", published)
            seen = await consuming
    _report(report, seen, published, (began, noise_began), (noise_began, noise_ended))
    report.add(
        noisy_published_per_s=noisy_published / noisy_seconds,
        noisy_deliveries_per_s=sum(seen.noisy) / noisy_seconds,
        noisy_slowest_group_messages=min(seen.noisy),
        noisy_fastest_group_messages=max(seen.noisy),
    )
    report.check("noisy_published_per_s", report.figures["noisy_published_per_s"], ">=", _LEAST_NOISE)
    least = _LEAST_NOISE * _NOISY_GROUPS
    report.check("noisy_deliveries_per_s", report.figures["noisy_deliveries_per_s"], ">=", least)


def _report(
    report: Report, seen: _Consumed, published: int, alone: tuple[float, float], beside: tuple[float, float]
) -> None:
    for name, (began, ended) in (("alone", alone), ("beside_noise", beside)):
        reads = [one.seconds for one in seen.quiet_reads if began <= one.at < ended]
        lags = [one.lag for one in seen.quiet if began <= one.at < ended]
        report.add(
            **{
                f"quiet_{name}_fetches": len(reads),
                f"quiet_{name}_fetch_p50_ms": percentile_ms(reads, 0.5),
                f"quiet_{name}_fetch_p95_ms": percentile_ms(reads, 0.95),
                f"quiet_{name}_lag_p95_ms": percentile_ms(lags, 0.95),
                f"quiet_{name}_lag_median_s": median(lags) if lags else 0.0,
                f"quiet_{name}_lag_max_s": max(lags, default=0.0),
            }
        )
    handled = [len({one.number for one in seen.quiet if one.group == group}) for group in range(_QUIET_GROUPS)]
    report.add(quiet_published_messages=published, quiet_least_handled_messages=min(handled))
    report.check("quiet_fetches_beside_noise", report.figures["quiet_beside_noise_fetches"], ">=", 1)
    report.check("quiet_fetch_p95_ms", report.figures["quiet_beside_noise_fetch_p95_ms"], "<", 50)
    report.check("quiet_lag_max_s", max((one.lag for one in seen.quiet), default=0.0), "<", 10)
    report.check("quiet_handled_to_published_ratio", min(handled) / published, ">=", 1)


async def _publish_quietly(dsn: str, seconds: float) -> int:
    """Publish one message per transaction on a schedule. Returns how many there were."""
    rng = random.Random(6)
    count = int(seconds * _QUIET_RATE)
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        began = time.monotonic()
        for number in range(count):
            await asyncio.sleep(max(began + number / _QUIET_RATE - time.monotonic(), 0))
            async with conn.transaction():
                await bus.publish(conn, _QUIET, {**load.payload(rng, number), "sent_at": time.monotonic_ns()})
    return count


async def _publish_noisily(dsn: str, seconds: float) -> tuple[int, float]:
    """Publish batches at full speed. Returns the number of messages, and the seconds that they took."""
    given = load.payloads(BATCH, seed=7)
    count = 0
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            async with conn.transaction():
                await bus.publish_many(conn, _NOISY, given)
            count += len(given)
        taken = time.monotonic() - began
        await announce_end(conn)
    return count, taken


async def _consume(dsn: str) -> _Consumed:
    """Consume both topics with all groups, until the noise is over and the quiet groups have had all their messages."""
    seen = _Consumed([], [], [0] * _NOISY_GROUPS)
    with read_times(_QUIET) as reads:
        async with Bus.open(dsn) as bus, connection(dsn) as conn:
            _subscribe_quiet(bus, seen)
            _subscribe_noisy(bus, seen)
            async with running(bus) as worker:
                await until_over_or_ended(dsn, worker)
                noisy = list(seen.noisy)
                until_then = time.monotonic() + _PATIENCE
                while time.monotonic() < until_then and not worker.done():
                    await asyncio.wait([worker], timeout=0.1)
                    is_known = await conn.fetchval("select to_regclass('published') is not null")
                    wanted = await conn.fetchval("select messages from published") if is_known else None
                    if wanted is not None and len({one[:2] for one in seen.quiet}) >= _QUIET_GROUPS * wanted:
                        break
    return _Consumed(seen.quiet, reads, noisy)


def _subscribe_quiet(bus: Bus, seen: _Consumed) -> None:
    for group in range(_QUIET_GROUPS):

        @bus.subscribe(_QUIET, group=f"quiet-{group}", start=Start.NOW)
        async def handle(order: load.Order, group: int = group) -> None:
            now = time.monotonic()
            seen.quiet.append(_QuietMessage(group, order.number, now, now - order.sent_at / 1e9))


def _subscribe_noisy(bus: Bus, seen: _Consumed) -> None:
    for group in range(_NOISY_GROUPS):

        @bus.subscribe(_NOISY, group=f"noisy-{group}", start=Start.NOW, batch=1000)
        async def handle(orders: list[load.Order], group: int = group) -> None:
            seen.noisy[group] += len(orders)


SCENARIO = Scenario(
    "isolation",
    {"a quiet topic beside a noisy one": measure},
    lambda plan: {
        "quiet_groups": _QUIET_GROUPS,
        "quiet_messages_per_second": _QUIET_RATE,
        "noisy_groups": _NOISY_GROUPS,
        "noisy_batch": BATCH,
        "seconds": plan.isolation_seconds,
    },
)
