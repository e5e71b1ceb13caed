"""Pushing and popping by many connections at once, beside the same from Python without HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from bench.http.client import Connection, as_json, connections, served
from bench.lab import Lab, connection
from bench.load import payloads
from bench.plan import Plan
from bench.report import Report
from bench.rounds import Measure, alternate
from postbus import Bus

CONNECTIONS = 50
PUSH_BATCH = 100
POP_BATCH = 500
_TOPIC = "bench.http"
_PUSH = f"/v1/topics/{_TOPIC}/messages"
_POP = f"/v1/topics/{_TOPIC}/pop"


class _Held(msgspec.Struct):
    id: str
    token: str


class _Popped(msgspec.Struct):
    messages: list[_Held]


@dataclass
class Clients:
    """Connections to a server, and a bus on the same database."""

    lab: Lab
    bus: Bus
    opened: list[Connection]
    truncate: Callable[[], Awaitable[object]]

    async def by_all(self, work: Callable[[Connection], Awaitable[None]]) -> float:
        """Let all connections work at the same time. Returns how many seconds they took."""
        began = time.perf_counter()
        await asyncio.gather(*map(work, self.opened))
        return time.perf_counter() - began


@contextlib.asynccontextmanager
async def clients_of_server(lab: Lab) -> AsyncIterator[Clients]:
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(_TOPIC)
        async with served(dsn) as server, connections(server, CONNECTIONS) as opened:
            yield Clients(lab, bus, opened, partial(conn.execute, "truncate postbus.queued"))


async def measure_push(clients: Clients, plan: Plan, report: Report) -> None:
    """Push batches of 100 by 50 connections, and by 50 tasks of one Python process."""
    given = payloads(PUSH_BATCH)
    body = as_json([{"payload": one} for one in given])
    count = max(plan.per_round // PUSH_BATCH, CONNECTIONS)

    async def by_http() -> float:
        await clients.truncate()
        left = iter(range(count))

        async def push(one: Connection) -> None:
            for _ in left:
                await one.post(_PUSH, body)

        return count * PUSH_BATCH / await clients.by_all(push)

    async def direct() -> float:
        await clients.truncate()
        left = iter(range(count))

        async def push(unused: Connection) -> None:
            for _ in left:
                await clients.bus.send_many(_TOPIC, given)

        return count * PUSH_BATCH / await clients.by_all(push)

    measures: dict[str, Measure] = {"http_push_batch_per_s": by_http, "http_push_batch_python_per_s": direct}
    rates = await alternate(measures, rounds=plan.rounds)
    report.add(**rates.medians())
    ratio = rates.ratio("http_push_batch_per_s", "http_push_batch_python_per_s")
    report.check("http_push_batch_to_python_ratio", ratio, ">=", 0.25)


async def measure_pop(clients: Clients, plan: Plan, report: Report) -> None:
    """Pop and ack batches of 500 by 50 connections, and by 50 tasks of one Python process."""
    given = payloads(1000)
    count = max(plan.per_round, 2 * CONNECTIONS * POP_BATCH) if plan.rounds > 1 else plan.per_round

    async def fill() -> None:
        await clients.truncate()
        for _ in range(0, count, len(given)):
            await clients.bus.send_many(_TOPIC, given)

    async def by_http() -> float:
        await fill()
        body = as_json({"count": POP_BATCH})

        async def pop(one: Connection) -> None:
            while (held := msgspec.json.decode(await one.post(_POP, body), type=_Popped)).messages:
                await one.post("/v1/ack", msgspec.json.encode(held))

        return count / await clients.by_all(pop)

    async def direct() -> float:
        await fill()

        async def pop(unused: Connection) -> None:
            while popped := await clients.bus.pop(_TOPIC, batch=POP_BATCH):
                await popped.ack()

        return count / await clients.by_all(pop)

    measures: dict[str, Measure] = {"http_pop_batch_per_s": by_http, "http_pop_batch_python_per_s": direct}
    rates = await alternate(measures, rounds=plan.rounds)
    report.add(**rates.medians())
    ratio = rates.ratio("http_pop_batch_per_s", "http_pop_batch_python_per_s")
    report.check("http_pop_batch_to_python_ratio", ratio, ">=", 0.25)


async def measure_single(clients: Clients, plan: Plan, report: Report) -> None:
    """Push one message per request by 50 connections, then pop and ack one per request."""
    [given] = payloads(1)
    push_body, pop_body = as_json({"payload": given}), as_json({"count": 1})
    await clients.truncate()

    def turns() -> Iterator[int]:
        return iter(range(plan.singles))

    async def push_rate() -> float:
        left = turns()

        async def push(one: Connection) -> None:
            for _ in left:
                await one.post(_PUSH, push_body)

        return plan.singles / await clients.by_all(push)

    async def pop_rate() -> float:
        left = turns()

        async def pop(one: Connection) -> None:
            for _ in left:
                await one.post("/v1/ack", await one.post(_POP, pop_body))

        return plan.singles / await clients.by_all(pop)

    pushed, popped = [], []
    for _ in range(plan.rounds):
        pushed.append(await push_rate())
        popped.append(await pop_rate())
    report.add(
        http_push_single_per_s=sorted(pushed)[len(pushed) // 2], http_pop_single_per_s=sorted(popped)[len(popped) // 2]
    )
