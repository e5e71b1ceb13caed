"""Publishing and consuming through pgbouncer, whose clients share few connections transaction by transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio

from api.drivers import PROGRAMS, Asyncpg, AsyncSqlAlchemy, InThread, Program, SqlAlchemy
from cli.helpers import POSTBUS
from faults.servers import NotInstalled
from faults.servers.pgbouncer import PgBouncer
from faults.servers.postgres import Server
from faults.servers.run import USER, Servers
from postbus import Bus, InvalidInput, Message, TransactionEnded
from postbus._db.connect import connect, is_pooled
from postbus._db.statements.log import CursorStep
from postbus._db.store import Store
from postbus.start import Start
from support.eventually import eventually
from support.running import running

_SHARED = 3  # connections of the server


@pytest.fixture(scope="module")
def behind(servers: Servers) -> tuple[Server, PgBouncer]:
    """Start a server and a pgbouncer before it."""

    async def make() -> tuple[Server, PgBouncer]:
        server = await servers.new()
        await server.start()
        bouncer = servers.bouncer_of(server, pool_size=_SHARED)
        await bouncer.start()
        return server, bouncer

    try:
        return asyncio.run(make())
    except NotInstalled as absent:
        pytest.skip(str(absent))


@pytest.fixture
def server(behind: tuple[Server, PgBouncer]) -> Server:
    return behind[0]


@pytest.fixture
def dsn(behind: tuple[Server, PgBouncer]) -> str:
    """Return the address of pgbouncer."""
    return behind[1].dsn(user=USER)


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4()}"


@asynccontextmanager
async def with_asyncpg(dsn: str) -> AsyncIterator[Program]:
    conn: Any = await asyncpg.connect(dsn, statement_cache_size=0)
    yield Asyncpg(conn, asyncpg.PostgresError)
    await conn.close()


@asynccontextmanager
async def with_psycopg(dsn: str) -> AsyncIterator[Program]:
    with ThreadPoolExecutor(1) as thread, psycopg.connect(dsn, prepare_threshold=None) as conn:
        yield InThread(conn, psycopg.Error, thread)


@asynccontextmanager
async def with_async_psycopg(dsn: str) -> AsyncIterator[Program]:
    async with await psycopg.AsyncConnection.connect(dsn, prepare_threshold=None) as conn:
        yield Program(conn, psycopg.Error)


@asynccontextmanager
async def with_sqlalchemy(dsn: str) -> AsyncIterator[Program]:
    url = dsn.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url, connect_args={"prepare_threshold": None})
    with ThreadPoolExecutor(1) as thread, engine.connect() as conn:
        yield SqlAlchemy(conn, sqlalchemy.exc.SQLAlchemyError, thread)
    engine.dispose()


@asynccontextmanager
async def with_async_sqlalchemy(dsn: str) -> AsyncIterator[Program]:
    url = dsn.replace("postgresql://", "postgresql+asyncpg://").replace(
        "sslmode=disable", "prepared_statement_cache_size=0"
    )
    options = {"statement_cache_size": 0, "prepared_statement_name_func": lambda: f"__{uuid4()}__"}
    engine = sqlalchemy.ext.asyncio.create_async_engine(url, connect_args=options)
    async with engine.connect() as conn:
        yield AsyncSqlAlchemy(conn, sqlalchemy.exc.SQLAlchemyError)
    await engine.dispose()


DRIVERS: dict[str, Callable[[str], Any]] = {
    "asyncpg": with_asyncpg,
    "psycopg": with_psycopg,
    "psycopg async": with_async_psycopg,
    "SQLAlchemy psycopg": with_sqlalchemy,
    "SQLAlchemy asyncpg": with_async_sqlalchemy,
    "Django": PROGRAMS["Django connection"],
}


@pytest.mark.parametrize("driver", DRIVERS)
async def test_each_driver_can_publish_through_a_pooler(server: Server, dsn: str, topic: str, driver: str) -> None:
    """Transactions of several connections publish in turns, and rolled back ones do not."""
    count = 1 if driver == "Django" else _SHARED  # which has one connection for each thread
    async with AsyncExitStack() as stack:
        bus = Bus(dsn)
        stack.push_async_callback(bus.close)
        programs = [await stack.enter_async_context(DRIVERS[driver](dsn)) for _ in range(count)]
        for number in range(21):
            program = programs[number % count]
            await program.begin()
            await program.publish(bus, topic, number)
            await (program.rollback if number % 7 == 6 else program.commit)()
    assert await waiting(server, topic) == 18


async def waiting(server: Server, topic: str) -> Any:
    return await server.ask("select waiting from postbus.topics where name = $1", topic, database="postbus")


async def test_pooler_is_detected(server: Server, dsn: str) -> None:
    """A direct connection is not taken for a pooled one."""
    for address, pooled in ((dsn, True), (server.dsn(), False), (server.socket_dsn(), False)):
        conn = await connect(address)
        assert is_pooled(conn) == pooled
        await conn.close()


async def test_consuming_works_through_a_pooler(dsn: str, topic: str) -> None:
    """Queues, transactional handlers and groups work, with more connections than the server has for them."""
    got: dict[str, list[int]] = {"queue": [], "transactional": [], "group": [], "transactional group": []}
    log, other = f"{topic}.log", f"{topic}.other"
    async with Bus.open(dsn) as bus:
        await bus.admin.create_topic(log, semantics="PUB_SUB")

        @bus.subscribe(topic, concurrency=4)
        async def queue(payload: int) -> None:
            got["queue"].append(payload)

        @bus.subscribe(other, concurrency=4, transactional=True)
        async def transactional(payload: int, message: Message, conn: Any) -> None:
            await conn.execute("select $1::text", message.topic)
            got["transactional"].append(payload)

        @bus.subscribe(log, group="one", start="FROM_BEGINNING")
        async def group(payload: int) -> None:
            got["group"].append(payload)

        @bus.subscribe(log, group="two", start="FROM_BEGINNING", transactional=True)
        async def transactional_group(payload: int, message: Message, conn: Any) -> None:
            await conn.execute("select $1::text", message.topic)
            got["transactional group"].append(payload)

        async with running(bus):
            for number in range(30):
                sent = (bus.send(one, number) for one in (topic, other, log))
                await asyncio.gather(*sent)

            async def all_are_there() -> None:
                assert all(sorted(numbers) == list(range(30)) for numbers in got.values()), got

            await eventually(all_are_there, within=30)


async def test_block_that_begins_another_transaction_is_an_error(dsn: str, topic: str) -> None:
    """The new transaction may be on another connection to the server."""
    async with Bus.open(dsn) as bus:
        async with bus.transaction() as tx:
            await bus.publish(tx, topic, "x")
        with pytest.raises(TransactionEnded):
            async with bus.transaction() as tx:
                await bus.publish(tx, topic, "y")
                await tx.execute("rollback")
                await tx.execute("begin")
        assert (await bus.admin.topic(topic)).waiting == 1


async def test_nobody_listens_through_a_pooler(server: Server, dsn: str, topic: str) -> None:
    """A worker leaves no LISTEN on connections that others get next."""
    got = asyncio.Event()
    async with Bus.open(dsn) as bus:

        @bus.subscribe(topic, poll=0.1)
        async def note(payload: int) -> None:
            got.set()

        async with running(bus):
            conn: Any = await asyncpg.connect(server.dsn())
            await conn.execute("select postbus.publish($1, '1'::jsonb)", topic)
            await conn.close()
            await asyncio.wait_for(got.wait(), 10)
    for _ in range(2 * _SHARED):
        conn = await asyncpg.connect(dsn, statement_cache_size=0)
        assert await conn.fetchval("select count(*) from pg_listening_channels()") == 0
        await conn.close()


async def test_pops_wait_by_polling_through_a_pooler(server: Server, dsn: str, topic: str) -> None:
    """A waiting pop does not listen either, and settles in a transaction."""

    async def pop(bus: Bus) -> Any:
        return await bus.pop(topic, wait=20, lease=60)

    async with Bus.open(dsn) as bus:
        waiting = asyncio.create_task(pop(bus))
        await asyncio.sleep(0)
        conn: Any = await asyncpg.connect(server.dsn())
        await conn.execute("select postbus.publish($1, '1'::jsonb)", topic)
        popped = await asyncio.wait_for(waiting, 20)
        async with bus.transaction() as tx:
            await popped.ack(tx)
            await bus.publish(tx, f"{topic}.out", 2 * popped[0].payload)
        assert await conn.fetchval("select count(*) from pg_stat_activity where query ilike 'listen %'") == 0
        await conn.close()
        assert (await bus.pop(f"{topic}.out", auto_ack=True)).payloads == [2]
        assert not await bus.pop(topic)


async def _session_defaults(server: Server, **settings: str) -> None:
    """Make the server's sessions begin with these settings, those of the pooler too; without any, reset them."""
    conn: Any = await asyncpg.connect(server.dsn("postbus"))
    await conn.execute("alter database postbus reset all")
    for name, value in settings.items():
        await conn.execute(f"alter database postbus set {name} = '{value}'")
    await conn.fetch(
        "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = 'postbus'"
    )
    await conn.close()


