"""Commands that run until they are told to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

# A hangup is not for us if whoever started us (nohup) lets us ignore it.
_IGNORES_HANGUP = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
_ENDINGS = (signal.SIGINT, signal.SIGTERM, *([] if _IGNORES_HANGUP else [signal.SIGHUP]))


@contextmanager
def stops_by_signal() -> Iterator[None]:
    """While there is no event loop yet that could be told, all signals that end us are as Ctrl-C."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class StopSignals:
    """Set by the first signal, and by the second."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    abort: asyncio.Event = field(default_factory=asyncio.Event)

    def listen(self) -> None:
        for number in _ENDINGS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.abort if self.stop.is_set() else self.stop).set()
