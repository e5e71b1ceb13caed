"""Handlers that the inbox makes idempotent: in the bus's transaction, in one of their own, and with Redis."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import redis

from postbus import Ack, Bus, DeadLetter, InvalidHandler, Message, Retry
from postbus.inbox import Inbox, RedisInbox
from support.eventually import eventually
from support.grouping import SOON, create_log, has, is_through
from support.running import running

pytest_plugins = ["support.fix_redis"]

INBOX = Inbox()


def by_payload(message: Message) -> str:
    """Return the payload as the identity that copies of a message share."""
    return message.payload.decode()


async def count(conn: Any) -> int:
    return int(await conn.fetchval("select count(*) from effect"))


@pytest.fixture(autouse=True)
async def effect(conn: Any) -> None:
    await conn.execute("create table effect (n int)")


@pytest.mark.parametrize("group", [None, "g"])
async def test_copies_have_no_effect_in_the_bus_s_transaction(bus: Bus, conn: Any, group: str | None) -> None:
    """A transactional handler's effect, record and settlement commit together; copies are settled without effect."""
    if group:
        await create_log(bus)
    attempts = []

    @bus.subscribe("t", group=group, transactional=True, retry=SOON)
    @INBOX.idempotent("books", message_id=by_payload)
    async def book(n: int, message: Message, conn: Any) -> None:
        await conn.execute("insert into effect values ($1)", n)
        attempts.append(message.attempt)
        if len(attempts) == 1:
            raise ConnectionError("undone, and tried again")

    async with running(bus):
        if group:
            await eventually_listed(conn)
        for n in (7, 7, 8, 7):
            await bus.send("t", n)

        async def both_are_there() -> None:
            assert await count(conn) == 2
            left = "select count(*) from postbus.messages" if group is None else "select max(lag) from postbus.groups"
            assert await conn.fetchval(left) == 0

        await eventually(both_are_there)
        if group:
            await is_through(conn)
    assert len(attempts) == 3
    assert await count(conn) == 2


async def eventually_listed(conn: Any) -> None:
    async def listed() -> None:
        assert await conn.fetchval("select count(*) from postbus.subscription") == 1

    await eventually(listed)


async def test_inbox_gives_a_handler_its_own_transaction(bus: Bus, conn: Any) -> None:
    """The connection comes from the given transaction, and the effects of outcomes other than Ack are undone."""
    tried: list[int] = []

    @bus.subscribe("t", retry=SOON)
    @INBOX.idempotent("books", transaction=bus.transaction, message_id=by_payload)
    async def book(n: int, conn: Any) -> Ack | Retry | DeadLetter:
        await conn.execute("insert into effect values ($1)", n)
        tried.append(n)
        if n == 3:
            return DeadLetter(reason="no 3")
        return Retry(delay=0) if tried.count(n) == 1 else Ack()

    for n in (1, 2, 3, 1, 2):
        await bus.send("t", n)

    async def all_is_settled() -> None:
        assert await conn.fetchval("select count(*) from postbus.messages where state <> 'dead'") == 0

    async with running(bus):
        await eventually(all_is_settled)
    assert sorted(row["n"] for row in await conn.fetch("select n from effect")) == [1, 2]
    assert [row.reason for row in await bus.admin.dead_letters("t")] == ["no 3"]
    kept = await conn.fetch("select message_id from postbus.inbox order by 1")
    assert [row["message_id"] for row in kept] == ["1", "2"]


async def test_message_is_known_by_its_event_id(bus: Bus, conn: Any) -> None:
    """A redelivery of the same message is recognised, unless another identity is named."""

    @bus.subscribe("t", transactional=True)
    @INBOX.idempotent("books")
    async def book(message: Message, conn: Any) -> None:
        await conn.execute("insert into effect values (1)")

    async with conn.transaction():
        known = await bus.publish(conn, "t", 1)
        await bus.publish(conn, "t", 2)
        identity = await conn.fetchval("select event_id from postbus.messages where id = $1", known)
        async with INBOX.once(conn, "books", identity):
            pass

    async def all_is_settled() -> None:
        assert await conn.fetchval("select count(*) from postbus.messages") == 0

    async with running(bus):
        await eventually(all_is_settled)
    assert await count(conn) == 1


