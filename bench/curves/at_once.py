"""Messages that become visible at once, by one commit, to waiting groups."""

from __future__ import annotations

import time
from collections.abc import Sequence

import asyncpg

from bench.consume import Counter, DrainFailed, Handling, reached, running, subscribe
from bench.lab import connection
from bench.load import Payload
from bench.processes import until
from postbus import Bus

_ARE_READY = """
    select count(l.holder) >= $2
      from postbus.lane l
      join postbus.subscription s on s.id = l.subscription_id
      join postbus.topic t on t.id = s.topic_id
     where t.name = $1
"""


async def publish_at_once(
    bus: Bus, conn: asyncpg.Connection, topic: str, given: Sequence[Payload], *, batch: int
) -> float:
    """Publish in one transaction, a call for each batch. Returns the time before the commit, by time.monotonic()."""
    transaction = conn.transaction()
    await transaction.start()
    for start in range(0, len(given), batch):
        await bus.publish_many(conn, topic, given[start : start + batch])
    committed = time.monotonic()
    await transaction.commit()
    return committed


async def deliver_at_once(
    dsn: str, topic: str, groups: int, handling: Handling, given: Sequence[Payload], *, batch: int
) -> float:
    """Deliveries per second to new groups of a topic with one lane: from the commit to the last delivery.

    The groups can read nothing before the clock starts.
    """
    counter = Counter(groups * len(given))
    async with Bus.open(dsn) as bus, connection(dsn) as conn:
        await bus.admin.create_topic(topic, semantics="PUB_SUB", tracking="OFFSET_WATERMARK", lanes=1)
        for number in range(groups):
            subscribe(bus, topic, handling, counter, group=f"group-{number}")
        async with running(bus) as worker:
            await until(dsn, _ARE_READY, topic, groups, worker=worker)
            committed = await publish_at_once(bus, conn, topic, given, batch=batch)
            await reached(counter, worker)
    if counter.handled != counter.wanted:
        raise DrainFailed(f"{counter.handled} messages were handled instead of {counter.wanted}")
    return counter.wanted / (counter.reached_at - committed)
