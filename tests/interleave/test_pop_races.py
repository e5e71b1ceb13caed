"""Several sessions pop at once: nothing is stuck, lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from interleave.test_lease_races import waits
from postbus import Bus
from support.eventually import eventually
from support.fix_database import Connect
from support.log_sql import create_topic, publish_many, subscribe
from support.pop_sql import ack, pop, retry
from support.queue_sql import publish


async def test_two_pops_never_get_the_same_message(connect: Connect) -> None:
    """The second pop skips what the first is taking, without waiting."""
    a, b = await connect(), await connect()
    await create_topic(a)
    await subscribe(a)
    await publish_many(a, "one", "two", "three")
    await ack(a, await pop(a, 1))  # the others are buffered by now

    async with a.transaction():
        first = await pop(a, 1)
        second = await pop(b, 5)

    assert (first.messages, second.messages) == (["two"], ["three"])


async def test_pops_beside_one_that_fills_the_buffer_take_what_is_there(connect: Connect) -> None:
    """They do not wait, and do not read the same messages from the log."""
    a, b = await connect(), await connect()
    await create_topic(a)
    await subscribe(a)
    await publish_many(a, "one")

    async with a.transaction():
        first = await pop(a, 1)
        second = await pop(b, 1)

    assert (first.messages, second.messages) == (["one"], [])
    assert (await pop(b, 1)).messages == []


async def test_ack_waits_for_concurrent_buffering(connect: Connect) -> None:
    """The ack waits for a pop that buffers a new message of its key, and frees that message."""
    a, b, observer = await connect(), await connect(), await connect()
    await create_topic(a)
    await subscribe(a)
    await publish_many(a, "a1", keys=["a"])
    first = await pop(a, 1)
    await publish_many(a, "a2", keys=["a"])

    parking = b.transaction()
    await parking.start()
    assert (await pop(b, 1)).messages == []  # a2 waits behind a1
    acking = asyncio.create_task(ack(a, first))
    await waits(observer, a.get_server_pid())
    await parking.commit()
    assert await acking == []

    assert (await pop(b, 1)).messages == ["a2"]


async def test_message_buffered_during_the_ack_of_its_key_need_not_wait(connect: Connect) -> None:
    """It is free as soon as the ack has committed, but not if the ack is rolled back."""
    a, b = await connect(), await connect()
    await create_topic(a)
    await subscribe(a)
    await publish_many(a, "a1", keys=["a"])
    first = await pop(a, 1)
    await publish_many(a, "a2", keys=["a"])

    settling = a.transaction()
    await settling.start()
    assert await ack(a, first) == []
    assert (await pop(b, 1)).messages == []
    await settling.rollback()
    assert (await pop(b, 1)).messages == []
    assert await ack(a, first) == []

    assert (await pop(b, 1)).messages == ["a2"]


async def test_ack_while_its_message_is_popped_again_is_lost(connect: Connect) -> None:
    """The lease has expired and another consumer takes the message: the ack waits for that, and changes nothing."""
    a, b, observer = await connect(), await connect(), await connect()
    await create_topic(a)
    await subscribe(a)
    await publish_many(a, "one")
    first = await pop(a, 1)

    popping = b.transaction()
    await popping.start()
    second = await pop(b, 1, as_of=await b.fetchval("select clock_timestamp() + interval '1 minute'"))
    assert second.messages == ["one"]
    acking = asyncio.create_task(ack(a, first))
    await waits(observer, a.get_server_pid())
    await popping.commit()

    assert await acking == first.ids
    assert await ack(b, second) == []


@pytest.mark.parametrize("settle", ["postbus.ack($1, $2)", "postbus.dead_letter($1, $2, 'no')"])
async def test_settlement_during_the_extension_of_its_lease_counts(connect: Connect, settle: str) -> None:
    """It waits for the extension, and then settles the messages."""
    a, b, observer = await connect(), await connect(), await connect()
    await create_topic(a)
    await subscribe(a)
    await publish_many(a, "one", "two")
    popped = await pop(a, 2)

    extending = a.transaction()
    await extending.start()
    assert await a.fetchval("select postbus.extend(array[$1::uuid], '1 minute')", popped.token) == []
    settling = asyncio.create_task(b.fetchval(f"select {settle}", popped.token, popped.ids))
    await waits(observer, b.get_server_pid())
    await extending.commit()

    assert await settling == []
    assert await a.fetchval("select count(*) from postbus.deferred") == 0


class Shop:
    """Publishers and consumers that pop; what was published, and what was handled in which order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.committed: defaultdict[str, list[str]] = defaultdict(list)
        self.handled: defaultdict[str, list[str]] = defaultdict(list)
        self.in_hand: set[str] = set()
        self.published = asyncio.Event()

    async def publish(self, conn: Any, name: str, count: int) -> None:
        """Publish messages of this publisher's own keys, in transactions of all kinds."""
        n = 0
        while n < count:
            size = self.random.choice([1, 1, 3, 20])
            keys: list[str | None] = [f"{name}{self.random.randrange(4)}" for _ in range(size)]
            payloads = [f"{key}:{n + i}" for i, key in enumerate(keys)]
            transaction = conn.transaction()
            await transaction.start()
            await publish_many(conn, *payloads, keys=keys)
            await asyncio.sleep(self.random.choice([0, 0, 0.02]))
            if self.random.random() < 0.2:
                await transaction.rollback()
                continue
            await transaction.commit()
            for key, payload in zip(keys, payloads, strict=True):
                self.committed[str(key)].append(payload)
            n += size

    async def consume(self, conn: Any) -> None:
        """Pop batches until everything is handled; some fail, some are released, some are settled one by one."""
        while not self.published.is_set() or _count(self.handled) < _count(self.committed):
            popped = await pop(conn, self.random.choice([1, 2, 10, 50]))
            if not popped.messages:
                await asyncio.sleep(0.005)
                continue
            keys = {str(key) for key in popped.keys}
            assert not keys & self.in_hand, "a key is in two hands"
            self.in_hand |= keys
            try:
                await self._settle(conn, popped)
            finally:
                self.in_hand -= keys

    async def _settle(self, conn: Any, popped: Any) -> None:
        await asyncio.sleep(self.random.choice([0, 0.003]))
        failed = self.random.random()
        if failed < 0.15:
            self.in_hand -= {str(key) for key in popped.keys}
            await conn.fetchval("select postbus.release($1, $2)", popped.token, popped.ids)
        elif failed < 0.4:
            at = self.random.randrange(len(popped.ids))
            key = popped.keys[at]
            for message, its_key in zip(popped.messages[:at], popped.keys[:at], strict=True):
                self.handled[str(its_key)].append(message)
            behind = {id for id, one in zip(popped.ids[at:], popped.keys[at:], strict=True) if one == key}
            rest = [id for id in popped.ids[at:] if id not in behind]
            if at:
                # Before the ack is sent: from its commit on, others may have these keys.
                self.in_hand -= {str(one) for one in popped.keys[:at]} - {str(one) for one in popped.keys[at:]}
                assert await ack(conn, popped, *popped.ids[:at]) == []
            if rest:
                self.in_hand -= {str(one) for one in popped.keys} - {str(key)}
                await conn.fetchval("select postbus.release($1, $2)", popped.token, rest)
            self.in_hand -= {str(one) for one in popped.keys}
            await retry(conn, popped, popped.ids[at])
        else:
            for message, key in zip(popped.messages, popped.keys, strict=True):
                self.handled[str(key)].append(message)
            self.in_hand -= {str(one) for one in popped.keys}
            assert await ack(conn, popped) == []


