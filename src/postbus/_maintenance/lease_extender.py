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

EXTEND_LEASES = 0.2  # seconds between two searches for leases that are due; a lease lasts at least 1 second


class ExtendsLeases(Protocol):
    """A backend that extends leases."""

    async def extend(self, tokens: Sequence[UUID], lease: timedelta) -> set[UUID]:
        """Extend leases by their tokens. Returns the tokens of those that are lost."""
        ...


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
    """Extends the leases of messages that are still in hand: all leases of the same length in one statement."""

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
            for lease in [self._leases[token] for token in tokens if token in self._leases]:
                lease.was_prolonged()
                if lease.token in lost:
                    lease.is_lost = True
                    if lease.in_hand:  # otherwise all its messages were settled meanwhile
                        event(logging.WARNING, "lease.lost", topic=lease.topic, messages=sorted(lease.in_hand))
