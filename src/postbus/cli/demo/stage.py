"""Running the demo: service, workers and view together, until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from postbus.bus import Bus
from postbus.cli.demo.processes import WorkerProcesses
from postbus.cli.demo.service import OrderService
from postbus.cli.demo.shop import open_shop
from postbus.cli.demo.tally import Tally
from postbus.errors import DatabaseUnavailable

_END_WITHIN = 10.0


class DemoView(AbstractContextManager[None], Protocol):
    """Shows the demo: on a terminal, as lines, or as JSON."""

    every: float
    """Seconds between two calls of `show`."""

    def show(self, tally: Tally) -> None: ...


async def perform(
    bus: Bus, view: DemoView, *, stop: asyncio.Event, abort: asyncio.Event, seconds: float | None
) -> Tally:
    """Run the demo until `stop` is set or the time is over. `abort` ends processes that take long to stop."""
    await open_shop(bus)
    tally = Tally()
    workers = WorkerProcesses(bus.dsn, tally)
    if seconds is not None:
        asyncio.get_running_loop().call_later(seconds, stop.set)
    working = asyncio.create_task(workers.run(), name="demo-workers")
    ordering = asyncio.create_task(OrderService(bus, tally).run(stop), name="demo-service")
    try:
        with view:
            await _until(stop, _watch(bus, tally, view), working, ordering)
    finally:
        stop.set()
        workers.end()
        await _until(abort, asyncio.wait([working, ordering], timeout=_END_WITHIN))
        workers.kill()
        ordering.cancel()
        await asyncio.gather(working, ordering, return_exceptions=True)
    with suppress(DatabaseUnavailable):  # then the earlier figures stay
        await tally.look(bus)
    return tally


async def _until(flag: asyncio.Event, work: Coroutine[Any, Any, Any], *others: asyncio.Task[None]) -> None:
    """Do the work until the flag is set. Raises errors of the work and of the other tasks."""
    tasks = [asyncio.create_task(flag.wait()), asyncio.create_task(work)]
    try:
        done, _ = await asyncio.wait([*tasks, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(bus: Bus, tally: Tally, view: DemoView) -> None:
    while True:
        try:
            await tally.look(bus)
        except DatabaseUnavailable as error:
            tally.tell("demo", error.message)
        view.show(tally)
        await asyncio.sleep(view.every)