def _count(messages: Mapping[str, Sequence[str]]) -> int:
    return sum(map(len, messages.values()))


async def test_pops_lose_double_and_reorder_nothing(connect: Connect) -> None:
    """With late commits, rollbacks, failures and releases, each message is handled once, in the order of its key."""
    shop = Shop(seed=7)
    admin = await connect()
    await create_topic(admin, lanes="named", max_attempts=1000)
    await subscribe(admin)
    consumers = [asyncio.create_task(shop.consume(await connect())) for _ in range(4)]

    await asyncio.gather(*[shop.publish(await connect(), name, 300) for name in "abc"])
    shop.published.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*consumers)

    assert shop.handled == shop.committed
    assert await admin.fetchval("select count(*) from postbus.deferred") == 0


@pytest.mark.parametrize("way", ["ack", "one"])
async def test_ack_ended_by_a_deadlock_is_sent_again(dsn: str, conn: Any, connect: Connect, way: str) -> None:
    """A `reindex` can cause it. The ack changed nothing then, and the message would come again."""
    # The ack checks for a deadlock two seconds after it began to wait, and the other session never does.
    name = await conn.fetchval("select current_database()")
    await conn.execute(f"alter database {name} set deadlock_timeout = '2s'")
    other = await connect()
    await other.execute("set deadlock_timeout = '100s'")
    other_pid = await other.fetchval("select pg_backend_pid()")
    transaction = other.transaction()
    async with Bus.open(dsn) as bus:
        await bus.admin.create_topic("q", retention="1 day")
        await bus.send("q", 1)
        popped = await bus.pop("q")
        assert popped is not None
        await transaction.start()
        await other.execute("lock table postbus.finished in access exclusive mode")
        acking = asyncio.create_task(popped.ack() if way == "ack" else popped[0].ack())

        async def ack_waits() -> None:
            waiting = "select count(*) from pg_stat_activity where $1 = any (pg_blocking_pids(pid))"
            assert await conn.fetchval(waiting, other_pid)

        await eventually(ack_waits)
        await other.execute("select from postbus.lease for update")
        await transaction.rollback()

        await asyncio.wait_for(acking, 10)
    assert await conn.fetchval("select count(*) from postbus.lease") == 0
    assert await conn.fetchval("select count(*) from postbus.finished") == 1


