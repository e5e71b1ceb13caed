"""A caller whose COMMIT is interrupted by a broken connection or a cancellation learns its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from postbus import Bus, CommitUnknown, DatabaseUnavailable, InvalidInput, NotCommitted, TransactionEnded
from support.fix_proxy import OnCommit, Proxy, proxy
from support.queue_sql import count_of

__all__ = ["proxy"]  # a fixture


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


@pytest.fixture
async def far_bus(proxy: Proxy) -> AsyncIterator[Bus]:
    """Open a bus whose connections pass through the proxy."""
    async with Bus.open(proxy.dsn) as opened:
        yield opened


@pytest.mark.parametrize(("cut", "published"), [(OnCommit.CUT_BEFORE, 0), (OnCommit.CUT_AFTER, 1)])
async def test_send_cut_off_at_its_commit_raises_commit_unknown(
    far_bus: Bus, proxy: Proxy, conn: Any, topic: str, cut: OnCommit, published: int
) -> None:
    """Whether the server committed or not, the sender learns that this cannot be known."""
    proxy.on_commit = cut

    with pytest.raises(CommitUnknown) as unknown:
        await far_bus.send(topic, "x")

    assert unknown.value.code == "PB505"
    assert "dedup_key" in unknown.value.remedy
    assert await count_of(conn, topic) == published


@pytest.mark.parametrize("cut", [OnCommit.CUT_BEFORE, OnCommit.CUT_AFTER])
async def test_repeating_with_a_dedup_key_publishes_once(
    far_bus: Bus, proxy: Proxy, conn: Any, topic: str, cut: OnCommit
) -> None:
    """After CommitUnknown, repeating the call is safe and returns the id of the one message."""
    proxy.on_commit = cut
    with pytest.raises(CommitUnknown):
        await far_bus.send(topic, "x", dedup_key="d")
    proxy.on_commit = OnCommit.PASS

    message_id = await far_bus.send(topic, "x", dedup_key="d")

    rows = await conn.fetch("select id from postbus.messages where topic = $1", topic)
    assert [row["id"] for row in rows] == [message_id]


async def test_all_senders_of_one_commit_get_commit_unknown(far_bus: Bus, proxy: Proxy, topic: str) -> None:
    """The next send works."""
    proxy.on_commit = OnCommit.CUT_AFTER

    answers = await asyncio.gather(*(far_bus.send(topic, n) for n in range(5)), return_exceptions=True)
    proxy.on_commit = OnCommit.PASS
    await far_bus.send(topic, "x")

    assert {type(answer) for answer in answers} == {CommitUnknown}


async def test_connection_lost_before_commit_changes_nothing(far_bus: Bus, proxy: Proxy, conn: Any, topic: str) -> None:
    """It raises DatabaseUnavailable, because it is known that nothing happened."""
    with pytest.raises(DatabaseUnavailable, match="before COMMIT"):
        async with far_bus.transaction() as mine:
            await far_bus.publish(mine, topic, "x")
            lost = asyncio.Event()
            mine.add_termination_listener(lambda _: lost.set())
            proxy.break_connections()
            await lost.wait()

    assert await count_of(conn, topic) == 0


async def test_send_without_a_server_raises_database_unavailable(far_bus: Bus, proxy: Proxy, topic: str) -> None:
    """A send that cannot connect any more fails."""
    await far_bus.send(topic, "x")
    await proxy.stop()

    with pytest.raises(DatabaseUnavailable):
        await far_bus.send(topic, "x")
    await proxy.start()


async def test_transaction_cut_off_at_its_commit_raises_commit_unknown(
    far_bus: Bus, proxy: Proxy, conn: Any, topic: str
) -> None:
    """`bus.transaction()` reports an unknown commit as `send()` does."""
    proxy.on_commit = OnCommit.CUT_AFTER

    with pytest.raises(CommitUnknown):
        async with far_bus.transaction() as mine:
            await far_bus.publish(mine, topic, "x")

    assert await count_of(conn, topic) == 1


async def test_cancellation_during_commit_waits_for_its_end(far_bus: Bus, proxy: Proxy, conn: Any, topic: str) -> None:
    """A task cancelled during COMMIT, even twice, ends as cancelled after the commit."""
    committed = asyncio.Event()

    async def publish() -> None:
        try:
            async with far_bus.transaction() as mine:
                await far_bus.publish(mine, topic, "x")
        finally:
            committed.set()

    await far_bus.connect()
    proxy.on_commit = OnCommit.HOLD
    publishing = asyncio.create_task(publish())
    await proxy.commit_seen.wait()
    publishing.cancel()
    await asyncio.sleep(0)
    publishing.cancel()
    await asyncio.sleep(0)
    was_held_back = not committed.is_set()
    proxy.release()

    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert was_held_back
    assert await count_of(conn, topic) == 1


async def test_send_cancelled_during_commit_leaves_other_sends_alone(
    far_bus: Bus, proxy: Proxy, conn: Any, topic: str
) -> None:
    """One sender gives up during the commit; the other gets its id, and both messages are published."""
    proxy.on_commit = OnCommit.HOLD
    impatient = asyncio.create_task(far_bus.send(topic, "x"))
    patient = asyncio.create_task(far_bus.send(topic, "y"))
    await proxy.commit_seen.wait()

    impatient.cancel()
    proxy.release()

    assert await patient > 0
    with pytest.raises(asyncio.CancelledError):
        await impatient
    assert await count_of(conn, topic) == 2


async def test_failing_transaction_is_rolled_back(bus: Bus, conn: Any, topic: str) -> None:
    """An error within `bus.transaction()` reaches the caller as it is, and nothing is published."""
    with pytest.raises(ZeroDivisionError):
        async with bus.transaction() as mine:
            await bus.publish(mine, topic, "x")
            raise ZeroDivisionError

    assert await count_of(conn, topic) == 0


async def test_commit_refused_by_the_database_raises_its_error(bus: Bus, conn: Any, topic: str) -> None:
    """A constraint that fails at COMMIT raises as it does without Postbus: the outcome is known."""
    await conn.execute(f'create table "{topic}" (n int unique deferrable initially deferred)')

    with pytest.raises(asyncpg.UniqueViolationError):
        async with bus.transaction() as mine:
            await bus.publish(mine, topic, "x")
            await mine.execute(f'insert into "{topic}" values (1), (1)')

    assert await count_of(conn, topic) == 0


async def test_transaction_may_have_savepoints(bus: Bus, conn: Any, topic: str) -> None:
    """Within `bus.transaction()` asyncpg's own blocks are savepoints."""
    async with bus.transaction() as mine:
        await bus.publish(mine, topic, "x")
        with pytest.raises(ZeroDivisionError):
            async with mine.transaction():
                await bus.publish(mine, topic, "y")
                raise ZeroDivisionError

    assert await count_of(conn, topic) == 1


