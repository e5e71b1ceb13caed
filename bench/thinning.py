"""Publishing to a topic while its old messages are deleted from partitions that a group of another topic needs."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from statistics import median

import asyncpg

from bench import load
from bench.lab import Lab, connection
from bench.plan import Plan
from bench.processes import elsewhere
from bench.report import Report
from bench.scenario import Scenario
from bench.upkeep import beside
from postbus import Bus
from postbus._maintenance.sweeper import Sweeper

_LOAD = "thinning.load"
_NEIGHBOUR = "thinning.neighbour"
_CLERKS = 2
_AT_ONCE = 10  # messages per transaction
_ROUNDS = 6  # of each kind, by turns; two in the quick form
_WARM_SECONDS = 0.5  # seconds of each round that do not count
_SHORTEST = 0.75  # seconds of a round that count: in less, no partition may be swept
_PERIOD = 0.5  # seconds
_BETWEEN = 0.5  # seconds between two sweeps
_REMOVED = "select coalesce(sum(removed_total), 0)::bigint from postbus.sweep_job where job = 'drop_partitions'"
_KEPT = {"retention": "1 day", "zero_subscription_retention": "1 day", "max_retention": "30 days"}
_GOING = {"retention": "0", "zero_subscription_retention": "0", "max_retention": "0"}


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure by turns: the topic keeps its messages, or those of all closed partitions are deleted meanwhile."""
    rounds = min(_ROUNDS, 2 * plan.rounds)
    seconds = max(plan.isolation_seconds / (2 * rounds), _SHORTEST)
    rates: dict[bool, list[float]] = {False: [], True: []}
    removed: list[int] = []
    async with lab.database() as dsn, connection(dsn) as conn:
        await _create_topics(conn)
        async with beside(_sweep(dsn)):
            for number in range(2 * rounds):
                is_thinned = number % 4 in (1, 2)  # so that neither kind always comes first
                options = json.dumps(_GOING if is_thinned else _KEPT)
                await conn.execute("select postbus.set_topic($1, $2)", _LOAD, options)
                before = await conn.fetchval(_REMOVED)
                done = await asyncio.gather(*(elsewhere(partial(_publish, dsn, seconds, n)) for n in range(_CLERKS)))
                rates[is_thinned].append(sum(done))
                if is_thinned:
                    removed.append(await conn.fetchval(_REMOVED) - before)
        left = await conn.fetchval("select count(*) from postbus.log_partition where closed_at is not null")
    report.add(
        kept_published_per_s=median(rates[False]),
        thinned_published_per_s=median(rates[True]),
        thinned_in_a_round_messages=median(removed),
        held_partitions_messages=left,
    )
    report.check("thinned_in_each_round_messages", min(removed), ">=", 1)
    report.check("held_partitions", left, ">=", 2)
    ratio = median(thinned / kept for kept, thinned in zip(rates[False], rates[True], strict=True))
    report.check("thinned_to_kept_publish_ratio", ratio, ">=", 0.95)


async def _create_topics(conn: asyncpg.Connection) -> None:
    for topic in (_LOAD, _NEIGHBOUR):
        options = {"semantics": "PUB_SUB", "tracking": "OFFSET_WATERMARK", **_KEPT}
        await conn.execute("select postbus.create_topic($1, $2)", topic, json.dumps(options))
    await conn.execute("select postbus.subscribe($1, 'paused')", _NEIGHBOUR)
    await conn.execute("select postbus.set_group_state($1, 'paused', 'PAUSED')", _NEIGHBOUR)
    await conn.execute("update postbus.sweep_setting set interval = '1 second'")
    await conn.execute("update postbus.log_storage set period = make_interval(secs => $1)", _PERIOD)


async def _sweep(dsn: str) -> None:
    """Sweep like a worker, and publish to the other topic, so that it has messages in each partition."""
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        sweeper = Sweeper(await bus.connect())
        while True:
            await conn.execute("select postbus.publish($1, 'x'::bytea)", _NEIGHBOUR)
            await asyncio.sleep(await sweeper.sweep_log() or _BETWEEN)


async def _publish(dsn: str, seconds: float, seed: int) -> float:
    """Publish at full speed. Returns the rate, without the first part."""
    given = load.payloads(_AT_ONCE, seed=seed)
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        counts_from = time.monotonic() + _WARM_SECONDS
        count = 0
        while (now := time.monotonic()) < counts_from + seconds:
            async with conn.transaction():
                await bus.publish_many(conn, _LOAD, given)
            count += len(given) if now >= counts_from else 0
        return count / (time.monotonic() - counts_from)


SCENARIO = Scenario(
    "thinning",
    {"publishing beside thinning": measure},
    lambda plan: {"clerks": _CLERKS, "messages_per_transaction": _AT_ONCE, "seconds": plan.isolation_seconds},
)
