"""Draining a topic with the real worker in one process."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

import asyncpg

from bench import load, peer
from bench.consume import BATCHES, SINGLES, Handling, drain
from bench.lab import Lab, connection
from bench.plan import BATCH, Plan
from bench.report import Report
from bench.rounds import Measure, alternate
from postbus import Bus

_TOPIC = "bench.drain"
_PEER_BATCHES = (100, 500, 1000)
"""The usual batch, and the numbers of messages that our two kinds of handlers have in hand."""

_Step = Callable[[], Awaitable[int]]


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure a batch handler and a single handler, beside hand-written loops and the limit of the server."""
    count = plan.per_round
    given = load.payloads(min(count, 50_000))
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(_TOPIC)
        await peer.create(conn)
        await peer.copy(conn, [load.encode(one) for one in given])

        async def ours(handling: Handling) -> float:
            fill = partial(load.fill, bus, conn, _TOPIC, given, count)
            return await drain(dsn, _TOPIC, handling, count=count, fill=fill)

        async def handwritten(step: _Step) -> float:
            await peer.fill(conn, given, count)
            await conn.execute("analyze handwritten")
            return await peer_rate(step, count)

        measures: dict[str, Measure] = {
            "drain_batch_handler_per_s": partial(ours, BATCHES),
            "drain_single_handler_per_s": partial(ours, SINGLES),
            "drain_handwritten_pop_500_per_s": partial(handwritten, partial(peer.pop, conn, batch=500)),
            "drain_raw_select_per_s": partial(_read_rate, conn),
        }
        for size in _PEER_BATCHES:
            step = partial(peer.lease_and_delete, conn, batch=size)
            measures[f"drain_handwritten_lease_{size}_per_s"] = partial(handwritten, step)
        rates = await alternate(measures, rounds=plan.rounds)

    report.add(**rates.medians())
    fastest = rates.fastest(*(f"drain_handwritten_lease_{size}_per_s" for size in _PEER_BATCHES))
    for kind in ("batch", "single"):
        name = f"drain_{kind}_handler_per_s"
        report.check(f"drain_{kind}_handler_to_handwritten_ratio", rates.ratio(name, fastest), ">=", 0.8)
        report.add(**{f"drain_{kind}_handler_to_raw_select_ratio": rates.ratio(name, "drain_raw_select_per_s")})


async def peer_rate(step: _Step, count: int) -> float:
    """Messages per second of a loop over `step`, which returns the number of its messages."""
    began = time.perf_counter()
    done = 0
    while done < count:
        done += await step()
    return count / (time.perf_counter() - began)


async def _read_rate(conn: asyncpg.Connection) -> float:
    began = time.perf_counter()
    count = await peer.read_all(conn, batch=BATCH)
    return count / (time.perf_counter() - began)