async def _answers(dsn: str) -> None:
    """Check that the pooler answers: it may still refuse clients because of an ended session."""
    for _ in range(2 * _SHARED):
        conn: Any = await asyncpg.connect(dsn, statement_cache_size=0)
        try:
            assert await conn.fetchval("select 1") == 1
        except asyncpg.PostgresConnectionError as error:
            raise AssertionError from error
        finally:
            conn.terminate()


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_pooled_worker_runs_under_another_default_isolation(
    server: Server, dsn: str, topic: str, isolation: str
) -> None:
    """Its transactions set READ COMMITTED and no limits themselves, and the pooler's sessions stay as they were."""
    limits = {"idle_in_transaction_session_timeout": "300ms", "statement_timeout": "5s"}
    await _session_defaults(server, default_transaction_isolation=isolation, **limits)
    await eventually(lambda: _answers(dsn))
    try:
        got: dict[str, list[int]] = {"queue": [], "transactional": [], "group": []}
        async with Bus.open(dsn) as bus:
            await bus.admin.create_topic(f"{topic}.log", semantics="PUB_SUB")

            @bus.subscribe(topic, concurrency=4)
            async def queue(payload: int) -> None:
                got["queue"].append(payload)

            @bus.subscribe(f"{topic}.other", concurrency=2, transactional=True)
            async def transactional(payload: int, message: Message, conn: Any) -> None:
                await conn.execute("select 1")
                await asyncio.sleep(0.5 if payload == 0 else 0)
                assert await conn.fetchval("show transaction_isolation") == "read committed"
                got["transactional"].append(payload)

            @bus.subscribe(f"{topic}.log", group="one", start="FROM_BEGINNING")
            async def group(payload: int) -> None:
                got["group"].append(payload)

            async with running(bus):
                for number in range(10):
                    for one in (topic, f"{topic}.other", f"{topic}.log"):
                        await bus.send(one, number)

                async def all_are_there() -> None:
                    assert all(sorted(numbers) == list(range(10)) for numbers in got.values()), got

                await eventually(all_are_there, within=30)
        for _ in range(2 * _SHARED):
            conn: Any = await asyncpg.connect(dsn, statement_cache_size=0)
            assert await conn.fetchval("show default_transaction_isolation") == isolation
            assert await conn.fetchval("show statement_timeout") == "5s"
            await conn.close()
    finally:
        await _session_defaults(server)
        await eventually(lambda: _answers(dsn))


