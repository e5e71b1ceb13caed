"""The event loop that programs of ours run in."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any, TypeVar

from postbus.errors import InvalidOption

T = TypeVar("T")


class EventLoop(StrEnum):
    """Which one to use. In uvloop a message takes less time, but subprocesses behave differently in some ways."""

    AUTO = "auto"
    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"

    @property
    def chosen(self) -> EventLoop:
        """That, or of those that are there."""
        return self if self is not EventLoop.AUTO else EventLoop.ASYNCIO if _uvloop() is None else EventLoop.UVLOOP


def run(main: Coroutine[Any, Any, T], kind: EventLoop = EventLoop.AUTO) -> T:
    """As asyncio.run does. For what runs long: to load uvloop takes a moment, too."""
    uvloop = _uvloop() if kind is not EventLoop.ASYNCIO else None
    if uvloop is None and kind is EventLoop.UVLOOP:
        main.close()
        raise InvalidOption("uvloop is not installed", remedy="pip install uvloop, or choose another event loop")
    with asyncio.Runner(loop_factory=None if uvloop is None else uvloop.new_event_loop) as runner:
        return runner.run(main)


def _uvloop() -> Any:
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop
