"""Ten groups that read all messages: in one process, in several, and with publishing beside them."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

from bench import load
from bench.lab import Lab, connection
from bench.log import peer
from bench.log.filled import filled
from bench.log.groups import BATCHES, Consumed, all_hold_their_lane, consume_all
from bench.log.publish import TOPIC
from bench.plan import BATCH, Plan
from bench.processes import elsewhere, pass_the_gate, together, until
from bench.report import Report
from bench.rounds import alternate
from postbus import Bus, Start

_GROUPS = 10
_PROCESSES = 5
_EACH = _GROUPS // _PROCESSES
_PACED = 20_000  # messages per second of the paced publisher
_ALL_HAVE_READ = "select count(distinct subscription_id) filter (where passed > 0) >= $1 from postbus.cursor"


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Deliveries per second of ten groups, beside ten readers of plain rows. Every round has new groups."""
    count = 10 * plan.per_round
    async with filled(lab, count) as (dsn, _):
        numbers = itertools.count()

        def new_groups(count: int) -> list[str]:
            return [f"group-{next(numbers)}" for _ in range(count)]

        async def in_one_process() -> float:
            return (await elsewhere(partial(consume_all, dsn, TOPIC, new_groups(_GROUPS), BATCHES, count=count))).per_s

        async def in_five() -> float:
            return await _at_once(
                dsn, [partial(_consume_all, dsn, new_groups(_EACH), count) for _ in range(_PROCESSES)]
            )

        async def rows() -> float:
            return await _at_once(dsn, [partial(_read_rows, dsn, count)] * _PROCESSES)

        rates = await alternate(
            {
                "ten_groups_one_process_deliveries_per_s": in_one_process,
                "ten_groups_five_processes_deliveries_per_s": in_five,
                "ten_keyset_readers_five_processes_per_s": rows,
            },
            rounds=plan.rounds,
        )
    report.add(**rates.medians())
    together = rates.median("ten_groups_one_process_deliveries_per_s")
    ratio = rates.ratio("ten_groups_five_processes_deliveries_per_s", "ten_keyset_readers_five_processes_per_s")
    report.check("ten_groups_one_process_deliveries_per_s", together, ">=", 1_000_000)
    report.check("ten_groups_five_processes_to_keyset_select_ratio", ratio, ">=", 1)


async def _at_once(dsn: str, works: list[partial[Coroutine[Any, Any, Consumed]]]) -> float:
    """Deliveries per second of several processes at once, from the first delivery to the last."""
    parts = await together(dsn, works)
    seconds = max(one.ended for one in parts) - min(one.began for one in parts)
    return sum(one.deliveries for one in parts) / seconds


async def _consume_all(dsn: str, names: list[str], count: int) -> Consumed:
    await pass_the_gate(dsn)
    return await consume_all(dsn, TOPIC, names, BATCHES, count=count)


async def _read_rows(dsn: str, count: int) -> Consumed:
    await pass_the_gate(dsn)
    async with connection(dsn) as conn:
        began = time.monotonic()
        for _ in range(_EACH):
            await peer.read_rows(conn, batch=BATCH)
        return Consumed(_EACH * count, began, time.monotonic())


async def measure_publishing(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure how many messages per second a paced publisher sends beside one group, and beside ten."""
    rates = {}
    for groups in (1, _GROUPS):
        async with lab.database() as dsn:
            async with Bus.open(dsn) as bus:
                await bus.admin.create_topic(TOPIC, semantics="PUB_SUB", lanes=1)
            consumer = asyncio.create_task(elsewhere(partial(_consume, dsn, groups)))
            await all_hold_their_lane(dsn, groups, consumer)
            rates[groups] = await elsewhere(partial(publish_paced, dsn, TOPIC, _PACED, plan.latency_seconds))
            await until(dsn, _ALL_HAVE_READ, groups, worker=consumer)
            consumer.cancel()
            await asyncio.wait([consumer])
    report.add(
        publish_paced_beside_1_group_per_s=rates[1],
        publish_paced_beside_10_groups_per_s=rates[_GROUPS],
    )
    report.check("publish_beside_10_groups_to_1_ratio", rates[_GROUPS] / rates[1], ">=", 0.9)


async def _consume(dsn: str, groups: int) -> None:
    async with Bus.open(dsn) as bus:
        for number in range(groups):

            @bus.subscribe(TOPIC, group=f"follower-{number}", start=Start.NOW, batch=1000)
            async def handle(orders: list[load.Order]) -> None:
                return

        await bus.run()


async def publish_paced(dsn: str, topic: str, rate: float, seconds: float, *, batch: int = 100) -> float:
    """Publish batches at a pace, late ones as soon as possible. Returns messages per second."""
    rng = random.Random(3)
    given = [load.payload(rng, number) for number in range(batch)]
    sent = 0
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        began = time.perf_counter()
        while (now := time.perf_counter() - began) < seconds:
            if sent > now * rate:
                await asyncio.sleep(sent / rate - now)
                continue
            async with conn.transaction():
                first = {**given[0], "sent_at": time.monotonic_ns()}
                await bus.publish_many(conn, topic, [first, *given[1:]])
            sent += batch
        return sent / (time.perf_counter() - began)
