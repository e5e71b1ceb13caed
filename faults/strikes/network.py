"""Strikes against the network between clients and server."""

from __future__ import annotations

import asyncio

from faults.cell import Strike
from faults.servers.proxy import CommitOdds, OnCommit, Proxy
from faults.world import World


def commits_cut(**odds: float) -> Strike:
    """Connections break around COMMIT: nobody knows what became of it."""

    async def strike(world: World) -> None:
        proxy = _proxy(world)
        async with world.hurting("connections cut", aftermath=2):
            proxy.with_autocommit = True
            proxy.on_commit = CommitOdds(**odds, seed=world.random.randrange(1 << 30))
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