async def test_sync_handler_can_be_idempotent(bus: Bus, conn: Any, dsn: str) -> None:
    """It runs in a thread, with a connection of a sync driver."""

    @contextmanager
    def transaction() -> Any:
        with psycopg.connect(dsn) as connection:  # commits at the end
            yield connection

    @bus.subscribe("t", retry=SOON)
    @INBOX.idempotent("books", transaction=transaction, message_id=by_payload)
    def book(n: int, message: Message, connection: Any) -> Retry | None:
        connection.execute("insert into effect values (%s)", [n])
        return Retry(delay=0) if message.attempt == 1 else None

    for n in (1, 2, 1):
        await bus.send("t", n)

    async def all_is_settled() -> None:
        assert await conn.fetchval("select count(*) from postbus.messages") == 0

    async with running(bus):
        await eventually(all_is_settled)
    assert await count(conn) == 2


async def test_redis_inbox_prevents_repeated_effects(bus: Bus, redis_client: Any) -> None:
    """A copy that comes while the first is in hand is retried when the first one's claim ends."""
    inbox = RedisInbox(redis_client, claim="300ms")
    done: list[int] = []

    @bus.subscribe("t", concurrency=5, retry=SOON)
    @inbox.idempotent("books", message_id=by_payload)
    async def book(n: int, message: Message) -> None:
        if n == 2 and message.attempt == 1:
            raise ConnectionError("given back")
        done.append(n)

    assert await inbox.once("books", "1").__aenter__()  # by a process that has died since
    for n in (1, 2, 2):
        await bus.send("t", n)
    async with running(bus):
        await has(done, 2)
        for n in (1, 3):
            await bus.send("t", n)
        await has(done, 3)
    assert sorted(done) == [1, 2, 3]


class Books:
    """An object that is a handler and has one as a method."""

    def __init__(self) -> None:
        self.booked: list[tuple[str, int]] = []

    async def __call__(self, n: int, conn: Any) -> None:
        self.booked.append(("object", n))

    async def book(self, n: int, message: Message, conn: Any) -> None:
        self.booked.append(("method", n))

    async def book_for(self, account: str, n: int, connection: Any) -> None:
        self.booked.append((account, n))


async def test_all_kinds_of_callables_can_be_idempotent(bus: Bus, conn: Any) -> None:
    """Methods, objects and partial functions are wrapped as functions are."""
    books = Books()
    for topic, handler in (("a", books), ("b", books.book), ("c", functools.partial(books.book_for, "ada"))):
        bus.subscribe(topic, transactional=True, name=topic)(INBOX.idempotent(topic, message_id=by_payload)(handler))
        for n in (1, 1):
            await bus.send(topic, n)

    async def all_is_settled() -> None:
        assert await conn.fetchval("select count(*) from postbus.messages") == 0

    async with running(bus):
        await eventually(all_is_settled)
    assert sorted(books.booked) == [("ada", 1), ("method", 1), ("object", 1)]


def test_unsupported_handlers_are_refused() -> None:
    """The error comes at decoration and says what to do instead."""

    async def without_connection(n: int) -> None: ...

    async def batches(numbers: list[int], conn: Any) -> None: ...

    async def payload_by_the_name_of_message(message: int, conn: Any) -> None: ...

    for handler, match in (
        (without_connection, "transactional=True"),
        (batches, "batches"),
        (payload_by_the_name_of_message, "rename that parameter"),
    ):
        with pytest.raises(InvalidHandler, match=match):
            INBOX.idempotent("books")(handler)


def test_redis_inbox_is_refused_for_transactional_handlers() -> None:
    """A crash between its record and the commit would lose the effect."""

    async def book(n: int, conn: Any) -> None: ...

    with pytest.raises(InvalidHandler, match="would commit after its message is marked as done"):
        RedisInbox(redis.Redis()).idempotent("books")(book)


def test_handler_with_the_inboxs_connection_is_not_transactional(bus_without_server: Bus) -> None:
    """The bus does not see the connection that the inbox gives, and refuses to give another."""

    @INBOX.idempotent("books", transaction=bus_without_server.transaction)
    async def book(n: int, conn: Any) -> None: ...

    with pytest.raises(InvalidHandler, match="takes no connection"):
        bus_without_server.subscribe("t", transactional=True)(book)


@pytest.fixture
def bus_without_server() -> Bus:
    return Bus("postgresql://nobody@localhost/nowhere")
