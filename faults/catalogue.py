"""The faults of processes, server and network, each by its name."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import suppress
from typing import Any

import asyncpg

from faults import stage
from faults.cell import Fault, Strike
from faults.failpoint import AFTER_PUTTING_OFF, FAILPOINTS
from faults.servers import hogs
from faults.servers.proxy import Odds, OnCommit, Proxy
from faults.servers.run import USER
from faults.world import NOT_THERE, Unsettled, World
from postbus._db.migrator import migrate

_BEYOND_THE_LEASE = 3.5  # seconds; the lease is 2


async def nothing(world: World) -> None:
    """Traffic, retries and late commits, and no fault at all: nothing may come twice."""
    await asyncio.sleep(3)


# Workers


def killed_at(failpoint: str) -> Strike:
    async def strike(world: World) -> None:
        for _ in range(3):
            most = 4 if failpoint == AFTER_PUTTING_OFF else 40
            victim = world.start_consumer(failpoint=failpoint, count=world.random.randrange(1, most))
            victim.is_doomed = True
            await victim.ended(15)

    return strike


async def killed_anywhere(world: World) -> None:
    """Each worker is killed at a random moment, and another one takes its place."""
    for victim in list(world.consumers):
        await asyncio.sleep(world.random.uniform(0.2, 1.0))
        async with world.hurting("kill -9"):
            victim.kill()
        world.start_consumer(victim.database)
        await world.flows(20)


async def frozen(world: World) -> None:
    """A worker stands still for longer than its lease, and then goes on as if nothing had been."""
    for victim in world.consumers[:2]:
        async with world.hurting("SIGSTOP", aftermath=2):
            victim.signal(signal.SIGSTOP)
            await asyncio.sleep(_BEYOND_THE_LEASE)
            victim.signal(signal.SIGCONT)
        await asyncio.sleep(0.5)
    if any(mode.options.get("storage") == "own" for mode in world.modes):
        await world.drops()


async def rolling_restart(world: World) -> None:
    """Each worker is asked to end, after another one has begun: nothing may come twice."""
    for leaving in [one for one in world.consumers if one.is_alive and not one.is_doomed]:
        world.start_consumer()
        await asyncio.sleep(1.0)
        leaving.signal(signal.SIGTERM)
        leaving.is_doomed = True
        if await leaving.ended(15) != 0:
            leaving.is_doomed = False
        await world.flows(20)


async def stopped_again_and_again(world: World) -> None:
    """All workers are asked to end at once, while handlers are uneven. Nothing may come twice."""
    for _ in range(4):
        await asyncio.sleep(world.random.uniform(0.5, 1.5))
        leaving = [one for one in world.consumers if one.is_alive and not one.is_doomed]
        async with world.hurting("SIGTERM", excuses=False):
            for one in leaving:
                one.signal(signal.SIGTERM)
            for one in leaving:
                one.is_doomed = await one.ended(15) == 0
        for one in leaving:
            world.start_consumer(one.database, **world.consumer_options)
        await world.flows(20)


async def killed_by_others(world: World) -> None:
    """Somebody outside kills workers again and again, more often than messages have attempts: none may be given up."""
    for _ in range(8):
        await asyncio.sleep(world.random.uniform(0.3, 1.0))
        victim = world.random.choice([one for one in world.consumers if one.is_alive])
        async with world.hurting("kill -9"):
            victim.kill()
        world.start_consumer()
        await world.flows(10)


async def producers_killed(world: World) -> None:
    """Publishers die in the middle of their transactions."""
    for _ in range(4):
        victim = world.start_producer()
        await asyncio.sleep(world.random.uniform(1.0, 2.0))
        victim.kill()


async def poisoned(world: World) -> None:
    """Some messages kill whoever handles them, until they are given up."""
    await asyncio.sleep(8)


# Groups that pull

_TIMEOUT = {"heartbeat_interval": "1s", "heartbeat_timeout": "3s"}


async def popped_rarely(world: World) -> None:
    """All consumers are silent for longer than the heartbeat timeout: groups die, and the next pop delivers."""
    for _ in range(3):
        await _swept_until(world, "exists (select from postbus.subscription where state = 'DEAD')")
        sweeping = asyncio.create_task(_swept_until(world, "false"))
        try:
            await world.flows(10, within=30)
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)


async def worked_for_long(world: World) -> None:
    """All consumers work for longer than the heartbeat timeout, and only prolong their leases: no group dies."""
    await _swept_until(world, "not exists (select from postbus.subscription where state = 'DEAD')")
    before = await world.ask("select max(state_changed_at) from postbus.subscription")
    for _ in range(100):
        await _sweep(world)
        await asyncio.sleep(0.2)
    if await world.ask("select max(state_changed_at) from postbus.subscription") != before:
        raise Unsettled("a group died while its consumers prolonged their leases")


async def _swept_until(world: World, fact: str) -> None:
    """Sweep, as another process would do, until something is so."""
    while not await world.ask(f"select {fact}"):
        await _sweep(world)
        await asyncio.sleep(0.2)


async def _sweep(world: World) -> None:
    for storage in await world.ask("select coalesce(array_agg(id), '{}') from postbus.storage"):
        await world.ask("select dead from postbus.sweep_log($1)", storage)


# The server


async def backends_terminated(world: World) -> None:
    for _ in range(8):
        pids = await world.server.backends()
        async with world.hurting("pg_terminate_backend"):
            for pid in world.random.sample(pids, min(4, len(pids))):
                await world.server.terminate_backend(pid)
        await asyncio.sleep(0.4)


async def backend_killed(world: World) -> None:
    """One backend dies, and the server starts all others anew."""
    for _ in range(2):
        async with world.restarting, world.hurting("backend killed", aftermath=2):
            if pids := await world.server.backends():
                await world.server.kill_backend(world.random.choice(pids))
                await world.server.until_up()
        await world.flows(30)


async def postmaster_killed(world: World) -> None:
    for _ in range(2):
        async with world.restarting, world.hurting("postmaster killed", aftermath=3):
            await world.server.kill()
            await asyncio.sleep(world.random.uniform(0, 1.5))
            await world.server.start()
        await world.flows(30)


async def immediate_shutdown(world: World) -> None:
    for mode in ("immediate", "fast"):
        async with world.restarting, world.hurting(f"shutdown {mode}", aftermath=3):
            await world.server.restart(mode)
        await world.flows(30)


async def failed_over(world: World) -> None:
    """The primary dies, and the standby takes over: what was committed is there, since commits waited for it."""
    assert world.scene.standby is not None
    async with world.hurting("failover", aftermath=5):
        await world.server.kill()
        await world.scene.standby.promote()
        world.server = world.scene.standby


async def disk_full(world: World) -> None:
    """Nothing more can be written to tables; some seconds later it can."""
    assert world.scene.disk is not None
    async with world.hurting("disk full", aftermath=3):
        world.scene.disk.fill()
        await asyncio.sleep(4)
        world.scene.disk.free()


async def wal_full(world: World) -> None:
    """The server goes down, and comes back when there is space again."""
    assert world.scene.disk is not None
    async with world.hurting("disk of the WAL full", aftermath=3):
        world.scene.disk.fill()
        with suppress(*NOT_THERE):  # what is there of the WAL would last for a while
            while True:
                await world.ask("select pg_switch_wal() from pg_logical_emit_message(false, '', repeat('x', 1000000))")
        await world.server.until_down()
        await asyncio.sleep(1)
        world.scene.disk.free()
        await world.server.stop("immediate")
        await world.server.start()


def clock_jumped(*jumps: float) -> Strike:
    async def strike(world: World) -> None:
        assert world.scene.clock is not None
        for seconds in jumps:
            async with world.hurting(f"clock {seconds:+g} s", aftermath=2):
                world.scene.clock.jump(seconds)
                await asyncio.sleep(1.5)
            await world.flows(30)

    return strike


async def too_many_clients(world: World) -> None:
    """Others take every connection; those that workers have are broken, and cannot be made again for a while."""
    async with world.hurting("too many clients", aftermath=3):
        for pid in await world.server.backends():
            await world.server.terminate_backend(pid)
        async with hogs.all_connections(world.server.dsn(user=USER)):
            await asyncio.sleep(4)


# The network


def commits_cut(**odds: float) -> Strike:
    """Connections break around COMMIT: nobody knows what became of it."""

    async def strike(world: World) -> None:
        proxy = _proxy(world)
        async with world.hurting("connections cut", aftermath=2):
            proxy.with_autocommit = True
            proxy.on_commit = Odds(**odds, seed=world.random.randrange(1 << 30))
            await asyncio.sleep(5)
            proxy.on_commit = OnCommit.PASS

    return strike


async def half_open(world: World) -> None:
    """Everything that is sent vanishes, and no connection ends."""
    async with world.hurting("half-open", aftermath=12):
        _proxy(world).half_open()
        await asyncio.sleep(5)
        _proxy(world).heal()


async def network_away(world: World) -> None:
    for _ in range(3):
        async with world.hurting("network cut", aftermath=2):
            _proxy(world).cut()
            await asyncio.sleep(world.random.uniform(0.1, 1.5))
            _proxy(world).heal()
        await world.flows(20)


async def slow_network(world: World) -> None:
    """Each way takes 30 milliseconds: slow is no excuse for anything."""
    _proxy(world).delay = 0.03
    await asyncio.sleep(6)
    _proxy(world).delay = 0.0


def _proxy(world: World) -> Proxy:
    assert world.scene.proxy is not None
    return world.scene.proxy


# Transactions


async def transactions_open(world: World) -> None:
    """Old transactions: with an id, without one, in another database, and prepared."""
    await world.server.ask("create database other")
    here, reading, other = [
        await asyncpg.connect(world.server.socket_dsn(database)) for database in ("postbus", "postbus", "other")
    ]
    for conn, sql in (
        (here, "begin; select pg_current_xact_id()"),
        (reading, "begin isolation level repeatable read; select count(*) from postbus.topic"),
        (other, "begin; create table t ()"),
    ):
        await conn.execute(sql)
    await hogs.prepare(world.server.socket_dsn(), "open", ["create table prepared ()"])
    await asyncio.sleep(6)
    await world.flows(50)
    await hogs.finish_prepared(world.server.socket_dsn(), "open", commit=False)
    for conn in (here, reading, other):
        conn.terminate()


async def deadlocks(world: World) -> None:
    """Transactions of an application that publish, and lock each other out."""
    await world.ask("create table stock as select id, 0 as n from generate_series(1, 2) as id")
    stop = asyncio.get_running_loop().time() + 5

    async def order(first: int, second: int) -> None:
        conn: Any = await asyncpg.connect(world.server.dsn())
        while asyncio.get_running_loop().time() < stop:
            with suppress(asyncpg.DeadlockDetectedError):
                async with conn.transaction():
                    await conn.execute("update stock set n = n + 1 where id = $1", first)
                    await conn.execute("select postbus.publish('elsewhere', '{}'::jsonb, key => $1)", str(first))
                    await conn.execute("update stock set n = n + 1 where id = $1", second)
        await conn.close()

    await asyncio.gather(order(1, 2), order(2, 1))
    await world.ask("delete from postbus.queued where topic_id = postbus.topic_id('elsewhere')")


async def idle_sessions_ended(world: World) -> None:
    """The server ends idle sessions, and an operator those that listen: nothing may come twice."""
    for _ in range(4):
        await asyncio.sleep(1)
        async with world.hurting("idle sessions ended", excuses=False):
            await world.ask(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where query ilike 'listen %'"
            )


async def timeouts(world: World) -> None:
    """Statements and locks get little time, and somebody locks what everybody needs."""
    await world.ask("alter database postbus set statement_timeout = '300ms'")
    await world.ask("alter database postbus set lock_timeout = '100ms'")
    locker: Any = await asyncpg.connect(world.server.socket_dsn())
    await locker.execute("set lock_timeout = 0; set statement_timeout = 0")
    async with world.hurting("timeouts", aftermath=3):
        for pid in await world.server.backends():
            await world.server.terminate_backend(pid) if pid != locker.get_server_pid() else None
        for table in ("queued", "lease", "cursor", "lane", "segment", "topic", "retrying"):
            try:
                async with locker.transaction():
                    await locker.execute(f"lock table postbus.{table} in access exclusive mode")
                    await asyncio.sleep(0.5)
            except asyncpg.DeadlockDetectedError:
                pass  # the server chose to end us and not the one we hurt
            await asyncio.sleep(0.3)
        await world.ask("alter database postbus reset all")
        for pid in await world.server.backends():
            await world.server.terminate_backend(pid)
    locker.terminate()


# Administration


async def migrated(world: World) -> None:
    """The schema's functions are applied again, as an upgrade does."""
    for _ in range(3):
        conn: Any = await asyncpg.connect(world.server.socket_dsn())
        await conn.execute("update postbus.installed set code_checksum = 'another'")
        await migrate(conn)
        await conn.close()
        await asyncio.sleep(1)