async def test_pops_of_a_dead_consumers_messages_never_wait(connect: Connect) -> None:
    """Several pops find at once that it had several messages in hand, and none waits for another."""
    dead, a, b = await connect(), await connect(), await connect()
    await create_topic(dead)
    await subscribe(dead)
    await publish_many(dead, "one", "two", "three", keys=["a", "b", "c"])
    await pop(dead, 3, member="dead", lease=timedelta(seconds=1))
    later = await dead.fetchval("select clock_timestamp() + interval '2 seconds'")

    async with b.transaction():
        await b.execute("select from postbus.deferred where key = 'c' for update")  # as a pop that takes it
        popped = await asyncio.wait_for(pop(a, 1, member="a", as_of=later), 5)
    other = await pop(b, 1, member="b", as_of=later)

    assert (popped.messages, popped.attempts) == (["one"], [1])
    assert (other.messages, other.attempts) == (["two"], [1]), "it was in hand with others, and is not charged"


async def test_returns_of_a_dead_consumers_leases_never_wait(connect: Connect) -> None:
    """Several processes return the leases of a queue at once, and none waits for another."""
    dead, a, b = await connect(), await connect(), await connect()
    for payload in ("one", "two"):
        await publish(dead, payload)
        await dead.fetch("select * from postbus.claim('t', 'dead', 1, lease => '1 second')")
    later = await dead.fetchval("select clock_timestamp() + interval '2 seconds'")
    give_back = "select postbus.return_expired_as_of(as_of => $1)"

    async with b.transaction():
        await b.execute(
            "select from postbus.lease where open_ids[1] = (select max(open_ids[1]) from postbus.lease) for update"
        )
        first = await asyncio.wait_for(a.fetchval(give_back, later), 5)
    second = await a.fetchval(give_back, later)

    attempts = await a.fetch("select attempts, trial from postbus.delayed order by id")
    assert (first, second) == (1, 1)
    assert [tuple(row) for row in attempts] == [(0, 1), (0, 1)], "both were in hand together: neither is charged"
