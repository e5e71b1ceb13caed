"""The event loop that programs of ours run in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, TypeVar

from postbus.errors import InvalidOption

T = TypeVar("T")


class EventLoop(StrEnum):
    """Which one to use. In uvloop a message takes less time, but subprocesses behave differently in some ways."""

    AUTO = "auto"
    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"


def run(main: Coroutine[Any, Any, T], kind: EventLoop = EventLoop.AUTO) -> T:
    """As asyncio.run does. For what runs long: to load uvloop takes a moment, too."""
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
