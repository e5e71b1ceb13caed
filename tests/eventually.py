"""Waiting for a fact instead of for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(fact: Callable[[], Awaitable[T]], *, within: float = 10.0) -> T:
    """Call `fact` until its assertions hold; raise the last failure when the time is over."""
    deadline = time.monotonic() + within
    wait = 0.001
    while True:
        try:
            return await fact()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(wait)
        wait = min(wait * 1.5, 0.1)
