"""Settling in a transaction: popped messages are settled if and only if their results are committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.drivers import PROGRAMS, Program
from postbus import Bus, CommitUnknown, InvalidInput, LeaseLost, Popped, Start
from support.eventually import eventually
from support.fix_proxy import OnCommit, Proxy, proxy
from support.grouping import create_log
from support.pulling import leased, lose, send_numbers, states_of

__all__ = ["proxy"]  # a fixture


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


ASYNC = [name for name in PROGRAMS if "sync" in name]


@pytest.fixture(params=ASYNC)
async def async_program(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[Program]:
    """Run a program with an event loop, with each async driver in turn."""
    async with PROGRAMS[request.param](dsn) as opened:
        yield opened


async def test_popped_messages_and_their_results_commit_together(bus: Bus, conn: Any, topic: str) -> None:
    """Consuming, transforming and producing happens exactly once."""
    await send_numbers(bus, topic, 3)

    async with bus.pop(topic, batch=3) as popped:
        async with bus.transaction() as tx:
            await popped.ack(tx)
            await bus.publish_many(tx, f"{topic}.out", [2 * number for number in popped.payloads])
            assert await leased(conn, topic) == 3
        assert not any(one.is_open for one in popped)

    assert await states_of(conn, topic) == {}
    assert (await bus.pop(f"{topic}.out", batch=9)).payloads == [0, 2, 4]


async def test_failed_transaction_changes_nothing(bus: Bus, conn: Any, topic: str) -> None:
    """The messages are retried, and nothing was published."""
    await send_numbers(bus, topic, 2)

    with pytest.raises(ZeroDivisionError):
        async with bus.pop(topic, batch=2) as popped, bus.transaction() as tx:
            await popped.ack(tx)
            await bus.publish(tx, f"{topic}.out", 1)
            raise ZeroDivisionError

    assert await states_of(conn, topic) == {"retrying": 2}
    assert await states_of(conn, f"{topic}.out") == {}


async def test_failed_settlement_is_not_acked_at_the_end_of_the_block(bus: Bus, conn: Any, topic: str) -> None:
    """A message to be settled in a failed transaction is retried when the caller ignores the failure."""
    await send_numbers(bus, topic, 2)

    async with bus.pop(topic, batch=2) as popped:
        try:
            async with bus.transaction() as tx:
                await popped[0].ack(tx)
                raise ZeroDivisionError
        except ZeroDivisionError:
            assert popped[0].is_open

    rows = await conn.fetch("select payload, state, last_error from postbus.messages where topic = $1", topic)
    assert [tuple(row) for row in rows] == [(b"0", "retrying", "the transaction that settled it did not commit")]


async def test_message_can_be_settled_again_after_a_rollback(bus: Bus, conn: Any, topic: str) -> None:
    """Without a block the messages are open again when the transaction was rolled back."""
    await send_numbers(bus, topic, 2)
    popped = await bus.pop(topic, batch=2)
    with pytest.raises(ZeroDivisionError):
        async with bus.transaction() as tx:
            await popped.ack(tx)
            raise ZeroDivisionError

    await popped.dead_letter("no good")

    assert await states_of(conn, topic) == {"dead": 2}


@pytest.mark.parametrize("settlement", ["ack", "retry", "release", "dead_letter"])
async def test_each_settlement_works_within_a_transaction(bus: Bus, conn: Any, topic: str, settlement: str) -> None:
    """It settles one message or all open ones, when the transaction commits."""
    await send_numbers(bus, topic, 2)
    popped = await bus.pop(topic, batch=2)

    async with bus.transaction() as tx:
        for given in (popped[0], popped):
            match settlement:
                case "ack":
                    await given.ack(tx)
                case "retry":
                    await given.retry(tx, delay=60)
                case "release":
                    await given.release(tx)
                case "dead_letter":
                    await given.dead_letter("no good", tx)
        assert await leased(conn, topic) == 2

    left = {"ack": {}, "retry": {"retrying": 2}, "release": {"waiting": 2}, "dead_letter": {"dead": 2}}
    assert await states_of(conn, topic) == left[settlement]


async def test_lost_lease_rolls_the_transaction_back(bus: Bus, conn: Any, topic: str) -> None:
    """LeaseLost leaves the transaction's block, and undoes what was published in it."""
    await send_numbers(bus, topic, 1)
    popped = await bus.pop(topic)
    await lose(conn, popped)

    with pytest.raises(LeaseLost):
        async with bus.transaction() as tx:
            await bus.publish(tx, f"{topic}.out", 1)
            await popped.ack(tx)

    assert await states_of(conn, topic) == {"retrying": 1}
    assert await states_of(conn, f"{topic}.out") == {}


async def test_message_being_settled_cannot_be_settled_again(bus: Bus, topic: str) -> None:
    """A second settlement would wait for the end of the open transaction, so it is refused."""
    await send_numbers(bus, topic, 1)
    popped = await bus.pop(topic)

    async with bus.transaction() as tx:
        await popped.ack(tx)
        with pytest.raises(InvalidInput, match="transaction that is still open"):
            await popped[0].retry()
        await popped.retry()  # nothing is open


