"""How a catch-up affects an application and live groups, whether it yields to load, and whether it can be cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import asyncpg

from bench.catch_up import groups, oltp
from bench.catch_up.groups import LATE, LIVE, TOPIC, CatchUpState
from bench.lab import Lab, connection
from bench.log.fanout import publish_paced
from bench.plan import Plan
from bench.processes import announce_end, elsewhere, until
from bench.report import Report
from postbus import Bus, CatchUp

LIVE_RATE = 1000  # messages per second
TRANSACTIONS = 500  # per second
_LONGEST = 3600.0
_LOOK = 0.25  # seconds
_WINDOW = 10.0  # seconds: the p95 is taken of windows of this length
_HOGS = 8  # connections of the extra load: more than the machine has cores
_ALL_ARE_LIVE = "select count(*) = $1 from postbus.groups where passed > 0"
_IS_LET_GO = """
    select count(l.holder) = 0 from postbus.catch_ups u join postbus.lane l on l.subscription_id = u.subscription_id
     where u.group_name = $1
"""


def options(plan: Plan) -> dict[str, Any]:
    """The options of the catch-up, for the report."""
    chosen = _options(plan)
    return {"batch_size": chosen.batch_size, "max_rate": chosen.max_rate, "target_latency_ms": 1000 * chosen.latency}


def _options(plan: Plan) -> CatchUp:
    """Aggressive and without a limit of messages; with smaller reads if the history is small."""
    aggressive = CatchUp.aggressive()
    return replace(
        aggressive,
        max_messages=None,
        max_rate=plan.history_rate,
        batch_size=min(aggressive.batch_size, plan.history // 60),
        beside_from=min(aggressive.beside_from, plan.history // 10),
    )


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure alone, beside live groups, beside the catch-up, and with a load that the catch-up has to yield to."""
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(TOPIC, semantics="PUB_SUB")
        await oltp.create(conn)
        await elsewhere(partial(groups.fill, dsn, plan.history))
        await conn.execute("checkpoint")  # so that earlier writes do not slow down what follows
        run = _Run(dsn, bus, conn, plan)
        application = asyncio.create_task(elsewhere(partial(oltp.run, dsn, TRANSACTIONS)))
        await until(dsn, "select max(id) > $1 from orders", oltp.ORDERS, worker=application)
        await run.phase("alone")
        live = asyncio.create_task(elsewhere(partial(groups.follow, dsn)))
        publishing = asyncio.create_task(elsewhere(partial(publish_paced, dsn, TOPIC, LIVE_RATE, _LONGEST, batch=10)))
        await until(dsn, _ALL_ARE_LIVE, len(LIVE), worker=live)
        await run.phase("baseline")
        late = asyncio.create_task(elsewhere(partial(groups.come_late, dsn, _options(plan), plan.history)))
        await until(dsn, "select exists (select from postbus.catch_ups)", worker=late)
        await run.catch_up(late)
        await announce_end(conn)
        done, lags, handled = await asyncio.gather(application, live, late)
        publishing.cancel()
        await asyncio.wait([publishing])
        end = await groups.progress(conn)
        passed = end.processed + ((await bus.admin.group(TOPIC, LATE)).passed or 0)
    _report_application(report, run, done)
    _report_throttle(report, run)
    _report_groups(report, run, lags)
    _report_history(report, plan, run, end, handled, passed)


class _Run:
    """The phases of a run, and the progress that the catch-up reported in them."""

    def __init__(self, dsn: str, bus: Bus, conn: asyncpg.Connection, plan: Plan) -> None:
        self.phases: list[tuple[str, float, float]] = []
        self.seen: list[CatchUpState] = []
        self.while_cancelled = 0
        """Messages that were processed after the catch-up had been cancelled."""
        self.rate_before_load = 0.0
        self.ended = 0.0
        self._dsn = dsn
        self._bus = bus
        self._conn = conn
        self._plan = plan

    async def phase(self, name: str) -> None:
        began = time.monotonic()
        await asyncio.sleep(min(20.0, self._plan.catch_up_seconds / 6))
        self.phases.append((name, began, time.monotonic()))

    async def catch_up(self, late: asyncio.Task[Any]) -> None:
        """Run it undisturbed, cancel and resume it, run it beside a heavy load, then undisturbed again."""
        plan, seconds = self._plan, self._plan.catch_up_seconds
        await self._watch("catch-up", seconds / 4, lambda now: now.processed >= 0.3 * plan.history)
        await self._interrupt(late)
        await self._resume(late)
        await self._watch("catch-up", seconds / 6, lambda now: now.processed >= 0.45 * plan.history)
        self.rate_before_load = self.seen[-1].allowed_rate or plan.history_rate  # until it reports another rate
        hogs = asyncio.create_task(elsewhere(partial(_keep_busy, self._dsn, seconds / 8)))
        await self._watch("load", seconds, lambda _: hogs.done())
        await hogs
        await self._watch("recovery", seconds / 4, lambda now: (now.allowed_rate or 0.0) >= self.rate_before_load)
        left = seconds - (time.monotonic() - self.began)
        await self._watch("catch-up", max(left, seconds / 6), lambda _: False)
        self.ended = time.monotonic()
        await self._interrupt(late)

    @property
    def began(self) -> float:
        return next(began for name, began, _ in self.phases if name == "catch-up")

    async def _watch(self, name: str, seconds: float, is_enough: Callable[[CatchUpState], bool]) -> None:
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            await asyncio.sleep(_LOOK)
            now = await groups.progress(self._conn)
            self.seen.append(now)
            if now.status == "COMPLETED" or is_enough(now):
                break
        self.phases.append((name, began, time.monotonic()))

    async def _interrupt(self, late: asyncio.Task[Any]) -> None:
        """Cancel it unless it has ended, and measure the baseline again."""
        if (await groups.progress(self._conn)).status == "IN_PROGRESS":
            await self._bus.admin.cancel_catch_up(TOPIC, LATE)
            await until(self._dsn, _IS_LET_GO, LATE, worker=late)
        before = (await groups.progress(self._conn)).processed
        await self.phase("baseline")
        self.while_cancelled += (await groups.progress(self._conn)).processed - before

    async def _resume(self, late: asyncio.Task[Any]) -> None:
        now = await groups.progress(self._conn)
        if now.status == "CANCELLED":
            await self._bus.admin.resume_catch_up(TOPIC, LATE)
            await until(self._dsn, "select processed > $1 from postbus.catch_ups", now.processed, worker=late)

    def of(self, name: str, done: list[oltp.Done]) -> list[oltp.Done]:
        return [
            one for phase, began, ended in self.phases if phase == name for one in done if began <= one.began < ended
        ]

    def said_in(self, *names: str) -> list[CatchUpState]:
        return [
            one for phase, began, ended in self.phases if phase in names for one in self.seen if began < one.at <= ended
        ]

    def seconds(self, name: str) -> float:
        return sum(ended - began for phase, began, ended in self.phases if phase == name)


