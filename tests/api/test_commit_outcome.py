"""What a caller is told when COMMIT is interrupted: by a broken connection, or by a cancellation."""

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
    """A bus whose connections pass the proxy."""
    async with Bus.open(proxy.dsn) as opened:
        yield opened


@pytest.mark.parametrize(("cut", "published"), [(OnCommit.CUT_BEFORE, 0), (OnCommit.CUT_AFTER, 1)])
async def test_a_send_cut_off_at_its_commit_is_told_so(
    far_bus: Bus, proxy: Proxy, conn: Any, topic: str, cut: OnCommit, published: int
) -> None:
    """Whether the server has committed or not, the sender learns that it cannot be known."""
    proxy.on_commit = cut

    with pytest.raises(CommitUnknown) as unknown:
        await far_bus.send(topic, "x")

    assert unknown.value.code == "PB505"
    assert "dedup_key" in unknown.value.remedy
    assert await count_of(conn, topic) == published


@pytest.mark.parametrize("cut", [OnCommit.CUT_BEFORE, OnCommit.CUT_AFTER])
async def test_repeating_with_a_deduplication_key_publishes_once(
    far_bus: Bus, proxy: Proxy, conn: Any, topic: str, cut: OnCommit
) -> None:
    """After CommitUnknown the same call again is safe, and gives the id of the one message."""
    proxy.on_commit = cut
    with pytest.raises(CommitUnknown):
        await far_bus.send(topic, "x", dedup_key="d")
    proxy.on_commit = OnCommit.PASS

    message_id = await far_bus.send(topic, "x", dedup_key="d")

    rows = await conn.fetch("select id from postbus.messages where topic = $1", topic)
    assert [row["id"] for row in rows] == [message_id]


async def test_all_that_share_the_commit_are_told(far_bus: Bus, proxy: Proxy, topic: str) -> None:
    """Each of the senders of one commit gets CommitUnknown, and the next send works."""
    proxy.on_commit = OnCommit.CUT_AFTER

    answers = await asyncio.gather(*(far_bus.send(topic, n) for n in range(5)), return_exceptions=True)
    proxy.on_commit = OnCommit.PASS
    await far_bus.send(topic, "x")

    assert {type(answer) for answer in answers} == {CommitUnknown}


async def test_a_server_that_goes_away_before_the_commit_changed_nothing(
    far_bus: Bus, proxy: Proxy, conn: Any, topic: str
) -> None:
    """A connection that breaks within a transaction is DatabaseUnavailable: it is known that nothing happened."""
    with pytest.raises(DatabaseUnavailable, match="before COMMIT"):
        async with far_bus.transaction() as mine:
            await far_bus.publish(mine, topic, "x")
            lost = asyncio.Event()
            mine.add_termination_listener(lambda _: lost.set())
            proxy.break_connections()
            await lost.wait()

    assert await count_of(conn, topic) == 0


async def test_a_server_that_goes_away_is_unavailable(far_bus: Bus, proxy: Proxy, topic: str) -> None:
    """A send that cannot connect any more raises DatabaseUnavailable."""
    await far_bus.send(topic, "x")
    await proxy.stop()

    with pytest.raises(DatabaseUnavailable):
        await far_bus.send(topic, "x")
    await proxy.start()


async def test_a_transaction_cut_off_at_its_commit_is_told_so(
    far_bus: Bus, proxy: Proxy, conn: Any, topic: str
) -> None:
    """bus.transaction() tells of an unknown commit as send() does."""
    proxy.on_commit = OnCommit.CUT_AFTER

    with pytest.raises(CommitUnknown):
        async with far_bus.transaction() as mine:
            await far_bus.publish(mine, topic, "x")

    assert await count_of(conn, topic) == 1


async def test_a_cancellation_during_commit_waits_for_its_end(
    far_bus: Bus, proxy: Proxy, conn: Any, topic: str
) -> None:
    """A task that is cancelled, even twice, while COMMIT is under way ends as cancelled after the commit."""
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


