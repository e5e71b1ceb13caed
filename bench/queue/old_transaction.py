"""Draining beside a transaction that has been open for minutes, so that nothing could be vacuumed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial

import asyncpg

from bench import load, peer
from bench.consume import BATCHES, Counter, drain, drain_some, subscribe
from bench.lab import Lab, connection
from bench.plan import Plan
from bench.queue.drain import peer_rate
from bench.report import Report
from bench.rounds import Measure, Rates, alternate
from postbus import Bus

_TOPIC = "bench.old"
_SIZE = 100
_EVERY = 0.05
"""Seconds between two batches of the traffic, which makes 2000 messages per second."""


class _Side:
    """A database with both queues, and traffic through them."""

    def __init__(self, dsn: str, conn: asyncpg.Connection, given: list[load.Payload]) -> None:
        self.dsn = dsn
        self.handled = 0
        self.handled_by_peer = 0
        self._conn = conn
        self._given = given

    async def traffic(self, seconds: float) -> None:
        """Publish and drain for a while in both queues."""
        until = time.monotonic() + seconds
        await asyncio.gather(self._ours(until), self._peers(until))

    async def _ours(self, until: float) -> None:
        counter = Counter(0)
        async with Bus.open(self.dsn) as bus, connection(self.dsn) as conn:
            subscribe(bus, _TOPIC, BATCHES, counter)
            worker = asyncio.create_task(bus.run())
            sent = 0
            while time.monotonic() < until:
                await load.fill(bus, conn, _TOPIC, self._given[:_SIZE], _SIZE)
                sent += _SIZE
                await asyncio.sleep(_EVERY)
            while counter.handled < sent and not worker.done():
                await asyncio.wait([worker], timeout=_EVERY)
            bus.stop()
            await worker
        self.handled = counter.handled

    async def _peers(self, until: float) -> None:
        while time.monotonic() < until:
            await peer.fill(self._conn, self._given[:_SIZE], _SIZE)
            self.handled_by_peer += await peer.lease_and_delete(self._conn, batch=_SIZE)
            await asyncio.sleep(_EVERY)

    async def drain_ours(self, count: int) -> float:
        async with Bus.open(self.dsn) as bus:
            fill = partial(load.fill, bus, self._conn, _TOPIC, self._given, count)
            return await drain(self.dsn, _TOPIC, BATCHES, count=count, fill=fill)

    async def drain_by_newcomer(self, count: int) -> float:
        """Drain with a worker that is new to the topic, and has to step over all dead rows."""
        async with Bus.open(self.dsn) as bus:
            await bus.admin.pause_topic(_TOPIC)
            await load.fill(bus, self._conn, _TOPIC, self._given, count)
        return await drain_some(self.dsn, _TOPIC, BATCHES, count=count)

    async def drain_peer(self, count: int) -> float:
        await peer.fill(self._conn, self._given, count)
        return await peer_rate(partial(peer.lease_and_delete, self._conn, batch=500), count)


async def measure(lab: Lab, plan: Plan, report: Report) -> None:
    """Measure two servers with the same traffic. On one of them, a transaction is open all the time.

    Two databases of one server would not do: the transaction's id is in every snapshot of its server.
    """
    given = load.payloads(10_000)
    with lab.twin() as other:
        async with _side(lab, given) as beside, _side(other, given) as without, connection(beside.dsn) as old:
            await _open(old)
            await asyncio.gather(beside.traffic(plan.old_seconds), without.traffic(plan.old_seconds))
            rates = await _rates(beside, without, plan)
            await old.execute("rollback")
    report.settings["old_transaction_compared_with"] = "another server" if lab.is_ours else "the same server"
    report.add(
        old_transaction_traffic_messages=beside.handled,
        old_transaction_traffic_handwritten_messages=beside.handled_by_peer,
        drain_beside_old_transaction_per_s=rates.median("beside"),
        drain_without_old_transaction_per_s=rates.median("without"),
        drain_by_newcomer_beside_old_transaction_per_s=rates.median("newcomer_beside"),
        drain_by_newcomer_without_old_transaction_per_s=rates.median("newcomer_without"),
        drain_by_newcomer_old_transaction_ratio=rates.ratio("newcomer_beside", "newcomer_without"),
        drain_handwritten_beside_old_transaction_per_s=rates.median("peer_beside"),
        drain_handwritten_without_old_transaction_per_s=rates.median("peer_without"),
        drain_handwritten_old_transaction_ratio=rates.ratio("peer_beside", "peer_without"),
    )
    report.check("drain_old_transaction_ratio", rates.ratio("beside", "without"), ">=", 0.8)


async def _rates(beside: _Side, without: _Side, plan: Plan) -> Rates:
    # The peer takes many times longer beside the old transaction, so it gets fewer messages.
    few = max(plan.few // 5, 500)
    measures: dict[str, Measure] = {
        "beside": partial(beside.drain_ours, plan.few),
        "without": partial(without.drain_ours, plan.few),
        "newcomer_beside": partial(beside.drain_by_newcomer, plan.few),
        "newcomer_without": partial(without.drain_by_newcomer, plan.few),
        "peer_beside": partial(beside.drain_peer, few),
        "peer_without": partial(without.drain_peer, few),
    }
    return await alternate(measures, rounds=plan.more_rounds(2))


@contextlib.asynccontextmanager
async def _side(lab: Lab, given: list[load.Payload]) -> AsyncIterator[_Side]:
    async with lab.database() as dsn, connection(dsn) as conn:
        await peer.create(conn)
        async with Bus.open(dsn) as bus:
            await bus.admin.create_topic(_TOPIC)
        yield _Side(dsn, conn, given)


async def _open(conn: asyncpg.Connection) -> None:
    """Begin a transaction that has a transaction id and keeps its snapshot."""
    await conn.execute("begin isolation level repeatable read; select pg_current_xact_id()")
