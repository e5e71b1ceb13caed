"""Two sessions at once: who gets a message, and who keeps it."""

from __future__ import annotations

import asyncio
from typing import Any

from support.eventually import eventually
from support.fix_database import Connect
from support.queue_sql import claim, is_waiting, payloads, publish, states


async def waits(observer: Any, pid: int) -> None:
    async def blocked() -> None:
        assert await is_waiting(observer, pid)

    await eventually(blocked)


async def test_two_claimers_never_get_the_same_message(connect: Connect) -> None:
    """A claimer skips what another one is claiming, without waiting for it."""
    a, b = await connect(), await connect()
    await publish(a, "one", "two", "three")

    async with a.transaction():
        first = await claim(a, 2, member="a")
        second = await claim(b, 5, member="b")  # a has not committed

    assert payloads(first) == ["one", "two"]
    assert payloads(second) == ["three"]


async def test_failed_claim_gives_its_messages_back(connect: Connect) -> None:
    """Messages locked by a claim that is rolled back are found by the next search without a floor."""
    a, b = await connect(), await connect()
    await publish(a, "one", "two")
    transaction = a.transaction()
    await transaction.start()
    await claim(a, 1, member="a")
    second = await claim(b, 5, member="b")
    await transaction.rollback()

    third = await claim(b, 5, member="b", scan_floor=None)

    assert payloads(second) == ["two"]
    assert payloads(third) == ["one"]


async def test_ack_during_the_return_of_its_lease_is_lost(connect: Connect) -> None:
    """The ack waits for the return, and then learns that the lease is lost."""
    a, sweeper = await connect(), await connect()
    (one,) = await publish(a, "one")
    claimed = await claim(a)
    pid = a.get_server_pid()

    returning = sweeper.transaction()
    await returning.start()
    assert await sweeper.fetchval("select postbus.return_expired_as_of(as_of => $1)", claimed["ends_at"]) == 1
    acking = asyncio.create_task(a.fetchval("select postbus.ack($1, $2)", claimed["token"], [one]))
    await waits(sweeper, pid)
    await returning.commit()

    assert await acking == [one]
    assert await states(a) == {"retrying": 1}


async def test_lease_being_acked_is_not_returned(connect: Connect) -> None:
    """The return skips the lease, although it has expired."""
    a, sweeper = await connect(), await connect()
    (one,) = await publish(a, "one")
    claimed = await claim(a)

    async with a.transaction():
        assert await a.fetchval("select postbus.ack($1, $2)", claimed["token"], [one]) == []
        assert await sweeper.fetchval("select postbus.return_expired_as_of(as_of => $1)", claimed["ends_at"]) == 0

    assert await states(a) == {}


async def test_ack_after_the_end_counts_while_nobody_else_has_the_message(connect: Connect) -> None:
    """A lease is lost when it is returned, not when its time has passed, so late answers still count."""
    a = await connect()
    (one,) = await publish(a, "one")
    claimed = await claim(a)

    await a.execute("update postbus.lease set ends_at = clock_timestamp() - interval '1 hour'")

    assert await a.fetchval("select postbus.ack($1, $2)", claimed["token"], [one]) == []


async def test_extension_during_the_return_of_its_lease_is_lost(connect: Connect) -> None:
    """The extension waits for the return, and then learns that the lease is lost."""
    a, sweeper = await connect(), await connect()
    await publish(a, "one")
    claimed = await claim(a)

    returning = sweeper.transaction()
    await returning.start()
    await sweeper.fetchval("select postbus.return_expired_as_of(as_of => $1)", claimed["ends_at"])
    extending = asyncio.create_task(a.fetchval("select postbus.extend(array[$1::uuid], '1 min')", claimed["token"]))
    await waits(sweeper, a.get_server_pid())
    await returning.commit()

    assert await extending == [claimed["token"]]


async def test_lease_being_extended_is_not_returned(connect: Connect) -> None:
    """The return skips the lease, which goes on."""
    a, sweeper = await connect(), await connect()
    await publish(a, "one")
    claimed = await claim(a)

    async with a.transaction():
        await a.fetchval("select postbus.extend(array[$1::uuid], '1 min')", claimed["token"])
        assert await sweeper.fetchval("select postbus.return_expired_as_of(as_of => $1)", claimed["ends_at"]) == 0

    assert await sweeper.fetchval("select postbus.return_expired_as_of(as_of => $1)", claimed["ends_at"]) == 0
    assert await states(a) == {"leased": 1}


async def test_two_sweepers_return_a_lease_once(connect: Connect) -> None:
    """A lease that one process is returning is skipped by another."""
    a, b = await connect(), await connect()
    await publish(a, "one")
    claimed = await claim(a)

    async with a.transaction():
        assert await a.fetchval("select postbus.return_expired_as_of(as_of => $1)", claimed["ends_at"]) == 1
        assert await b.fetchval("select postbus.return_expired_as_of(as_of => $1)", claimed["ends_at"]) == 0

    assert await states(a) == {"retrying": 1}


async def test_two_handlers_of_one_lease_settle_one_after_the_other(connect: Connect) -> None:
    """Transactions that settle different messages of one lease both count."""
    a, b = await connect(), await connect()
    one, two = await publish(a, "one", "two")
    claimed = await claim(a)

    first = a.transaction()
    await first.start()
    await a.fetchval("select postbus.ack($1, $2)", claimed["token"], [one])
    second = asyncio.create_task(b.fetchval("select postbus.ack($1, $2)", claimed["token"], [two]))
    await waits(a, b.get_server_pid())
    await first.commit()

    assert await second == []
    assert await states(a) == {}
