"""Waiting for a fact instead of for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Args = TypeVarTuple("Args")


async def eventually(fact: Callable[[*Args], Awaitable[T]], *args: *Args, within: float = 10.0) -> T:
    """Call `fact` with these arguments until its assertions hold; raise the last failure when the time is over."""
    deadline = time.monotonic() + within
    wait = 0.001
    while True:
        try:
            return await fact(*args)
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(wait)
        wait = min(wait * 1.5, 0.1)
