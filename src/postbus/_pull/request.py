"""The messages that a pop asks for."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from postbus.scope import Scope
from postbus.start import Start


class PopRequest(msgspec.Struct, frozen=True):
    """The messages that a pop asks for, and how it takes them."""

    scope: Scope
    group: str | None
    start: Start | None
    """The position at which the group begins if it is new to this scope; None for queues."""
    batch: int
    wait: float
    lease: timedelta | None
    member: str | None
    auto_ack: bool
    for_others: bool = False
    """A server asks for a consumer elsewhere, which comes and goes independently of the server."""

    @property
    def subscribed_scope(self) -> Scope:
        """The scope that the group is subscribed to: a pop of one key reads a whole topic."""
        return self.scope if self.scope.is_wide else Scope(self.scope.topic)
