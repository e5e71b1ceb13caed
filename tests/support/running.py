"""Running a bus within a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from postbus import Bus, PostbusError
from support.eventually import eventually


class Endless:
    """A handler that waits until it is cancelled."""

    def __init__(self) -> None:
        self.begun, self.cancelled = asyncio.Event(), asyncio.Event()

    async def handle(self, payload: Any) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def is_stopped_twice(self, bus: Bus) -> bool:
        """Run, stop once the handler has begun, and stop again while that is waited for.

        Returns the result of `run`.
        """
        run = asyncio.create_task(bus.run())
        await self.begun.wait()
        bus.stop()
        await tasks_are("_drain", 1)
        bus.stop()
        return await asyncio.wait_for(run, 5)


async def tasks_are(name: str, count: int) -> None:
    """Wait until this many tasks have this name, or run a coroutine of this name."""

    async def as_many() -> None:
        tasks = [
            task
            for task in asyncio.all_tasks()
            if name in (task.get_name(), getattr(task.get_coro(), "__qualname__", None))
        ]
        assert len(tasks) == count, tasks

    await eventually(as_many)


async def send_surely(bus: Bus, payload: Any, *, dedup_key: str, key: str | None = None) -> None:
    """Send until the outcome is known; the deduplication key makes repeating safe."""
    while True:
        try:
            await bus.send("t", payload, key=key, dedup_key=dedup_key)
            return
        except (PostbusError, asyncpg.PostgresError):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(bus: Bus) -> AsyncIterator[asyncio.Task[bool]]:
    """Let the bus consume within the block, and drain it at the end."""
    run = asyncio.create_task(bus.run())
    await asyncio.sleep(0)  # so that it can be stopped
    try:
        yield run
    finally:
        for _ in range(3):
            if run.done():
                break
            bus.stop()
            try:
                await asyncio.wait_for(asyncio.shield(run), 5)
            except TimeoutError:
                continue
            except BaseException:
                break
    await run
