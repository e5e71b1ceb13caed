"""The inbox for consumers of another broker: no bus, only a connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest

from bench.peers import servers
from bench.peers.system import Absent
from postbus.inbox import Inbox

_MESSAGES = 20
INBOX = Inbox()


@pytest.fixture
async def jetstream() -> AsyncIterator[Any]:
    """Provide a stream of a NATS server of the test's own."""
    try:
        async with servers.nats() as server:
            client = await nats.connect(server.address)
            stream = client.jetstream()
            await stream.add_stream(name="payments", subjects=["payments"])
            yield stream
            await client.close()
    except Absent as absent:
        pytest.skip(str(absent))


async def test_jetstream_deliveries_have_their_effect_once(jetstream: Any, conn: Any) -> None:
    """Some fail after the effect and some before the acknowledgement, and each effect happens once."""
    await conn.execute("create table effect (n int)")
    for n in range(_MESSAGES):
        await jetstream.publish("payments", str(n).encode(), headers={"event-id": f"e-{n}"})
    subscription = await jetstream.pull_subscribe("payments", "books")
    deliveries: Counter[int] = Counter()
    acknowledged: set[int] = set()

    async def handle(message: Any) -> None:
        n = int(message.data)
        deliveries[n] += 1
        async with conn.transaction(), INBOX.once(conn, "books", message.headers["event-id"]) as first:
            if first:
                await conn.execute("insert into effect values ($1)", n)
            if n % 3 == 1 and deliveries[n] == 1:
                raise ConnectionError("after the effect, before its commit")
        if n % 3 == 2 and deliveries[n] == 1:
            raise ConnectionError("after the commit, before the acknowledgement")
        await message.ack_sync()
        acknowledged.add(n)

    while len(acknowledged) < _MESSAGES:
        for message in await subscription.fetch(5, timeout=5):
            try:
                await handle(message)
            except ConnectionError:
                await message.nak()

    assert sorted(row["n"] for row in await conn.fetch("select n from effect")) == list(range(_MESSAGES))
    assert deliveries == {n: 1 if n % 3 == 0 else 2 for n in range(_MESSAGES)}