def _report_application(report: Report, run: _Run, done: list[oltp.Done]) -> None:
    for name in ("alone", "baseline", "catch-up", "load"):
        report.add(**{f"oltp_{name.replace('-', '_')}_p95_ms": oltp.p95_ms(run.of(name, done))})
    during = run.of("catch-up", done)
    late = sorted(one.late for one in during)
    report.add(
        oltp_catch_up_worst_window_p95_ms=oltp.worst_window_ms(during, _WINDOW),
        oltp_transactions=len(done),
        oltp_behind_schedule_p95_ms=1000 * late[int(len(late) * 0.95)],
        oltp_per_s=len(during) / run.seconds("catch-up"),
    )
    ratio = report.figures["oltp_catch_up_p95_ms"] / report.figures["oltp_baseline_p95_ms"]
    report.check("oltp_catch_up_to_baseline_p95_ratio", ratio, "<", 2)
    report.check("oltp_catch_up_p95_ms", report.figures["oltp_catch_up_p95_ms"], "<", 100)


def _report_throttle(report: Report, run: _Run) -> None:
    """The allowed rate has to fall while the load lasts, and to recover afterwards."""
    before = run.rate_before_load
    lowest = min((one.allowed_rate for one in run.said_in("load", "recovery") if one.allowed_rate), default=0.0)
    highest = max((one.allowed_rate for one in run.said_in("recovery", "catch-up") if one.allowed_rate), default=0.0)
    p95s = [one.p95_ms for one in run.said_in("catch-up") if one.p95_ms is not None] or [0.0]
    p95s_loaded = [one.p95_ms for one in run.said_in("load") if one.p95_ms is not None] or [0.0]
    report.add(
        allowed_rate_before_load_per_s=before,
        allowed_rate_lowest_per_s=lowest,
        allowed_rate_recovered_per_s=highest,
        recovery_s=run.seconds("recovery"),
        catch_up_statement_p95_median_ms=median(p95s),
        catch_up_statement_p95_beside_load_ms=max(p95s_loaded),
    )
    report.check("allowed_rate_beside_load_to_before_ratio", lowest / max(before, 1), "<", 0.8)
    report.check("allowed_rate_recovered_to_before_ratio", highest / max(before, 1), ">=", 0.8)


def _report_groups(report: Report, run: _Run, lags: list[groups.Lag]) -> None:
    periods = [(began, ended) for name, began, ended in run.phases if name == "catch-up"]
    during = [lag for began, ended in periods for lag in groups.between(lags, began, ended)]
    first, last = groups.between(lags, *periods[0]), groups.between(lags, *periods[-1])
    report.add(live_lag_median_s=median(during), live_lag_max_s=max(during))
    report.check("live_lag_max_s", max(during), "<", 5)
    report.check("live_lag_growth_s", median(last) - median(first), "<", 1)


def _report_history(
    report: Report, plan: Plan, run: _Run, end: CatchUpState, handled: groups.LateGroupRun, passed: int
) -> None:
    said = run.said_in("catch-up")
    report.add(
        history_processed_messages=end.processed,
        history_handled_messages=handled.once,
        history_handled_again_messages=handled.again,
        history_rate_per_s=median(one.rate for one in said),
        history_s=run.ended - run.began,
        is_complete=float(end.status == "COMPLETED"),
    )
    report.check("handled_to_passed_ratio", (handled.once + handled.later) / max(passed, 1), ">=", 1)
    if end.status == "COMPLETED":
        report.check("history_handled_to_published_ratio", handled.once / plan.history, ">=", 1)
    report.check("history_handled_again_messages", handled.again, "<", 2 * _options(plan).batch_size)
    report.check("processed_while_cancelled_messages", run.while_cancelled, "<", 1)


async def _keep_busy(dsn: str, seconds: float) -> None:
    """Overload the server's processors."""
    until_then = time.monotonic() + seconds

    async def one() -> None:
        async with connection(dsn) as conn:
            while time.monotonic() < until_then:
                await conn.execute("select count(*) from generate_series(1, 200000)")

    await asyncio.gather(*(one() for _ in range(_HOGS)))
