"""The signals that end a command."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

# A hangup does not end us if our caller made us ignore it (nohup).
_IGNORES_HANGUP = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
_ENDINGS = (signal.SIGINT, signal.SIGTERM, *([] if _IGNORES_HANGUP else [signal.SIGHUP]))


@contextmanager
def stops_by_signal() -> Iterator[None]:
    """Treat every ending signal as Ctrl-C while there is no event loop."""

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
    """The first signal sets `stop`, the second one `abort`."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    abort: asyncio.Event = field(default_factory=asyncio.Event)

    def listen(self) -> None:
        for number in _ENDINGS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.abort if self.stop.is_set() else self.stop).set()
