"""All faults by their names, and mixes of them."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from faults import stage
from faults.cell import Fault, Strike
from faults.failpoint import FAILPOINTS
from faults.strikes import network, pulling, server, sessions, workers
from faults.world import NOT_THERE, Unsettled, World

_TIMEOUT = {"heartbeat_interval": "1s", "heartbeat_timeout": "3s"}
STREAMS = (
    ("two routes", ("stream-routes",)),
    ("queue and log", ("stream-queue", "stream-log")),
    ("two databases", ("stream-log", "stream-there")),
)
FAULTS = [
    Fault("none", workers.nothing),
    *(Fault(f"worker killed {name}", workers.killed_at(name)) for name in FAILPOINTS),
    Fault("worker killed anywhere", workers.killed_anywhere),
    Fault("worker frozen", workers.frozen),
    Fault("rolling restart", workers.rolling_restart),
    Fault("uneven handlers stopped", workers.stopped_again_and_again, consumer={"uneven": 1}, producer={"rate": 8.0}),
    Fault("worker killed by others", workers.killed_by_others, topics={"max_attempts": 3}),
    Fault("producer killed", workers.producers_killed),
    Fault(
        "poison",
        workers.poisoned,
        topics={"max_attempts": 3, "retry_initial": "300ms", "retry_factor": 2.0, "retry_max": "3s"},
        producer={"poison": 0.001},
        kills=True,
    ),
    Fault(
        "pops rarer than the heartbeat timeout",
        pulling.popped_rarely,
        topics=_TIMEOUT,
        producer={"rate": 1},
        consumer={"rhythm": 9},
        modes=("pull", "pull-transactional"),
    ),
    Fault(
        "work longer than the heartbeat timeout",
        pulling.worked_for_long,
        topics=_TIMEOUT,
        producer={"rate": 1},
        consumer={"rhythm": 7, "hold": 6},
        modes=("pull", "pull-transactional"),
    ),
    Fault("backends terminated", server.backends_terminated),
    Fault("backend killed", server.backend_killed),
    Fault("postmaster killed", server.postmaster_killed),
    Fault("server shut down", server.immediate_shutdown),
    Fault("failover to a standby", server.failed_over, stage.with_a_standby),
    Fault("disk full", server.disk_full, stage.with_little_space),
    Fault("disk of the WAL full", server.wal_full, stage.with_little_wal),
    Fault("clock set forward and back", server.clock_jumped(30, -60, 30), stage.with_a_clock),
    Fault("clock a day ahead", server.clock_jumped(86_400), stage.with_a_clock),
    Fault("too many clients", server.too_many_clients, settings={"max_connections": "60"}),
    Fault("connections cut before COMMIT", network.commits_cut(before=0.05), stage.through_a_proxy),
    Fault("connections cut during COMMIT", network.commits_cut(during=0.05), stage.through_a_proxy),
    Fault("connections cut after COMMIT", network.commits_cut(after=0.05), stage.through_a_proxy),
    Fault("half-open connections", network.half_open, stage.through_a_proxy),
    Fault("network away", network.network_away, stage.through_a_proxy),
    Fault("slow network", network.slow_network, stage.through_a_proxy),
    Fault("pgbouncer", workers.nothing, stage.through_pgbouncer, producer={"statement-cache": 0}),
    Fault(
        "pgbouncer, worker killed", workers.killed_anywhere, stage.through_pgbouncer, producer={"statement-cache": 0}
    ),
    Fault(
        "pgbouncer, postmaster killed",
        server.postmaster_killed,
        stage.through_pgbouncer,
        producer={"statement-cache": 0},
    ),
    Fault("open transactions", sessions.transactions_open, settings={"max_prepared_transactions": "1"}),
    Fault("deadlocks", sessions.deadlocks),
    Fault("timeouts", sessions.timeouts),
    Fault("idle sessions ended", sessions.idle_sessions_ended, settings={"idle_session_timeout": "2s"}),
    *(
        Fault(f"{name} into one stream", workers.killed_anywhere, stage.with_a_stream, modes=modes)
        for name, modes in STREAMS
    ),
    Fault("migration", sessions.migrated),
    Fault("vacuum full", sessions.vacuumed),
]


_MIXED: dict[str, Strike] = {
    **{name: workers.killed_at(name) for name in FAILPOINTS},
    "kill": workers.killed_anywhere,
    "freeze": workers.frozen,
    "rolling restart": workers.rolling_restart,
    "producers": workers.producers_killed,
    "terminate": server.backends_terminated,
    "backend": server.backend_killed,
    "postmaster": server.postmaster_killed,
    "shutdown": server.immediate_shutdown,
    "cut": network.commits_cut(before=0.02, during=0.02, after=0.02),
    "away": network.network_away,
    "half-open": network.half_open,
    "slow": network.slow_network,
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
