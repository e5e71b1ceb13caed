"""Lanes: shared among processes, taken over and moved, also when the database is away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postbus import Bus, Outgoing, PostbusError, Start
from postbus._db.statements import log
from postbus._db.store import Store
from postbus.embedded import EmbeddedPostgres
from postbus.group import stable_hash
from support.eventually import eventually
from support.fix_database import Connect
from support.fix_proxy import OnCommit, Proxy, proxy
from support.grouping import (
    are_shared,
    collect,
    create_log,
    has,
    in_order,
    is_through,
    look_often,
    publish_numbers,
    shares,
)
from support.running import running, tasks_are

__all__ = ["proxy"]  # a fixture
KEYS = 10


async def nobody_holds(conn: Any) -> None:
    assert await shares(conn) == []


async def test_lanes_are_shared_fairly(bus: Bus, conn: Any, dsn: str) -> None:
    """Each process that joins gets its share, and each that leaves gives it back."""
    await create_log(bus)
    async with AsyncExitStack() as opened:
        buses = [await opened.enter_async_context(Bus.open(dsn)) for _ in range(3)]
        for one in buses:

            @one.subscribe("t", group="g")
            async def handle(n: int) -> None: ...

        async with running(buses[0]):
            await are_shared(conn, 8)
            async with running(buses[1]):
                await are_shared(conn, 4, 4)
                async with running(buses[2]):
                    await are_shared(conn, 2, 3, 3)
                await are_shared(conn, 4, 4)
            await are_shared(conn, 8)
        assert await shares(conn) == []


async def test_surplus_process_takes_over_when_another_leaves(bus: Bus, conn: Any, dsn: str) -> None:
    """With one lane, the second process has nothing to do until then."""
    await create_log(bus, lanes=1)
    got: list[int] = []
    async with AsyncExitStack() as opened:
        buses = [await opened.enter_async_context(Bus.open(dsn)) for _ in range(2)]
        for one in buses:

            @one.subscribe("t", group="g")
            async def handle(n: int) -> None:
                got.append(n)

        async with running(buses[0]):
            await are_shared(conn, 1)
            async with running(buses[1]):
                await publish_numbers(bus, range(5))
                await is_through(conn)
            await publish_numbers(bus, range(5, 10))
            await is_through(conn)
    assert sorted(got) == list(range(10))


async def test_handover_while_messages_flow_is_clean(bus: Bus, conn: Any, dsn: str) -> None:
    """No message is lost or repeated, and the order per key holds, while lanes change hands repeatedly."""
    await create_log(bus)
    got: list[int] = []

    async def handle(n: int) -> None:
        await asyncio.sleep(0.001)
        got.append(n)

    bus.subscribe("t", group="g", concurrency=8, start=Start.BEGINNING)(handle)

    async def publish() -> None:
        for begin in range(0, 2000, 20):
            await publish_numbers(bus, range(begin, begin + 20), keys=KEYS)
            await asyncio.sleep(0.02)

    async with running(bus), Bus.open(dsn) as other:
        other.subscribe("t", group="g", concurrency=8)(handle)
        await are_shared(conn, 8)
        publishing = asyncio.create_task(publish())
        while not publishing.done():
            async with running(other):
                await are_shared(conn, 4, 4)
        await is_through(conn, passed=2000)
    assert Counter(got) == Counter(range(2000))
    assert in_order(got, KEYS)


async def test_messages_settled_ahead_come_once_when_lanes_are_released(
    bus: Bus, conn: Any, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are recorded with the lane, and the next holder skips them."""
    look_often(monkeypatch)
    await create_log(bus, lanes=2)
    lanes = dict(
        await conn.fetch("select key, postbus.lane_of(key, 2) from unnest($1::text[]) as key", [*"abcdefghij"])
    )
    slow, quick = (next(key for key in lanes if lanes[key] == n == stable_hash(key) % 2) for n in (0, 1))
    got: list[str] = []
    may_go_on = asyncio.Event()

    async def is_giving_up() -> None:
        assert any(task.get_name() == "postbus-leave-g" for task in asyncio.all_tasks())

    async with Bus.open(dsn) as second:
        for one in (bus, second):

            @one.subscribe("t", group="g", concurrency=2, start=Start.BEGINNING)
            async def handle(text: str) -> None:
                if text != "quick":
                    await may_go_on.wait()
                got.append(text)

        async with running(bus):
            await are_shared(conn, 2)
            await bus.send_many("t", [Outgoing(payload=f"slow {n}", key=slow) for n in range(6)])
            await bus.send("t", "quick", key=quick)
            await has(got, 1)
            async with running(second):
                await eventually(is_giving_up)
                may_go_on.set()
                await are_shared(conn, 1, 1)
                await is_through(conn)
    assert Counter(got) == Counter([*(f"slow {n}" for n in range(6)), "quick"])


