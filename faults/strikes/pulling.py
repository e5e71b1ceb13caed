"""Strikes against groups that pull."""

from __future__ import annotations

import asyncio

from faults.world import Unsettled, World


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
    for storage in await world.ask("select coalesce(array_agg(id), '{}') from postbus.log_storage"):
        await world.ask("select dead from postbus.sweep_log($1)", storage)
