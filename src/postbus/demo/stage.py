"""Putting the demo on: service, workers and view together, until it is told to end."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from postbus._loop import pause
from postbus.bus import Bus
from postbus.demo.crew import Crew
from postbus.demo.service import OrderService
from postbus.demo.shop import open_shop
from postbus.demo.tally import Tally
from postbus.errors import DatabaseUnavailable


class View(AbstractContextManager[None], Protocol):
    """What the audience sees."""

    every: float
    """Seconds between two looks."""

    def show(self, tally: Tally) -> None: ...


async def perform(
    bus: Bus, view: View, *, stop: asyncio.Event, abort: asyncio.Event, seconds: float | None
) -> Tally:
    """Run the demo until `stop` is set or the time is over. `abort` ends what takes too long to stop."""
    await open_shop(bus)
    tally = Tally()
    crew = Crew(bus.dsn, tally)
    service = OrderService(bus, tally)
    if seconds is not None:
        asyncio.get_running_loop().call_later(seconds, stop.set)
    working = asyncio.create_task(crew.run(), name="demo-crew")
    ordering = asyncio.create_task(service.run(stop), name="demo-service")
    try:
        with view:
            await _watch(bus, tally, view, stop, working, ordering)
    finally:
        stop.set()
        aborting = asyncio.create_task(_kill_on(abort, crew))
        crew.end()
        await crew.ended(working)
        await ordering
        aborting.cancel()
    await _last_look(bus, tally)
    return tally


async def _watch(bus: Bus, tally: Tally, view: View, stop: asyncio.Event, *tasks: asyncio.Task[None]) -> None:
    while not stop.is_set():
        for task in tasks:
            if task.done():
                task.result()
        try:
            await tally.look(bus)
        except DatabaseUnavailable as error:
            tally.tell("demo", error.message)
        view.show(tally)
        await pause(view.every, stop)


async def _kill_on(abort: asyncio.Event, crew: Crew) -> None:
    await abort.wait()
    crew.kill()


async def _last_look(bus: Bus, tally: Tally) -> None:
    with suppress(DatabaseUnavailable):  # then the figures of the look before stay
        await tally.look(bus)
