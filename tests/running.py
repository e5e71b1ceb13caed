"""Running a bus within a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postbus import Bus


@asynccontextmanager
async def running(bus: Bus) -> AsyncIterator[asyncio.Task[bool]]:
    """The bus consumes within the block, and drains at its end."""
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
