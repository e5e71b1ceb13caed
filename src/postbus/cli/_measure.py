"""Measure a server: publishing, consuming and latency, beside a bare INSERT and SELECT."""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import asyncpg
import msgspec

from postbus._db.connect import connect, is_pooled
from postbus._db.error_map import translated_errors
from postbus.bus import Bus
from postbus.catch_up import CatchUp
from postbus.cli._exits import CommandError, refusal
from postbus.errors import AccessDenied, DatabaseUnavailable, TopicNotFound
from postbus.options import Semantics
from postbus.start import Start

PAYLOAD_BYTES, BATCH = 200, 1000
_ROUNDS = 2
_PARTS = {"latency": 2, "publish_single": 1, "publish_batch": 1, "consume": 1}
"""The parts in their order, each with its share of the time."""
STEPS = _ROUNDS * len(_PARTS) * 3
_PAUSE = 0.005  # seconds between messages while latency is measured
_READ = 500  # messages per call of the handler, and rows per SELECT
_PATIENCE = 30.0  # seconds

Payload = dict[str, Any]
Samples = dict[tuple[str, str], list[float]]
"""Samples of each part and way: latencies in seconds, or messages and seconds in turn."""

_noise = random.Random(1).randbytes(BATCH * PAYLOAD_BYTES).hex()
_note_length = PAYLOAD_BYTES - len(msgspec.json.encode({"number": BATCH, "note": ""}))
_GIVEN = [{"number": BATCH + n, "note": _noise[n * PAYLOAD_BYTES :][:_note_length]} for n in range(BATCH)]


class BareSQL:
    """A plain table, for comparison: nothing makes messages of its rows."""

    name = "bare"

    def __init__(self, table: str, reader: asyncpg.Connection) -> None:
        self._reader = reader
        self._insert = f"insert into {table} (payload) values ($1) returning id"
        self._insert_many = f"insert into {table} (payload) select pg_catalog.unnest($1::pg_catalog.bytea[])"
        self._select = f"select id, payload from {table} where id > $1 order by id limit $2"

    async def publish(self, conn: asyncpg.Connection, payloads: Sequence[Payload]) -> Any:
        encoded = [msgspec.json.encode(one) for one in payloads]
        return await (
            conn.fetchval(self._insert, *encoded) if len(encoded) == 1 else conn.execute(self._insert_many, encoded)
        )

    async def consume(self, seconds: float) -> Sequence[float]:
        """Read and decode all rows, again and again."""
        began, last, count = time.perf_counter(), 0, 0
        while (took := time.perf_counter() - began) < seconds:
            rows = await self._reader.fetch(self._select, last, _READ)
            count += len([msgspec.json.decode(row["payload"]) for row in rows])
            last = rows[-1]["id"] if rows else 0
        return count, took

    async def latency(self, conn: asyncpg.Connection, seconds: float) -> Sequence[float]:
        """From the INSERT until another connection has read the row."""
        found = []
        async for began in _at_pace(seconds):
            row = await _publish(conn, self, _GIVEN[:1])
            await self._reader.fetch(self._select, row - 1, 1)
            found.append(time.perf_counter() - began)
        return found


class Topic:
    """A topic and its worker, which has a bus of its own, so that wake-ups go through the server."""

    def __init__(self, bus: Bus, topic: str, group: str | None) -> None:
        self.name = "queue" if group is None else "pub_sub"
        self._bus, self._topic, self._group = bus, topic, group
        self._published = self._handled = 0

    async def publish(self, conn: asyncpg.Connection, payloads: Sequence[Payload]) -> None:
        self._published += len(payloads)
        if len(payloads) == 1:
            await self._bus.publish(conn, self._topic, payloads[0])
        else:
            await self._bus.publish_many(conn, self._topic, payloads)

    async def consume(self, seconds: float) -> Sequence[float]:
        """Count the messages after the handler's first call: it is not known how long those of that call took."""
        async with self._worker() as (calls, until):
            await until(lambda: len(calls) > 2 and calls[-1][0] - calls[0][0] >= seconds)
        return sum(len(payloads) for _, payloads in calls[1:]), calls[-1][0] - calls[0][0]

    async def latency(self, conn: asyncpg.Connection, seconds: float) -> Sequence[float]:
        """From before `publish` until the handler begins."""
        sent: list[float] = []
        async with self._worker() as (calls, until):
            async for began in _at_pace(seconds):
                sent.append(began)
                await _publish(conn, self, [{**_GIVEN[0], "number": len(sent) - 1}])
                if len(sent) == 1:
                    await until(lambda: False)  # the worker has started when the first message is handled
            await until(lambda: False)
        return [at - sent[one["number"]] for at, payloads in calls for one in payloads]

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Any]:
        """Run a worker. Yields the calls of its handler, and a function that waits until they are enough, or all."""
        calls: list[tuple[float, list[Payload]]] = []

        async def handle(payloads: list[Payload]) -> None:
            calls.append((time.perf_counter(), payloads))
            self._handled += len(payloads)

        async def until(is_enough: Callable[[], bool]) -> None:
            ends = time.perf_counter() + _PATIENCE
            while self._handled < self._published and not is_enough():
                await asyncio.wait([worker], timeout=0.005)
                if worker.done():
                    worker.result()  # raises its error
                if worker.done() or time.perf_counter() > ends:
                    raise CommandError(
                        f"only {self._handled} of {self._published} messages came",
                        remedy="see the log of the server, and measure again",
                    )

        async with Bus.open(self._bus.dsn) as bus:
            unthrottled = CatchUp(beside_from=1 << 40, max_rate=None)
            of_group: Any = {"group": self._group, "start": Start.BEGINNING, "catch_up": unthrottled}
            bus.subscribe(self._topic, concurrency=2, batch=_READ, **(of_group if self._group else {}))(handle)
            worker = asyncio.create_task(bus.run(signals=False), name="postbus-bench")
            try:
                await asyncio.sleep(0)  # from now on it can be stopped
                yield calls, until
            finally:
                bus.stop()
                await worker


