"""The inbox in PostgreSQL, in the caller's transaction, with every driver."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg
import pytest
import sqlalchemy

from api.drivers import Program
from postbus import InvalidInput, InvalidOption
from postbus.inbox import Inbox
from postbus.inbox._postgres import Once
from support.eventually import eventually

A = TypeVar("A")
INBOX = Inbox()
_FAIL = "do $$ begin raise exception 'the effect failed'; end $$"


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


@pytest.fixture
def consumer(topic: str) -> str:
    return topic


async def enter(program: Program, once: Once[A]) -> A:
    """Enter the block as programs of this kind do."""
    answer: A = await program.call(once.__aenter__ if once._driver.is_async else once.__enter__)
    return answer


async def leave(program: Program, once: Once[Any], error: BaseException | None = None) -> None:
    leaving = once.__aexit__ if once._driver.is_async else once.__exit__
    await program.call(lambda: leaving(type(error), error, None))


async def first(program: Program, consumer: str, message_id: Any = "m", inbox: Inbox = INBOX) -> bool:
    """Run a transaction with an effect that succeeds."""
    await program.begin()
    once = inbox.once(program.conn, consumer, message_id)
    is_first = await enter(program, once)
    await leave(program, once)
    await program.commit()
    return is_first


async def test_message_has_its_effect_once(program: Program, consumer: str) -> None:
    """The second time it is known, whatever the type of its id."""
    for message_id in ("m", 7, UUID(int=7), "ключ %s :name $1 '"):
        assert await first(program, consumer, message_id)
        assert not await first(program, consumer, message_id)
    assert not await first(program, consumer, "7"), "a number is kept as a text"


async def test_rolled_back_message_has_its_effect_later(program: Program, consumer: str) -> None:
    """The record is rolled back with the effect."""
    await program.begin()
    assert await enter(program, INBOX.once(program.conn, consumer, "m"))
    await program.rollback()

    assert await first(program, consumer)


async def test_error_in_the_block_removes_the_record(program: Program, consumer: str) -> None:
    """A caller that catches the error outside of the block and commits has lost nothing."""
    await program.begin()
    once = INBOX.once(program.conn, consumer, "m")
    assert await enter(program, once)
    await leave(program, once, ZeroDivisionError())
    await program.commit()

    assert await first(program, consumer)


async def test_database_error_in_the_block_is_raised_unchanged(program: Program, consumer: str) -> None:
    """Leaving the block in a failed transaction hides nothing, and the record is gone."""
    await program.begin()
    once = INBOX.once(program.conn, consumer, "m")
    assert await enter(program, once)
    with pytest.raises(program.error, match="the effect failed") as failed:
        await program.execute(_FAIL)
    await leave(program, once, failed.value)
    await program.rollback()

    assert await first(program, consumer)


async def test_error_for_a_known_message_does_not_forget_it(program: Program, consumer: str) -> None:
    """The record of another transaction stays."""
    assert await first(program, consumer)
    await program.begin()
    once = INBOX.once(program.conn, consumer, "m")
    assert not await enter(program, once)
    await leave(program, once, ZeroDivisionError())
    await program.commit()

    assert not await first(program, consumer)


async def test_many_messages_have_one_answer_each(program: Program, consumer: str) -> None:
    """An error removes the records that were new to the block, and nothing else."""
    assert await first(program, consumer, "b")
    for error, expected in ((ZeroDivisionError(), [True, False, True]), (None, [True, False, True])):
        await program.begin()
        once = INBOX.once_many(program.conn, consumer, ["c", "b", "a"])
        assert await enter(program, once) == expected
        await leave(program, once, error)
        await program.commit()

    await program.begin()
    assert await enter(program, INBOX.once_many(program.conn, consumer, ["a", "b", "c"])) == [False] * 3
    assert await enter(program, INBOX.once_many(program.conn, consumer, [])) == []
    await program.commit()


async def test_message_is_forgotten_on_request(program: Program, consumer: str) -> None:
    """Its next delivery has its effect again."""
    assert await first(program, consumer)
    known = []
    for _ in range(2):
        await program.begin()
        known.append(await program.call(lambda: INBOX.forget(program.conn, consumer, "m")))
        await program.commit()

    assert known == [True, False]
    assert await first(program, consumer)


async def test_window_can_be_set_per_inbox(program: Program, conn: Any, consumer: str) -> None:
    """The record expires after the consumer's own window."""
    assert await first(program, consumer, inbox=Inbox(window="36 hours"))

    kept = await conn.fetchval("select expires_at - done_at from postbus.inbox where consumer = $1", consumer)
    assert kept == timedelta(hours=36)


