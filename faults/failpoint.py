"""Where a consumer can be told to die.

The points are those that matter: after something was claimed, read or popped; in a handler; after the effect, before
the settlement is sent; while the settlement is under way; and after a message that failed was put off.
"""

from __future__ import annotations

import os
import signal

from faults.journal import Disruption, Journal, now

AFTER_CLAIM = "after claim"
IN_HANDLER = "in handler"
AFTER_EFFECT = "after effect"
DURING_SETTLEMENT = "during settlement"
AFTER_PUTTING_OFF = "after putting off"
FAILPOINTS = (AFTER_CLAIM, IN_HANDLER, AFTER_EFFECT, DURING_SETTLEMENT, AFTER_PUTTING_OFF)


class Failpoint:
    """Where this process dies, the how-manieth time it comes there."""

    def __init__(self, name: str, count: int, journal: Journal) -> None:
        self._name = name
        self._left = count
        self._journal = journal

    def is_reached(self, name: str) -> bool:
        if name != self._name:
            return False
        self._left -= 1
        return self._left <= 0

    def reach(self, name: str) -> None:
        if self.is_reached(name):
            self.die()

    def die(self) -> None:
        self._journal.note(Disruption(f"killed {self._name}", now(), now(), excuses=True))
        os.kill(os.getpid(), signal.SIGKILL)
