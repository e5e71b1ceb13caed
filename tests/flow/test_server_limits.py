"""Session limits and defaults of a server, database or role do not disturb a worker."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from typing import Any

import asyncpg
import pytest

from postbus import Bus, Message
from postbus._db.connect import connect
from support.eventually import eventually
from support.grouping import create_log, publish_numbers
from support.running import running

TIMEOUTS = {
    "idle_session_timeout": "600ms",
    "idle_in_transaction_session_timeout": "300ms",
    "transaction_timeout": "500ms",
    "statement_timeout": "400ms",
    "lock_timeout": "50ms",
}


async def set_defaults(conn: Any, **settings: str) -> None:
    """Give later sessions other settings, where the server knows them."""
    name = await conn.fetchval("select current_database()")
    for setting, value in settings.items():
        if await conn.fetchval("select current_setting($1, true) is not null", setting):
            await conn.execute(f"alter database {name} set {setting} = '{value}'")


async def test_our_sessions_have_no_timeouts(dsn: str, conn: Any) -> None:
    """Our connections have no timeouts, whatever limits the database sets."""
    await set_defaults(conn, **TIMEOUTS, default_transaction_isolation="serializable")
    ours = await connect(dsn)
    try:
        for setting in TIMEOUTS:
            assert await ours.fetchval("select current_setting($1, true)", setting) in ("0", None), setting
        assert await ours.fetchval("show transaction_isolation") == "read committed"
    finally:
        await ours.close()


async def test_users_statements_keep_their_timeouts(dsn: str, conn: Any) -> None:
    """A transaction may be open for long, but the user's statements keep the database's limit."""
    await set_defaults(conn, **TIMEOUTS)
    async with Bus.open(dsn) as bus:
        for _ in range(2):  # the second time on a connection that was reset
            async with bus.transaction() as tx:
                assert await tx.fetchval("show statement_timeout") == "400ms"
                assert await tx.fetchval("show idle_in_transaction_session_timeout") == "0"


async def test_group_under_timeouts_receives_each_message_once(dsn: str, conn: Any) -> None:
    """Idle connections of a worker stay open, so that no message in hand comes again."""
    await set_defaults(conn, **TIMEOUTS)
    got: Counter[int] = Counter()
    async with Bus.open(dsn) as bus:
        await create_log(bus, lease="30s")

        @bus.subscribe("t", group="g", concurrency=4, start="FROM_BEGINNING")
        async def handle(n: int) -> None:
            got[n] += 1
            await asyncio.sleep(0.05)

        async with running(bus):
            listener = await eventually(lambda: _listener(conn))
            await publish_numbers(bus, range(120))

            async def all_came() -> None:
                assert len(got) == 120

            await eventually(all_came, within=20)
            assert await _listener(conn) == listener
    assert set(got.values()) == {1}


async def _listener(conn: Any) -> int:
    pid: int | None = await conn.fetchval(
        "select pid from pg_stat_activity where datname = current_database() and query ilike 'listen %'"
    )
    assert pid is not None
    return pid


async def test_terminated_connections_repeat_no_message(dsn: str, conn: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An operator ends all sessions of a worker repeatedly, and no message comes twice."""
    if conn.get_server_version().major < 15:
        pytest.skip("before PostgreSQL 15 an idle connection that ends may mean a crash")
    got: Counter[int] = Counter()
    async with Bus.open(dsn) as bus:
        await create_log(bus, lease="30s")

        @bus.subscribe("t", group="g", concurrency=4, start="FROM_BEGINNING")
        async def handle(n: int) -> None:
            got[n] += 1
            await asyncio.sleep(0.02)

        async with running(bus):
            await publish_numbers(bus, range(200))
            while len(got) < 200:
                ended = await conn.fetchval(
                    "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                    "where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
                )
                assert ended is not None
                await asyncio.sleep(0.1)
    assert set(got.values()) == {1}
    assert "may have crashed" not in caplog.text


