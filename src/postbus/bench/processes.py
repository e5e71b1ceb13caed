"""Work in processes of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def elsewhere(work: Callable[[], T]) -> T:
    """Run a function in a fresh process, which ends with it."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
