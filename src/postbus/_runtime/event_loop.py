"""The event loop that commands of Postbus run in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, TypeVar

from postbus.errors import InvalidOption

T = TypeVar("T")


class EventLoop(StrEnum):
    """The choice of event loop. uvloop takes less time for each message, but its subprocesses behave differently."""

    AUTO = "auto"
    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"


def run(main: Coroutine[Any, Any, T], kind: EventLoop = EventLoop.AUTO) -> T:
    """Run a coroutine as asyncio.run does. For long-running commands, because loading uvloop takes a moment."""
    new_loop: Callable[[], Any] | None = None
    if kind is not EventLoop.ASYNCIO:
        try:
            import uvloop

            new_loop = uvloop.new_event_loop
        except ModuleNotFoundError:
            if kind is EventLoop.UVLOOP:
                main.close()
                raise InvalidOption("uvloop is not installed", remedy="pip install uvloop") from None
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)
