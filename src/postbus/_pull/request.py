"""What a pop asks for."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from postbus.scope import Scope
from postbus.start import Start


class PopRequest(msgspec.Struct, frozen=True):
    """What a pop asks for."""

    scope: Scope
    group: str | None
    start: Start | None
    """Where the group begins, if it has never asked for this scope before; None for queues."""
    batch: int
    wait: float
    lease: timedelta | None
    member: str | None
    auto_ack: bool
    for_others: bool = False
    """Whether a server asks for consumers elsewhere, which come and go without it."""