async def test_a_send_cancelled_during_commit_leaves_the_others_alone(
    far_bus: Bus, proxy: Proxy, conn: Any, topic: str
) -> None:
    """One sender gives up while the commit is under way; the other gets its id, and both are published."""
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


async def test_a_transaction_that_fails_is_rolled_back(bus: Bus, conn: Any, topic: str) -> None:
    """An error within bus.transaction() reaches the caller as it is, and nothing is published."""
    with pytest.raises(ZeroDivisionError):
        async with bus.transaction() as mine:
            await bus.publish(mine, topic, "x")
            raise ZeroDivisionError

    assert await count_of(conn, topic) == 0


async def test_a_commit_that_the_database_refuses_is_its_error(bus: Bus, conn: Any, topic: str) -> None:
    """A constraint that is checked at COMMIT fails as it does without Postbus: the outcome is known."""
    await conn.execute(f'create table "{topic}" (n int unique deferrable initially deferred)')

    with pytest.raises(asyncpg.UniqueViolationError):
        async with bus.transaction() as mine:
            await bus.publish(mine, topic, "x")
            await mine.execute(f'insert into "{topic}" values (1), (1)')

    assert await count_of(conn, topic) == 0


async def test_a_transaction_may_have_savepoints(bus: Bus, conn: Any, topic: str) -> None:
    """Within bus.transaction() asyncpg's own blocks are savepoints."""
    async with bus.transaction() as mine:
        await bus.publish(mine, topic, "x")
        with pytest.raises(ZeroDivisionError):
            async with mine.transaction():
                await bus.publish(mine, topic, "y")
                raise ZeroDivisionError

    assert await count_of(conn, topic) == 1


async def test_a_connection_that_cannot_be_reset_is_dropped(bus: Bus, conn: Any) -> None:
    """A body fails while a statement of it is under way: others get the connection's place, and close ends."""
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
    """If an error within the block was caught, the server rolls back at COMMIT, and the caller is told."""
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
    """What a nested block undoes is undone; the rest commits."""
    async with bus.transaction() as tx:
        await bus.publish(tx, topic, "x")
        with suppress(asyncpg.PostgresError):
            async with tx.transaction():
                await bus.publish(tx, topic, "undone")
                await tx.execute("select 1 / 0")

    assert await count_of(conn, topic) == 1


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_block_that_ends_its_own_transaction_is_an_error(bus: Bus, topic: str, ends: str) -> None:
    """What follows in the block would not be part of any transaction, so the caller is told."""
    with pytest.raises(TransactionEnded, match="inside it"):
        async with bus.transaction() as tx:
            await bus.publish(tx, topic, "x")
            await tx.execute(ends)
    async with bus.transaction() as tx:
        await bus.publish(tx, topic, "y")


@pytest.mark.parametrize("ends", ["commit", "rollback", "rollback; begin; commit"])
async def test_block_that_begins_another_transaction_is_an_error(bus: Bus, conn: Any, topic: str, ends: str) -> None:
    """What was published before may be gone, and what follows is undone with the other transaction."""
    with pytest.raises(TransactionEnded, match="inside it"):
        async with bus.transaction() as tx:
            await bus.publish(tx, topic, "x")
            await tx.execute(f"{ends}; begin")
            await bus.publish(tx, topic, "y")

    assert await count_of(conn, topic) == (ends == "commit")
    async with bus.transaction() as tx:
        await bus.publish(tx, topic, "z")
    assert await count_of(conn, topic) == 1 + (ends == "commit")


async def test_error_that_only_the_commit_finds_is_told_as_it_is(bus: Bus, conn: Any, topic: str) -> None:
    """A deferred check of the user's own, whatever it raises."""
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


async def test_ack_in_a_transaction_that_the_server_rolls_back_is_open_again(bus: Bus, topic: str) -> None:
    """Messages that were acked in it are still in hand, and can be acked again."""
    await bus.send(topic, "x")
    popped = await bus.pop(topic)
    with pytest.raises(NotCommitted):
        async with bus.transaction() as tx:
            await popped.ack(tx)
            with suppress(asyncpg.PostgresError):
                await tx.execute("select 1 / 0")
    await popped.ack()