async def test_seek_moves_a_running_group(bus: Bus, conn: Any) -> None:
    """The group continues at its new position, back or forward, without a restart."""
    await create_log(bus)
    got: list[int] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING)
    async def handle(n: int) -> None:
        got.append(n)

    async with running(bus):
        await publish_numbers(bus, range(10))
        await has(got, 10)
        assert await conn.fetchval("select postbus.seek('t', 'g', 'FROM_BEGINNING')") == 10
        await has(got, 20)
        await is_through(conn)
        await conn.execute("select postbus.seek('t', 'g', 'FROM_NOW')")
        await publish_numbers(bus, range(10, 15))
        await has(got, 25)
        await is_through(conn)
    assert set(got) == set(range(15))
    assert all(count == 2 for n, count in Counter(got).items() if n < 10)


async def test_lost_lane_of_a_lane_set_comes_back(bus: Bus, conn: Any) -> None:
    """When one lane of the set is taken away, none of the others is stuck."""
    await create_log(bus)
    got: list[int] = []

    @bus.subscribe("t", group="g")
    async def handle(n: int) -> None:
        got.append(n)

    async with running(bus):
        await are_shared(conn, 8)
        await conn.execute("update postbus.lane set token = gen_random_uuid(), holder = null where lane = 3")
        await publish_numbers(bus, range(50), keys=50)
        await is_through(conn, lanes_held=8)
    assert set(got) == set(range(50))


async def test_step_stored_without_the_holders_knowledge_is_no_dead_end(bus: Bus, conn: Any) -> None:
    """The process gives its lanes up, and gets them again."""
    await create_log(bus, lanes=2)
    got: list[int] = []

    @bus.subscribe("t", group="g")
    async def handle(n: int) -> None:
        got.append(n)

    async with running(bus):
        await are_shared(conn, 2)
        await conn.execute(
            "insert into postbus.cursor (subscription_id, lane, number, cursor, passed) "
            "select distinct on (lane) subscription_id, lane, number + 1, cursor, passed from postbus.cursor "
            "order by lane, number desc"
        )
        await publish_numbers(bus, range(20), keys=20)
        await is_through(conn, passed=20, lanes_held=2)
    assert set(got) == set(range(20))


async def send_surely(bus: Bus, n: int) -> None:
    while True:
        try:
            await bus.send("t", n, key=f"k{n % KEYS}", dedup_key=str(n))
            return
        except (PostbusError, asyncpg.PostgresError):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("transactional", [False, True])
async def test_consumer_survives_repeatedly_broken_connections(
    bus: Bus, proxy: Proxy, conn: Any, transactional: bool
) -> None:
    """No message is lost, effects happen once, and no lane is stuck."""
    await create_log(bus)
    await conn.execute("create table effect (n int)")
    got: list[int] = []
    async with Bus.open(proxy.dsn) as consumer:
        if transactional:

            @consumer.subscribe("t", group="g", start=Start.BEGINNING, transactional=True, concurrency=4)
            async def handle_in_transaction(n: int, conn: Any) -> None:
                await conn.execute("insert into effect values ($1)", n)
                got.append(n)

        else:

            @consumer.subscribe("t", group="g", start=Start.BEGINNING, concurrency=4)
            async def handle(n: int) -> None:
                got.append(n)

        async with running(consumer):
            for n in range(200):
                await send_surely(bus, n)
                if n % 40 == 39:
                    proxy.break_connections()
                await asyncio.sleep(0.005)
            await is_through(conn, dead=0, lanes_held=8, within=20)
    assert set(got) == set(range(200))
    if transactional:
        effects = [row["n"] for row in await conn.fetch("select n from effect")]
        assert Counter(effects) == Counter(range(200))


@pytest.mark.parametrize("on_commit", [OnCommit.CUT_BEFORE, OnCommit.CUT_AFTER])
async def test_commit_with_unknown_outcome_is_looked_up(bus: Bus, proxy: Proxy, conn: Any, on_commit: OnCommit) -> None:
    """The connection breaks during COMMIT, and the effect happens once whether the server committed or not."""
    await create_log(bus, lanes=1)
    await conn.execute("create table effect (n int)")
    calls: list[int] = []
    async with Bus.open(proxy.dsn) as consumer:

        @consumer.subscribe("t", group="g", start=Start.BEGINNING, transactional=True)
        async def handle(n: int, conn: Any) -> None:
            calls.append(n)
            await conn.execute("insert into effect values ($1)", n)

        async with running(consumer):
            await are_shared(conn, 1)
            proxy.commit_seen.clear()
            proxy.on_commit = on_commit
            await publish_numbers(bus, range(5))
            await proxy.commit_seen.wait()
            await eventually(nobody_holds, conn)
            proxy.on_commit = OnCommit.PASS
            await is_through(conn, passed=5, dead=0)
    assert [row["n"] for row in await conn.fetch("select n from effect order by n")] == list(range(5))
    assert len(calls) == (5 if on_commit is OnCommit.CUT_AFTER else 6)


