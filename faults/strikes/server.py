"""Strikes against the server and its machine."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from faults.cell import Strike
from faults.servers import hogs
from faults.servers.run import USER
from faults.world import NOT_THERE, World


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