async def test_kept_lease_does_not_wait_for_the_transaction(bus: Bus, conn: Any, topic: str) -> None:
    """Messages settled in an open transaction are not extended meanwhile, and other kept ones are."""
    await send_numbers(bus, topic, 2)
    ends = "select ends_at from postbus.lease where token = $1"

    first, second = await bus.pop(topic, lease=1), await bus.pop(topic, lease=1)

    async def is_later(than: Any) -> None:
        assert await conn.fetchval(ends, second[0].token) > than

    async with first.keep(), second.keep(), bus.transaction() as tx:
        await first.ack(tx)
        await eventually(is_later, await conn.fetchval(ends, second[0].token))
    await second.ack()

    assert await states_of(conn, topic) == {}


async def test_each_driver_can_settle(async_program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """The connection may belong to any supported async driver."""
    await send_numbers(bus, topic, 3)
    popped = await bus.pop(topic, batch=3)

    await async_program.begin()
    await popped[0].ack(async_program.conn)
    await popped[1].retry(async_program.conn, delay=60, error="100% wrong: $1")
    await popped[2].dead_letter("no good", async_program.conn)
    assert await leased(conn, topic) == 3
    await async_program.commit()

    assert await states_of(conn, topic) == {"retrying": 1, "dead": 1}


async def test_each_driver_can_roll_back_a_settlement(async_program: Program, bus: Bus, conn: Any, topic: str) -> None:
    """Afterwards the messages can be settled again; after a commit nothing is left to settle."""
    await send_numbers(bus, topic, 2)
    first, second = await bus.pop(topic), await bus.pop(topic)

    await async_program.begin()
    await first.ack(async_program.conn)
    await async_program.rollback()
    await first.retry(delay=60)
    await async_program.begin()
    await second.ack(async_program.conn)
    await async_program.commit()
    await second.retry(delay=60)

    assert await states_of(conn, topic) == {"retrying": 1}


async def test_block_within_a_transaction_leaves_it_alone(bus: Bus, conn: Any, connect: Any, topic: str) -> None:
    """The caller's transaction, still open at the end of the block, decides."""
    await send_numbers(bus, topic, 2)
    own = await connect()

    async with own.transaction():
        async with bus.pop(topic, batch=2) as popped:
            await popped.ack(own)
        assert await leased(conn, topic) == 2

    assert await states_of(conn, topic) == {}


async def test_block_does_not_wait_for_its_own_open_transaction(bus: Bus, conn: Any, connect: Any, topic: str) -> None:
    """Settling the rest of a lease beside an open transaction with a part of it would deadlock, so it is refused."""
    await send_numbers(bus, topic, 2)
    own = await connect()

    async with own.transaction():
        with pytest.raises(InvalidInput, match="of the same lease"):
            async with bus.pop(topic, batch=2) as popped:
                await popped[0].ack(own)
        await popped[1].ack(own)

    assert await states_of(conn, topic) == {}


async def test_one_transaction_spans_topics_and_groups(bus: Bus, conn: Any, topic: str) -> None:
    """Messages of a group and of a queue are settled with their results in one transaction."""
    await create_log(bus, topic)
    await (await bus.connect()).subscribe(topic, "g", Start.NOW, "block")
    await bus.send(topic, 1, key="k")
    await bus.send(f"{topic}.q", 2)

    async with bus.pop(topic, group="g") as one, bus.pop(f"{topic}.q") as two, bus.transaction() as tx:
        await one.ack(tx)
        await two.ack(tx)
        await bus.publish(tx, f"{topic}.sum", one[0].payload + two[0].payload)

    assert (await bus.pop(f"{topic}.sum")).payloads == [3]
    assert not await bus.pop(topic, group="g")
    assert await states_of(conn, f"{topic}.q") == {}


async def test_commit_wakes_a_pop_that_waits_for_the_key(bus: Bus, topic: str) -> None:
    """The next message of a key comes when the transaction that settles the first has committed."""
    await create_log(bus, topic)
    await (await bus.connect()).subscribe(topic, "g", Start.NOW, "block")
    await send_numbers(bus, topic, 2, key="k")
    first = await bus.pop(topic, group="g", lease=60)
    waiting = asyncio.create_task(_pop(bus, topic))
    await asyncio.sleep(0)

    async with bus.transaction() as tx:
        await first.ack(tx)

    assert (await asyncio.wait_for(waiting, 10)).payloads == [1]


async def _pop(bus: Bus, topic: str) -> Popped:
    return await bus.pop(topic, group="g", wait=30)


@pytest.mark.parametrize(
    ("cut", "left", "out"), [(OnCommit.CUT_AFTER, {}, {"waiting": 2}), (OnCommit.CUT_BEFORE, {"retrying": 2}, {})]
)
async def test_unknown_commit_is_resolved_by_retrying(
    proxy: Proxy, conn: Any, topic: str, cut: OnCommit, left: dict[str, int], out: dict[str, int]
) -> None:
    """The acknowledged messages are retried, which changes nothing if the commit happened."""
    async with Bus.open(proxy.dsn) as bus:
        await send_numbers(bus, topic, 2)
        with pytest.raises(CommitUnknown):
            async with bus.pop(topic, batch=2) as popped, bus.transaction() as tx:
                await popped.ack(tx)
                await bus.publish_many(tx, f"{topic}.out", popped.payloads)
                proxy.on_commit = cut
        proxy.on_commit = OnCommit.PASS

    assert await states_of(conn, topic) == left
    assert await states_of(conn, f"{topic}.out") == out