@pytest.mark.parametrize("on_commit", [OnCommit.CUT_BEFORE, OnCommit.CUT_AFTER])
async def test_worker_starts_although_its_commits_break(bus: Bus, proxy: Proxy, conn: Any, on_commit: OnCommit) -> None:
    """A broken COMMIT of a repeatable step, such as reading the schema or subscribing, is retried."""
    await create_log(bus)
    got: list[int] = []
    async with Bus.open(proxy.dsn) as consumer:

        @consumer.subscribe("t", group="g")
        async def handle(n: int) -> None:
            got.append(n)

        async def several_commits_broke() -> None:
            assert len(proxy.cuts) >= 3

        proxy.on_commit = on_commit
        async with running(consumer):
            await eventually(several_commits_broke)
            proxy.on_commit = OnCommit.PASS
            await are_shared(conn, 8)
            await publish_numbers(bus, range(5))
            await is_through(conn, passed=5, dead=0)
    assert sorted(got) == list(range(5))


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("victim", ["server", "backend"])
async def test_group_survives_a_server_crash(own_folder: Path, victim: str, transactional: bool) -> None:
    """The server assigns transaction ids again that groups have read up to; no message is lost."""
    got: list[int] = []
    home = own_folder / "pg"
    with EmbeddedPostgres.start(home) as server:
        async with Bus(server.dsn(), migrate=True) as bus:
            await create_log(bus)

            async def handle(n: int) -> None:
                got.append(n)

            async def in_transaction(n: int, conn: Any) -> None:
                got.append(n)

            handler = in_transaction if transactional else handle
            bus.subscribe("t", group="g", start=Start.BEGINNING, transactional=transactional)(handler)
            async with running(bus), AsyncExitStack() as again:
                for n in range(20):
                    await send_surely(bus, n)
                await has(got, 20)
                if victim == "server":
                    os.kill(int((home / "pgdata" / "postmaster.pid").read_text().splitlines()[0]), signal.SIGKILL)
                    again.enter_context(EmbeddedPostgres.start(home))
                else:
                    doomed: Any = await asyncpg.connect(server.dsn())
                    os.kill(doomed.get_server_pid(), signal.SIGKILL)
                    doomed.terminate()
                for n in range(20, 60):
                    await send_surely(bus, n)

                async def all_handled() -> None:
                    assert set(got) == set(range(60))

                await eventually(all_handled, within=20)
                async with bus.transaction() as conn:
                    await is_through(conn, lanes_held=8)
                bus.stop()
    assert in_order(got, KEYS)


async def tokens(conn: Any) -> set[Any]:
    return {row["token"] for row in await conn.fetch("select token from postbus.lane where holder is not null")}