async def vacuumed(world: World) -> None:
    """VACUUM FULL and REINDEX of all tables."""
    conn: Any = await asyncpg.connect(world.server.socket_dsn())
    tables = await conn.fetch(
        "select oid::regclass::text as name from pg_class"
        " where relnamespace = 'postbus'::regnamespace and relkind = 'r'"
    )
    for row in tables:
        with suppress(asyncpg.UndefinedTableError, asyncpg.DeadlockDetectedError):  # dropped meanwhile
            await conn.execute(f"vacuum (full, analyze) {row['name']}")
    with suppress(asyncpg.PostgresError):
        await conn.execute("reindex schema postbus")
    await conn.close()


STREAMS = (
    ("two routes", ("stream-routes",)),
    ("queue and log", ("stream-queue", "stream-log")),
    ("two databases", ("stream-log", "stream-there")),
)
FAULTS = [
    Fault("none", nothing),
    *(Fault(f"worker killed {name}", killed_at(name)) for name in FAILPOINTS),
    Fault("worker killed anywhere", killed_anywhere),
    Fault("worker frozen", frozen),
    Fault("rolling restart", rolling_restart),
    Fault("uneven handlers stopped", stopped_again_and_again, consumer={"uneven": 1}, producer={"rate": 8.0}),
    Fault("worker killed by others", killed_by_others, topics={"max_attempts": 3}),
    Fault("producer killed", producers_killed),
    Fault(
        "poison",
        poisoned,
        topics={"max_attempts": 3, "retry_initial": "300ms", "retry_factor": 2.0, "retry_max": "3s"},
        producer={"poison": 0.001},
        kills=True,
    ),
    Fault(
        "pops rarer than the heartbeat timeout",
        popped_rarely,
        topics=_TIMEOUT,
        producer={"rate": 1},
        consumer={"rhythm": 9},
        modes=("pull", "pull-transactional"),
    ),
    Fault(
        "work longer than the heartbeat timeout",
        worked_for_long,
        topics=_TIMEOUT,
        producer={"rate": 1},
        consumer={"rhythm": 7, "hold": 6},
        modes=("pull", "pull-transactional"),
    ),
    Fault("backends terminated", backends_terminated),
    Fault("backend killed", backend_killed),
    Fault("postmaster killed", postmaster_killed),
    Fault("server shut down", immediate_shutdown),
    Fault("failover to a standby", failed_over, stage.with_a_standby),
    Fault("disk full", disk_full, stage.with_little_space),
    Fault("disk of the WAL full", wal_full, stage.with_little_wal),
    Fault("clock set forward and back", clock_jumped(30, -60, 30), stage.with_a_clock),
    Fault("clock a day ahead", clock_jumped(86_400), stage.with_a_clock),
    Fault("too many clients", too_many_clients, settings={"max_connections": "60"}),
    Fault("connections cut before COMMIT", commits_cut(before=0.05), stage.through_a_proxy),
    Fault("connections cut during COMMIT", commits_cut(during=0.05), stage.through_a_proxy),
    Fault("connections cut after COMMIT", commits_cut(after=0.05), stage.through_a_proxy),
    Fault("half-open connections", half_open, stage.through_a_proxy),
    Fault("network away", network_away, stage.through_a_proxy),
    Fault("slow network", slow_network, stage.through_a_proxy),
    Fault("pgbouncer", nothing, stage.through_pgbouncer, producer={"statement-cache": 0}),
    Fault("pgbouncer, worker killed", killed_anywhere, stage.through_pgbouncer, producer={"statement-cache": 0}),
    Fault("pgbouncer, postmaster killed", postmaster_killed, stage.through_pgbouncer, producer={"statement-cache": 0}),
    Fault("open transactions", transactions_open, settings={"max_prepared_transactions": "1"}),
    Fault("deadlocks", deadlocks),
    Fault("timeouts", timeouts),
    Fault("idle sessions ended", idle_sessions_ended, settings={"idle_session_timeout": "2s"}),
    *(Fault(f"{name} into one stream", killed_anywhere, stage.with_a_stream, modes=modes) for name, modes in STREAMS),
    Fault("migration", migrated),
    Fault("vacuum full", vacuumed),
]


_MIXED: dict[str, Strike] = {
    **{name: killed_at(name) for name in FAILPOINTS},
    "kill": killed_anywhere,
    "freeze": frozen,
    "rolling restart": rolling_restart,
    "producers": producers_killed,
    "terminate": backends_terminated,
    "backend": backend_killed,
    "postmaster": postmaster_killed,
    "shutdown": immediate_shutdown,
    "cut": commits_cut(before=0.02, during=0.02, after=0.02),
    "away": network_away,
    "half-open": half_open,
    "slow": slow_network,
}


def mix(name: str, seed: str) -> Fault:
    """Four of them at once, at moments that the seed says."""
    chance = random.Random(f"mix {seed}")
    chosen = chance.sample(sorted(_MIXED), 4)
    waits = [chance.uniform(0, 6) for _ in chosen]

    async def strike(world: World) -> None:
        async def begin(one: str, wait: float) -> None:
            await asyncio.sleep(wait)
            with suppress(*NOT_THERE, Unsettled):  # another one is in its way
                await _MIXED[one](world)

        await asyncio.gather(*(begin(one, wait) for one, wait in zip(chosen, waits, strict=True)))

    return Fault(f"{name}: {', '.join(chosen)}", strike, stage.through_a_proxy)
