"""Relaying to NATS JetStream and to a sink that does nothing, beside only reading the log and only using JetStream."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from bench import load
from bench.consume import AT_FULL_SPEED, Counter, DrainFailed, reached, running
from bench.lab import Lab, connection
from bench.peers import servers
from bench.plan import Plan
from bench.report import Report
from bench.rounds import Measure, alternate
from bench.scenario import Scenario
from postbus import Bus, Message, Outcome, Start
from postbus.relay import NatsSink, NullSink, Parcel, Sink
from postbus.relay.plan import BATCH

_TOPIC, _SHORT = "bench.relay", "bench.relay.short"
_SHARE = 10  # JetStream syncs each message, so it gets one message for this many that are read
_CONNECTIONS = 16
_numbers = itertools.count(1)


class _Counted:
    """A sink that counts its messages."""

    def __init__(self, sink: Sink, counter: Counter) -> None:
        self.keeps_order = sink.keeps_order
        self._sink = sink
        self._counter = counter
        self.open, self.close = sink.open, sink.close

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        told = await self._sink.send(parcels)
        self._counter.add(len(parcels))
        return told


async def _relayed(dsn: str, topic: str, sink: Sink, target: str, count: int) -> float:
    """Messages per second, from the first that reaches the sink to the last."""
    counter = Counter(count)
    async with Bus.open(dsn) as bus:
        await bus.relay(topic, _Counted(sink, counter), name=f"relay-{next(_numbers)}", target=target)
        return await _rate(bus, counter)


async def _read(dsn: str, count: int) -> float:
    """The same for an empty handler that gets batches like a relay."""
    counter = Counter(count)
    async with Bus.open(dsn) as bus:

        @bus.subscribe(
            _TOPIC, group=f"reader-{next(_numbers)}", start=Start.BEGINNING, batch=BATCH, catch_up=AT_FULL_SPEED
        )
        async def read(messages: list[Message]) -> None:
            counter.add(len(messages))

        return await _rate(bus, counter)


async def _rate(bus: Bus, counter: Counter) -> float:
    async with running(bus) as worker:
        await reached(counter, worker)
    if counter.handled != counter.wanted:
        raise DrainFailed(f"{counter.handled} messages came instead of {counter.wanted}")
    return (counter.handled - counter.first) / (counter.reached_at - counter.first_at)


@contextlib.asynccontextmanager
async def _stream(address: str) -> AsyncIterator[tuple[Any, str]]:
    """JetStream with a new stream for one subject, so that no message is a duplicate."""
    import nats

    subject = f"{_TOPIC}.{next(_numbers)}"
    client = await nats.connect(address)
    try:
        stream = client.jetstream()
        await stream.add_stream(name=subject.replace(".", "-"), subjects=[subject])
        yield stream, subject
        await stream.delete_stream(subject.replace(".", "-"))
    finally:
        await client.close()


async def _to_jetstream(dsn: str, address: str, count: int) -> float:
    async with _stream(address) as (_, subject):
        return await _relayed(dsn, _SHORT, NatsSink(address), subject, count)


async def _jetstream_alone(given: Sequence[bytes], address: str, count: int) -> float:
    """Messages per second of the client alone, with batches of the same size."""
    async with _stream(address) as (stream, subject):
        began = time.perf_counter()
        for start in range(0, count, BATCH):
            some = [given[n % len(given)] for n in range(start, min(start + BATCH, count))]
            await asyncio.gather(*[await stream.publish_async(subject, one) for one in some])
        return count / (time.perf_counter() - began)


async def _publish_singles(bus: Bus, dsn: str, topic: str, given: Sequence[load.Payload]) -> None:
    left = iter(given)

    async def caller() -> None:
        async with connection(dsn) as conn:
            for payload in left:
                async with conn.transaction():
                    await bus.publish(conn, topic, payload)

    await asyncio.gather(*(caller() for _ in range(_CONNECTIONS)))


async def _measure(lab: Lab, plan: Plan, report: Report, *, name: str, in_bulk: bool) -> None:
    count = plan.per_round if in_bulk else 5 * plan.singles
    given = load.payloads(min(count, 50_000))
    encoded = [load.encode(one) for one in given[:1000]]
    async with lab.database() as dsn, Bus.open(dsn) as bus, connection(dsn) as conn, servers.nats() as server:
        few = max(count // _SHARE, 100)
        for topic, wanted in ((_TOPIC, count), (_SHORT, few)):
            await bus.admin.create_topic(topic, semantics="PUB_SUB", retention="30 days")
            if in_bulk:
                await load.fill(bus, conn, topic, given, wanted)
            else:
                await _publish_singles(bus, dsn, topic, given[:wanted])
        measures: dict[str, Measure] = {
            f"{name}_read_per_s": partial(_read, dsn, count),
            f"{name}_relay_to_null_per_s": lambda: _relayed(dsn, _TOPIC, NullSink(), _TOPIC, count),
            f"{name}_relay_to_jetstream_per_s": partial(_to_jetstream, dsn, server.address, few),
            f"{name}_jetstream_alone_per_s": partial(_jetstream_alone, encoded, server.address, few),
        }
        rates = await alternate(measures, rounds=plan.rounds)
    report.add(**rates.medians())
    read, null, relay, alone = measures
    report.add(**{f"{name}_relay_to_jetstream_to_read_ratio": rates.ratio(relay, read)})
    report.check(f"{name}_relay_to_null_to_read_ratio", rates.ratio(null, read), ">=", 0.3)
    report.check(f"{name}_relay_to_jetstream_alone_ratio", rates.ratio(relay, alone), ">=", 0.7)


SCENARIO = Scenario(
    "relay",
    {
        "published in bulk": partial(_measure, name="bulk", in_bulk=True),
        "one message per transaction": partial(_measure, name="singles", in_bulk=False),
    },
    lambda plan: {
        "batch": BATCH,
        "rounds": plan.rounds,
        "messages_in_bulk": plan.per_round,
        "messages_one_per_transaction": 5 * plan.singles,
        "jetstream": "file storage, synced with each message",
    },
)