@pytest.mark.parametrize("sign", ["read", "step"])
async def test_reads_from_before_a_server_restart_are_dropped(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    """If a read or a step finds that the server restarted, lanes continue at their stored cursors."""
    await create_log(bus)
    got: list[int] = []

    @bus.subscribe("t", group="g")
    async def handle(n: int) -> None:
        got.append(n)

    async with running(bus):
        await are_shared(conn, 8)
        await publish_numbers(bus, range(10))
        await is_through(conn)
        before = await tokens(conn)
        assert len(before) == 8
        name, column, changed = (
            ("_READ_LOG", "end as server", "- interval '1 s' end as server")
            if sign == "read"
            else ("_ADVANCE", "all ($9)", "all (select one + '1 s' from unnest($9::timestamptz[]) as one)")
        )
        with monkeypatch.context() as patch:
            patch.setattr(log, name, getattr(log, name).replace(column, changed, 1))
            await bus.send("t", 10)

            async def is_dropped() -> None:
                assert not await tokens(conn) & before

            await eventually(is_dropped)

        async def are_new() -> None:
            now = await tokens(conn)
            assert len(now) == 8
            assert not now & before

        await eventually(are_new)
        await bus.send("t", 11)
        await is_through(conn)
    assert set(got) >= {*range(10), 11}
    assert all(count == 1 for n, count in Counter(got).items() if n < 10)


async def test_ended_connections_are_not_taken_for_a_crash(bus: Bus, conn: Any) -> None:
    """If an operator ends all connections of a worker, it keeps its lanes and no message is repeated."""
    await create_log(bus)
    got: list[int] = []

    @bus.subscribe("t", group="g")
    async def handle(n: int) -> None:
        got.append(n)

    async with running(bus):
        await are_shared(conn, 8)
        await publish_numbers(bus, range(10))
        await is_through(conn)
        before = await tokens(conn)
        ended = await conn.fetchval(
            "select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
        assert ended > 1
        for n in range(10, 20):
            await send_surely(bus, n)
        await is_through(conn)
        assert await tokens(conn) == before
    assert set(got) == set(range(20))
    assert all(count == 1 for n, count in Counter(got).items() if n < 10)


async def test_process_without_a_free_lane_waits(
    bus: Bus, conn: Any, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process beside a living holder takes nothing from it, however often it asks."""
    look_often(monkeypatch)
    await create_log(bus, lanes=1, lease="1s")
    collect(bus)
    looks: Counter[str] = Counter()
    original = Store.lease_lanes

    async def counted(self: Store, worker: str, *args: Any) -> Any:
        rows = await original(self, worker, *args)
        looks[worker] += 1
        return rows

    monkeypatch.setattr(Store, "lease_lanes", counted)
    async with running(bus), Bus.open(dsn) as other:
        await are_shared(conn, 1)
        before = await tokens(conn)
        collect(other)
        async with running(other):

            async def both_have_looked_beyond_the_lease() -> None:
                assert len(looks) == 2
                assert min(looks.values()) >= 20
                assert await conn.fetchval("select clock_timestamp() - held_since > interval '2 s' from postbus.lane")

            await eventually(both_have_looked_beyond_the_lease)
            assert await tokens(conn) == before


async def is_cut_off(proxy: Proxy, after: int) -> None:
    """Break all connections once there are so many, and wait for a new attempt."""
    while proxy.counts["connections"] < after:
        await asyncio.sleep(0)
    proxy.cut()
    before = proxy.counts["connections"]

    async def it_has_tried_again() -> None:
        assert proxy.counts["connections"] > before

    await eventually(it_has_tried_again)


@pytest.mark.parametrize("after", range(2, 6))
async def test_starting_worker_waits_for_the_server(bus: Bus, proxy: Proxy, after: int) -> None:
    """Its connections break while it joins its group, and it continues when the server is back."""
    await create_log(bus)
    await bus.send("t", 1)
    async with Bus.open(proxy.dsn) as consumer:
        got = collect(consumer, start=Start.BEGINNING)
        async with running(consumer):
            await is_cut_off(proxy, after)
            proxy.heal()
            await has(got, 1)


@pytest.mark.parametrize("after", range(2, 6))
async def test_worker_waiting_for_the_server_can_be_stopped(bus: Bus, proxy: Proxy, after: int) -> None:
    """A stop by a signal is no failure, because the worker had not begun."""
    await create_log(bus)
    async with Bus.open(proxy.dsn) as consumer:
        collect(consumer, start=Start.BEGINNING)
        await consumer.connect()
        run = asyncio.create_task(consumer.run())
        await is_cut_off(proxy, after)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(run, 10)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        proxy.heal()


async def test_message_deferred_as_its_lane_is_lost_holds_up_nobody(bus: Bus, conn: Any, connect: Connect) -> None:
    """The new holder of the lane has already settled the message when the lane comes back."""
    await create_log(bus, lanes=1)
    got: list[int] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING)
    async def handle(n: int) -> None:
        if n == 1:
            raise ValueError("no")
        got.append(n)

    async def is_putting_off() -> None:
        assert await conn.fetchval(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'postbus.defer'"
            " and datname = current_database()"
        )

    async def is_let_go() -> None:
        assert await conn.fetchval("select count(holder) from postbus.lane") == 0
        assert await conn.fetchval("select count(*) from postbus.deferred") == 1

    async with running(bus):
        await are_shared(conn, 1)
        locker = await connect()
        lock = locker.transaction()
        await lock.start()
        await locker.execute("select from postbus.lane for update")
        await bus.send("t", 1, key="k")
        await eventually(is_putting_off)
        await conn.execute("update postbus.subscription set state = 'PAUSED'")  # so that nobody takes the lane yet
        await conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and query ilike 'listen%'"
        )
        await tasks_are("postbus-read-g", 0)
        await lock.rollback()
        await eventually(is_let_go)
        await conn.execute(
            "with done as (delete from postbus.deferred returning *)"
            " insert into postbus.settled_ahead"
            " select subscription_id, lane, sequence, int4multirange(int4range(0, 1)) from done"
        )
        await conn.execute("update postbus.subscription set state = 'ACTIVE'")
        await bus.send("t", 2, key="k")
        await has(got, 1)