async def test_crash_behind_a_pooler_is_detected(server: Server, dsn: str, topic: str) -> None:
    """A position read before a backend crashed is not stored afterwards, although no connection of ours broke."""
    async with Bus.open(dsn) as bus:
        await bus.admin.create_topic(topic, semantics="PUB_SUB")
        store: Store = await bus.connect()
        joined = await store.subscribe(topic, "g", Start.NOW, "block")
        await store.heartbeat("worker", "host", 1, [topic])
        lane = (await store.lease_lanes("worker", [joined.id], []))[0]
        place = CursorStep(
            joined.id, lane["lane"], lane["token"], lane["number"], lane["cursor"], None, None, 0, lane["server"]
        )
        assert await store.advance([place]) == set()
        assert await store.advance([place._replace(number=place.number + 1)]) == set()

        direct: Any = await asyncpg.connect(server.dsn())
        await server.kill_backend(direct.get_server_pid())
        await server.until_up()

        assert await store.advance([place._replace(number=place.number + 2)]) == {0}


async def test_import_through_a_pooler_is_refused(dsn: str) -> None:
    """An import needs a session lock, and the error says what to do."""
    async with Bus.open(dsn) as bus:
        with pytest.raises(InvalidInput, match="pooler") as refused:
            await bus.admin.import_outbox()
        assert "the server itself" in str(refused.value)


@pytest.mark.parametrize("command", ["doctor", "topics list", "migrate"])
async def test_commands_work_through_a_pooler(dsn: str, behind: tuple[Server, PgBouncer], command: str) -> None:
    """They work repeatedly, on whichever connection they get."""
    address = behind[1].dsn() if command == "migrate" else dsn
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(
            *POSTBUS,
            *command.split(),
            "--dsn",
            address,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out = (await process.communicate())[0].decode()
        assert process.returncode == 0, out
        assert command != "doctor" or "pgbouncer" in out
