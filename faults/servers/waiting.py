"""Waiting for processes and servers, without holding up the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable

_POLL = 0.01


class TookTooLong(Exception):
    """The condition did not come true in time."""


async def until(holds: Callable[[], bool | Awaitable[bool]], what: str, *, within: float) -> None:
    """Wait until `holds()`; `what` says in an error what was waited for."""
    deadline = time.monotonic() + within
    while True:
        answer = holds()
        if await answer if isawaitable(answer) else answer:
            return
        if time.monotonic() > deadline:
            raise TookTooLong(f"{what} did not come true within {within:g} s")
        await asyncio.sleep(_POLL)
