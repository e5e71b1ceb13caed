"""Strikes against processes that consume and publish."""

from __future__ import annotations

import asyncio
import signal

from faults.cell import Strike
from faults.failpoint import AFTER_PUTTING_OFF
from faults.world import World

_BEYOND_THE_LEASE = 3.5  # seconds; the lease is 2


async def nothing(world: World) -> None:
    """Traffic, retries and late commits, and no fault at all: nothing may come twice."""
    await asyncio.sleep(3)


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
