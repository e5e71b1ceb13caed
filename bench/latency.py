"""Latency from publisher to handler, in two processes, at a steady pace."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

import asyncpg

from bench import load, peer
from bench.consume import DrainFailed
from bench.lab import Lab, connection
from bench.load import Order
from bench.plan import Plan
from bench.processes import elsewhere, until
from bench.report import Report
from postbus import Bus, Start
from postbus.options import Semantics

_TOPIC = "bench.latency"
_RATE = 500
_WARM_SECONDS = 1.0
_LONGEST = 60.0
_CONCURRENCY = 10
_TURNS = 4
IS_LISTENING = """
    select exists (select from pg_stat_activity where datname = current_database() and query ilike 'listen%')
"""


class Sent(NamedTuple):
    """When a message was published, by CLOCK_MONOTONIC, which all processes share."""

    due_ns: int
    publish_ns: int
    """Before publish() was called, after BEGIN."""
    commit_ns: int
    """Before COMMIT was sent."""
    committed_ns: int
    """After COMMIT was answered."""


Times = tuple[Sent, int]
Publish = Callable[[str, int], Coroutine[Any, Any, list[Sent]]]
Handle = Callable[[str, int], Coroutine[Any, Any, list[int]]]


async def measure(lab: Lab, plan: Plan, report: Report, *, semantics: Semantics, p50_ms: float, p99_ms: float) -> None:
    """Publish one message per transaction and connection, by turns with the peer. The first second is not counted."""
    ours: list[Times] = []
    peers: list[Times] = []
    handle = partial(_handle, semantics=semantics)
    turns = min(_TURNS, plan.rounds)
    seconds = plan.latency_seconds / turns
    await _turn(lab, min(seconds, _WARM_SECONDS), _publish_by_hand, _handle_by_hand, semantics)  # lets the disk settle
    for number in range(2 * turns):
        if number % 4 in (0, 3):  # so that neither always comes first
            ours += await _turn(lab, seconds, _publish, handle, semantics)
        else:
            peers += await _turn(lab, seconds, _publish_by_hand, _handle_by_hand, semantics)
    for name, times in (
        ("latency_publish_to_handler", [at - one.publish_ns for one, at in ours]),
        ("latency_commit_to_handler", [at - one.commit_ns for one, at in ours]),
        ("latency_committed_to_handler", [at - one.committed_ns for one, at in ours]),
        ("latency_publish_and_commit", [one.committed_ns - one.publish_ns for one, _ in ours]),
        ("latency_publisher_behind_schedule", [one.publish_ns - one.due_ns for one, _ in ours]),
        ("latency_handwritten", [at - one.publish_ns for one, at in peers]),
    ):
        report.add(**percentiles(name, times))
    p50, p99 = (report.figures[f"latency_publish_to_handler_{part}_ms"] for part in ("p50", "p99"))
    report.check("latency_p50_ms", p50, "<", p50_ms)
    report.check("latency_p99_ms", p99, "<", p99_ms)
    report.add(
        latency_p50_to_handwritten_ratio=p50 / report.figures["latency_handwritten_p50_ms"],
        latency_p99_to_handwritten_ratio=p99 / report.figures["latency_handwritten_p99_ms"],
    )


async def _turn(lab: Lab, seconds: float, publish: Publish, handle: Handle, semantics: Semantics) -> list[Times]:
    warm = int(_RATE * min(_WARM_SECONDS, seconds))
    count = warm + int(_RATE * seconds)
    async with lab.database() as dsn:
        async with connection(dsn) as conn, Bus.open(dsn) as bus:
            await bus.admin.create_topic(_TOPIC, semantics=semantics)
            await peer.create(conn)
            if lab.is_ours:  # on a user's server it may not be allowed
                await conn.execute("checkpoint")  # so that earlier writes do not slow down what follows
        worker = asyncio.create_task(elsewhere(partial(handle, dsn, count)))
        await until(dsn, IS_LISTENING, worker=worker)
        sent = await elsewhere(partial(publish, dsn, count))
        started = await worker
    return [(one, started[number]) for number, one in enumerate(sent)][warm:]


def percentiles(name: str, nanoseconds: Sequence[int]) -> dict[str, float]:
    """The figures of a distribution, in milliseconds."""
    ordered = sorted(nanoseconds)
    parts = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {
        f"{name}_{word}_ms": ordered[min(int(len(ordered) * part), len(ordered) - 1)] / 1e6
        for word, part in parts.items()
    }


async def _publish(dsn: str, count: int) -> list[Sent]:
    async with Bus.open(dsn) as bus, connection(dsn) as conn:

        async def publish(payload: load.Payload) -> None:
            await bus.publish(conn, _TOPIC, payload)

        return await _publish_at_pace(conn, count, publish)


async def _publish_by_hand(dsn: str, count: int) -> list[Sent]:
    async with connection(dsn) as conn:
        return await _publish_at_pace(conn, count, partial(peer.publish_and_notify, conn))


async def _publish_at_pace(
    conn: asyncpg.Connection, count: int, publish: Callable[[load.Payload], Awaitable[None]]
) -> list[Sent]:
    rng = random.Random(2)
    began = time.monotonic_ns() + 10_000_000
    sent = []
    for number in range(count):
        due = began + number * 1_000_000_000 // _RATE
        await sleep_until(due)
        payload = load.payload(rng, number)
        transaction = conn.transaction()
        await transaction.start()
        publish_ns = time.monotonic_ns()
        await publish(payload)
        commit_ns = time.monotonic_ns()
        await transaction.commit()
        sent.append(Sent(due, publish_ns, commit_ns, time.monotonic_ns()))
    return sent


async def sleep_until(due: int) -> None:
    """Sleep by a schedule that does not drift. The event loop goes on, since sending wake-ups needs it."""
    left = due - time.monotonic_ns()
    if left > 0:
        await asyncio.sleep(left / 1e9)


async def _handle(dsn: str, count: int, *, semantics: str) -> list[int]:
    """Notes when the handler of each message started, by the message's number."""
    started = Started(count)
    group = "bench" if semantics == "PUB_SUB" else None
    async with Bus.open(dsn) as bus:

        @bus.subscribe(_TOPIC, concurrency=_CONCURRENCY, group=group, start=Start.BEGINNING if group else Start.NOW)
        async def handler(order: Order) -> None:
            started.note(order)
            if started.left == 0:
                bus.stop()

        async with asyncio.timeout(_LONGEST + count / _RATE):
            await bus.run()
    return started.all_of_them()


async def _handle_by_hand(dsn: str, count: int) -> list[int]:
    started = Started(count)
    async with connection(dsn) as conn, connection(dsn) as listening, asyncio.timeout(_LONGEST + count / _RATE):
        notified = asyncio.Event()
        await listening.add_listener(peer.CHANNEL, lambda *_: notified.set())
        while started.left > 0:
            notified.clear()
            while await peer.lease_and_delete(conn, batch=_CONCURRENCY, handle=started.note):
                pass
            if started.left > 0:
                await notified.wait()
    return started.all_of_them()


class Started:
    """Notes when the handler of each message started, by the message's number."""

    def __init__(self, count: int) -> None:
        self._at = [0] * count
        self.left = count

    def note(self, order: Order) -> None:
        self._at[order.number] = time.monotonic_ns()
        self.left -= 1

    def all_of_them(self) -> list[int]:
        if self.left > 0:
            raise DrainFailed(f"{self.left} of {len(self._at)} messages did not come")
        return self._at