async def measure(bus: Bus, seconds: float, told: Callable[[], None]) -> Samples:
    """Measure all parts and ways in turn, for about this many seconds. `told` is called after each step."""
    unit = seconds / (_ROUNDS * sum(_PARTS.values()) * 3)
    samples: Samples = defaultdict(list)
    for number in range(_ROUNDS):
        async with _ways(bus) as (conn, ways):
            for part, units in _PARTS.items():
                for way in ways if number % 2 else reversed(ways):
                    with translated_errors():
                        samples[part, way.name] += await _step(conn, part, way, unit * units)
                    told()
    return samples


async def _step(conn: asyncpg.Connection, part: str, way: BareSQL | Topic, seconds: float) -> Sequence[float]:
    if part == "latency":
        return (await way.latency(conn, seconds))[1:]
    if part == "consume":
        return await way.consume(seconds)
    batch = _GIVEN if part == "publish_batch" else _GIVEN[:1]
    await _publish(conn, way, batch)  # prepares statements
    began, count, took = time.perf_counter(), 0, 0.0
    while count < 3 * len(batch) or took < seconds:
        await _publish(conn, way, batch)
        count, took = count + len(batch), time.perf_counter() - began
    return count, took


async def _publish(conn: asyncpg.Connection, way: BareSQL | Topic, payloads: Sequence[Payload]) -> Any:
    async with conn.transaction():
        return await way.publish(conn, payloads)


@asynccontextmanager
async def _ways(bus: Bus) -> AsyncIterator[tuple[asyncpg.Connection, list[BareSQL | Topic]]]:
    """Create topics and a table for the measurement, and remove them at its end, even after an error."""
    name = f"bench.{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(_topic(bus, f"{name}.queue", "QUEUE"))
        log = await stack.enter_async_context(_topic(bus, f"{name}.pub_sub", "PUB_SUB"))
        if others := await bus.admin.groups(log):
            raise refusal(
                f"group {others[0].group_name} has all topics, and would get the messages of this measurement",
                remedy="measure in another database of the same server, with --dsn",
            )
        conn = await stack.enter_async_context(_connection(bus.dsn))
        ways: list[BareSQL | Topic] = [Topic(bus, queue, None), Topic(bus, log, "bench")]
        with suppress(AccessDenied):
            table = await stack.enter_async_context(_table(conn, f"postbus_{name.replace('.', '_')}"))
            ways.append(BareSQL(table, await stack.enter_async_context(_connection(bus.dsn))))
        yield conn, ways


@asynccontextmanager
async def _topic(bus: Bus, name: str, semantics: Semantics) -> AsyncIterator[str]:
    try:
        await bus.admin.create_topic(name, semantics=semantics)
        yield name
    finally:
        try:
            with suppress(TopicNotFound, AccessDenied):  # then it was not created
                await bus.admin.delete_topic(name, force=True)
        except DatabaseUnavailable as error:
            delete = f"delete it: postbus topics delete {name} --force"
            raise CommandError(f"topic {name} was not deleted: {error.message}", remedy=delete) from None


@asynccontextmanager
async def _table(conn: asyncpg.Connection, schema: str) -> AsyncIterator[str]:
    with translated_errors():
        await conn.execute(
            f"create schema {schema} create table rows (id bigserial primary key, payload bytea not null)"
        )
    try:
        yield f"{schema}.rows"
    finally:
        await conn.execute(f"drop schema {schema} cascade")


@asynccontextmanager
async def _connection(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that keeps prepared statements, as those of users do, unless the server is behind a pooler."""
    with translated_errors():
        conn = await connect(dsn)
        if not is_pooled(conn):
            await conn.close()
            conn = await connect(dsn, caches=True)
    try:
        yield conn
    finally:
        await conn.close()


async def _at_pace(seconds: float) -> AsyncIterator[float]:
    """Yields the time whenever a message is due."""
    ends = time.perf_counter() + seconds
    for number in itertools.count():
        if number >= 3 and time.perf_counter() >= ends:
            return
        await asyncio.sleep(_PAUSE)
        yield time.perf_counter()