async def test_refusal_of_the_database_is_one_of_our_errors(program: Program, consumer: str) -> None:
    """It has the remedy, and nothing of the driver."""
    odd = Inbox()
    odd._window = timedelta(0)  # which Python would have refused
    await program.begin()
    with pytest.raises(InvalidOption) as refused:
        await enter(program, odd.once(program.conn, consumer, "m"))
    await program.rollback()

    assert refused.value.message == "bad window of the inbox: 00:00:00"
    assert refused.value.remedy == "keep records for 1 second to 100 years"


async def test_wrong_kind_of_block_is_refused(program: Program, consumer: str) -> None:
    """The error says whether to use `with` or `async with`."""
    once = INBOX.once(program.conn, consumer, "m")
    with pytest.raises(InvalidInput, match="use `(async )?with inbox.once"):
        if once._driver.is_async:
            once.__enter__()
        else:
            await once.__aenter__()


async def test_inbox_without_a_transaction_is_refused(dsn: str, conn: Any, consumer: str) -> None:
    """The record would be committed before the effect, and a crash in between would lose the effect."""
    with pytest.raises(InvalidInput, match="no transaction"):
        async with INBOX.once(conn, consumer, "m"):
            pass
    with psycopg.connect(dsn, autocommit=True) as plain:
        with pytest.raises(InvalidInput, match="no transaction"), INBOX.once(plain, consumer, "m"):
            pass
        with plain.transaction(), INBOX.once(plain, consumer, "within a block") as is_first:
            assert is_first
    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    connection = engine.connect()
    with pytest.raises(InvalidInput, match="no transaction"), INBOX.once(connection, consumer, "m"):
        pass
    connection.close()
    engine.dispose()

    kept = await conn.fetch("select message_id from postbus.inbox where consumer = $1", consumer)
    assert [row["message_id"] for row in kept] == ["within a block"]


async def test_two_processes_have_the_effect_once(dsn: str, connect: Any, consumer: str) -> None:
    """The second waits for the first one's commit, and then has nothing to do."""
    a, b, observer = await connect(), await connect(), await connect()
    effects = []

    async def work(conn: Any, entered: asyncio.Event, go: asyncio.Event) -> None:
        async with conn.transaction(), INBOX.once(conn, consumer, "m") as is_first:
            entered.set()
            await go.wait()
            if is_first:
                effects.append(conn)

    entered, go = asyncio.Event(), asyncio.Event()
    working = [asyncio.create_task(work(a, entered, go))]
    await entered.wait()
    working.append(asyncio.create_task(work(b, asyncio.Event(), go)))

    async def waits() -> None:
        assert await observer.fetchval("select cardinality(pg_blocking_pids($1)) > 0", b.get_server_pid())

    await eventually(waits)
    go.set()
    await asyncio.gather(*working)

    assert effects == [a]


@pytest.mark.parametrize("consumer", ["", "c" * 201, "nul\0", "\ud800", None, 7])
def test_bad_consumer_name_is_refused(consumer: Any) -> None:
    """It is refused before the database is asked."""
    with pytest.raises(InvalidOption, match="name of a consumer"):
        INBOX.once(object(), consumer, "m")


@pytest.mark.parametrize("message_id", ["", "m" * 501, "nul\0", "\ud800", None, True, 1.5, b"m"])
def test_bad_message_id_is_refused(message_id: Any) -> None:
    """It is refused before the database is asked."""
    with pytest.raises(InvalidOption, match="id of a message"):
        INBOX.once(object(), "c", message_id)


@pytest.mark.parametrize("window", [0, -1, "soon", float("inf"), timedelta(days=40000)])
def test_bad_window_is_refused(window: Any) -> None:
    """The error says what is allowed."""
    with pytest.raises(InvalidOption, match="window"):
        Inbox(window=window)


def test_single_id_is_refused_as_a_batch() -> None:
    """It would be taken for one message per letter."""
    with pytest.raises(InvalidOption, match="is one id"):
        INBOX.once_many(object(), "c", "m")


def test_unknown_connection_is_refused() -> None:
    """The error lists the connections that Postbus knows."""
    with pytest.raises(InvalidInput, match="object is not a connection that Postbus knows"):
        INBOX.once(object(), "c", "m")
