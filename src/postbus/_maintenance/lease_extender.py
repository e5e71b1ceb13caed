"""Extends the leases of messages that are still in hand."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from postbus._runtime.log_events import event

LOOK_AT_LEASES = 0.2  # seconds; leases are of 1 second at least


class ExtendsLeases(Protocol):
    """Prolongs leases by their tokens, and says which are lost."""

    async def extend(self, tokens: Sequence[UUID], lease: timedelta) -> set[UUID]: ...


class ExtendableLease(Protocol):
    """A lease in this process, of claimed or of popped messages."""

    topic: str
    token: UUID
    length: timedelta
    is_lost: bool
    prolong_at: float

    @property
    def in_hand(self) -> Collection[int]:
        """The messages that are not settled."""

    @property
    def is_needed(self) -> bool:
        """Whether the lease is worth prolonging."""

    def was_prolonged(self) -> None:
        """Note that the lease ends after its length from now."""


class LeaseExtender:
    """Prolongs the leases of what is still in hand, in one statement for all of the same length."""

    def __init__(self, store: ExtendsLeases, leases: Mapping[UUID, ExtendableLease]) -> None:
        self._store = store
        self._leases = leases

    async def tick(self) -> None:
        due: defaultdict[timedelta, list[UUID]] = defaultdict(list)
        for token, lease in self._leases.items():
            if time.monotonic() >= lease.prolong_at and lease.is_needed:
                due[lease.length].append(token)
        for length, tokens in due.items():
            lost = await self._store.extend(tokens, length)
            for held in [self._leases[token] for token in tokens if token in self._leases]:
                held.was_prolonged()
                if held.token in lost:
                    held.is_lost = True
                    if held.in_hand:  # else all of it was settled meanwhile
                        event(logging.WARNING, "lease.lost", topic=held.topic, messages=sorted(held.in_hand))