async def test_transactional_handlers_may_wait_in_their_transactions(dsn: str, conn: Any) -> None:
    """A handler that waits for something else keeps its transaction, for queues and groups."""
    await set_defaults(conn, **TIMEOUTS)
    got: Counter[str] = Counter()
    async with Bus.open(dsn) as bus:
        await create_log(bus, "log")

        async def handle(n: int, message: Message, conn: Any) -> None:
            got[message.topic] += 1
            await conn.execute("select 1")
            await asyncio.sleep(0.8)

        bus.subscribe("queue", transactional=True)(handle)
        bus.subscribe("log", group="g", transactional=True, start="FROM_BEGINNING")(handle)
        async with running(bus):
            await bus.send("queue", 1)
            await bus.send("log", 1)

            async def are_settled() -> None:
                assert await conn.fetchval("select count(*) from postbus.lease") == 0
                assert await conn.fetchval("select sum(passed) from postbus.current_cursor") == 1
                assert set(got) == {"queue", "log"}

            await eventually(are_settled, within=10)
    assert got == {"queue": 1, "log": 1}


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_worker_runs_under_another_default_isolation(dsn: str, conn: Any, isolation: str) -> None:
    """Queues with and without order, transactional handlers and groups, retries and sweeps all work."""
    await set_defaults(conn, default_transaction_isolation=isolation)
    got: dict[str, Counter[int]] = {name: Counter() for name in ("queue", "keys", "tx", "log", "txlog")}
    async with Bus.open(dsn) as bus:
        await bus.admin.create_topic("keys", ordered=True)
        await create_log(bus, "log")

        def note(name: str) -> Any:
            async def handle(n: int, message: Message) -> None:
                if n == 3 and message.attempt == 1:
                    raise ValueError("once more")
                got[name][n] += 1

            async def transactional(n: int, message: Message, conn: Any) -> None:
                await handle(n, message)

            return transactional if name.startswith("tx") else handle

        bus.subscribe("queue", concurrency=4)(note("queue"))
        bus.subscribe("keys", concurrency=4)(note("keys"))
        bus.subscribe("tx", transactional=True, concurrency=4)(note("tx"))
        bus.subscribe("log", group="one", start="FROM_BEGINNING")(note("log"))
        bus.subscribe("log", group="two", start="FROM_BEGINNING", transactional=True)(note("txlog"))
        async with running(bus) as run:
            for n in range(10):
                sends = (bus.send(topic, n, key=f"k{n % 2}") for topic in ("queue", "keys", "tx", "log"))
                await asyncio.gather(*sends)

            async def all_came() -> None:
                assert not run.done() or not run.exception()
                assert all(sorted(one) == list(range(10)) for one in got.values()), got

            await eventually(all_came, within=20)
    assert all(set(one.values()) == {1} for one in got.values()), got


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_worker_runs_with_a_role_of_another_default_isolation(dsn: str, conn: Any, isolation: str) -> None:
    """A role's setting overrides that of its database; pops and sweeps work too."""
    role = f"isolated_{secrets.token_hex(4)}"
    await conn.execute(f"create role {role} login superuser")
    await conn.execute(f"alter role {role} set default_transaction_isolation = '{isolation}'")
    got: list[int] = []
    try:
        async with Bus.open(f"{dsn}&user={role}" if "?" in dsn else f"{dsn}?user={role}") as bus:
            assert await bus.admin.topics() == []
            await create_log(bus, "log")
            bus.subscribe("log", group="g", start="FROM_BEGINNING")(got.append)
            async with running(bus):
                await bus.send_many("log", [1, 2])

                async def came() -> None:
                    assert got == [1, 2]

                await eventually(came, within=20)
            async with bus.pop("log", group="p", batch=9) as popped:
                assert popped.payloads == [1, 2]
            await bus.admin.sweep()
    finally:
        await conn.execute(f"drop role {role}")


async def test_migration_works_under_a_serializable_default(empty_dsn: str) -> None:
    """Several processes that migrate at once wait for the first."""
    root: Any = await asyncpg.connect(empty_dsn)
    await set_defaults(root, default_transaction_isolation="serializable", statement_timeout="200ms")
    await root.close()
    buses = [Bus(empty_dsn, migrate=True) for _ in range(3)]
    try:
        await asyncio.gather(*(bus.connect() for bus in buses))
    finally:
        await asyncio.gather(*(bus.close() for bus in buses))