async def test_connection_that_cannot_be_reset_is_dropped(bus: Bus, conn: Any) -> None:
    """A body fails during one of its statements: its slot in the pool is free again, and close ends."""
    wait = "select pg_advisory_lock(1)"
    await conn.execute(wait)
    store = await bus.connect()

    async def leave_a_statement_behind() -> None:
        async with store.transaction() as mine:
            busy = asyncio.ensure_future(mine.execute(wait))
            await asyncio.sleep(0)
            try:
                raise KeyError("no")
            finally:
                busy.add_done_callback(lambda ended: ended.exception())

    for _ in range(11):  # one more than there are connections
        with pytest.raises(KeyError):
            await leave_a_statement_behind()
    await asyncio.wait_for(bus.close(), 5)


async def test_commit_that_the_server_rolls_back_is_an_error(bus: Bus, conn: Any, topic: str) -> None:
    """If an error within the block was caught, the server rolls back at COMMIT, and the caller gets an error."""
    with pytest.raises(NotCommitted, match="rolled the transaction back"):
        async with bus.transaction() as tx:
            await bus.publish(tx, topic, "x")
            with suppress(asyncpg.PostgresError):
                await tx.execute("select 1 / 0")

    assert await count_of(conn, topic) == 0
    async with bus.transaction() as tx:
        await bus.publish(tx, topic, "y")
    assert await count_of(conn, topic) == 1


async def test_error_in_a_savepoint_does_not_end_the_transaction(bus: Bus, conn: Any, topic: str) -> None:
    """Only the nested block is undone, and the rest commits."""
    async with bus.transaction() as tx:
        await bus.publish(tx, topic, "x")
        with suppress(asyncpg.PostgresError):
            async with tx.transaction():
                await bus.publish(tx, topic, "undone")
                await tx.execute("select 1 / 0")

    assert await count_of(conn, topic) == 1


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_block_that_ends_its_own_transaction_is_an_error(bus: Bus, topic: str, ends: str) -> None:
    """Later statements of the block would be outside of any transaction."""
    with pytest.raises(TransactionEnded, match="inside it"):
        async with bus.transaction() as tx:
            await bus.publish(tx, topic, "x")
            await tx.execute(ends)
    async with bus.transaction() as tx:
        await bus.publish(tx, topic, "y")


@pytest.mark.parametrize("ends", ["commit", "rollback", "rollback; begin; commit"])
async def test_block_that_begins_another_transaction_is_an_error(bus: Bus, conn: Any, topic: str, ends: str) -> None:
    """Earlier messages may be gone, and later ones are undone with the other transaction."""
    with pytest.raises(TransactionEnded, match="inside it"):
        async with bus.transaction() as tx:
            await bus.publish(tx, topic, "x")
            await tx.execute(f"{ends}; begin")
            await bus.publish(tx, topic, "y")

    assert await count_of(conn, topic) == (ends == "commit")
    async with bus.transaction() as tx:
        await bus.publish(tx, topic, "z")
    assert await count_of(conn, topic) == 1 + (ends == "commit")


async def test_error_found_only_at_commit_is_raised_unchanged(bus: Bus, conn: Any, topic: str) -> None:
    """It comes from a deferred check of the user's own, whatever it raises."""
    with pytest.raises(InvalidInput, match="deferred"):
        async with bus.transaction() as tx:
            await tx.execute(
                "create temp table deferred (n integer) on commit drop;"
                "create function pg_temp.refuse() returns trigger language plpgsql as "
                "$$ begin raise division_by_zero using message = 'deferred'; end $$;"
                "create constraint trigger t after insert on deferred deferrable initially deferred "
                "for each row execute function pg_temp.refuse();"
                "insert into deferred values (1)"
            )
            await bus.publish(tx, topic, "x")
    assert await count_of(conn, topic) == 0


async def test_ack_in_a_rolled_back_transaction_is_open_again(bus: Bus, topic: str) -> None:
    """Messages acknowledged in it are still in hand, and can be acknowledged again."""
    await bus.send(topic, "x")
    popped = await bus.pop(topic)
    with pytest.raises(NotCommitted):
        async with bus.transaction() as tx:
            await popped.ack(tx)
            with suppress(asyncpg.PostgresError):
                await tx.execute("select 1 / 0")
    await popped.ack()
