"""Claims messages of one topic for one dispatcher, as many as it has free slots."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from functools import partial
from uuid import UUID

from postbus._db.statements.queue import Claim
from postbus._db.store import Store
from postbus._handling.isolation import Suspect
from postbus._handling.settler import ClaimedLease, Settler
from postbus._queue.dispatcher import Dispatcher
from postbus._queue.scan_floor import ScanFloor
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff, pause
from postbus._wakeup.waiters import TimedWaker
from postbus.errors import DatabaseUnavailable
from postbus.subscription import Subscription

_MOST_SUSPECTS = 1000


class Claimer:
    """Keeps the dispatcher of one subscription busy."""

    def __init__(
        self,
        subscription: Subscription,
        store: Store,
        dispatcher: Dispatcher,
        settler: Settler,
        *,
        member: str,
        waker: TimedWaker,
    ) -> None:
        self._subscription = subscription
        self._store = store
        self._dispatcher = dispatcher
        self._settler = settler
        self._member = member
        self._waker = waker
        self._floor = ScanFloor()
        self._has_logged_move = False
        self._takes_suspects = False
        self._claiming = asyncio.Lock()
        self._limit_left = math.inf if subscription.limit is None else subscription.limit

    @property
    def topic(self) -> str:
        return self._subscription.topic

    async def halt(self) -> None:
        """Release messages whose handlers have not begun. The topic is paused, so new claims return nothing."""
        async with self._claiming:  # a claim that is under way may have begun before the pause
            await self._dispatcher.release_ready()

    async def claim_suspect(self) -> Suspect | None:
        """Claim suspects. The caller handles them at once, while no other handler runs."""
        self._takes_suspects = False
        if self._limit_left <= 0:
            return None
        async with self._claiming:
            claim = await self._claim_suspects(_MOST_SUSPECTS, is_alone=True)
        if claim is None or claim.token is None:
            return None
        lease, left = self._new_lease(claim, claim.token), deque(claim.messages)

        async def end_isolation() -> None:
            await self._store.not_alone(lease.token)
            self._dispatcher.continue_beside(lease, left)

        return Suspect(claim.outlasted, partial(self._dispatcher.try_alone, lease, left), end_isolation)

    async def try_beside(self) -> None:
        """Claim suspects like other messages when there are free slots, because other handlers run."""
        self._takes_suspects = True
        self._waker.set()

    async def _claim_suspects(self, slots: int, *, is_alone: bool) -> Claim | None:
        claim = await self._store.claim_suspects(
            self._subscription.topic,
            member=self._member,
            max_count=slots,
            lease=self._subscription.lease,
            is_alone=is_alone,
        )
        if claim is not None:
            self._limit_left -= len(claim.messages)
        return claim

    def _new_lease(self, claim: Claim, token: UUID) -> ClaimedLease:
        lease = ClaimedLease(
            self._subscription.topic,
            token,
            claim.messages,
            claim.length,
            ordered=claim.ordered,
            remaining=claim.remaining,
            on_settled=self._dispatcher.was_settled,
        )
        self._settler.add(lease)
        return lease

    async def run(self, stop: asyncio.Event) -> None:
        """Claim until `stop` is set, or until the subscription has its `limit` of messages."""
        backoff = Backoff()
        wait = 0.01
        while not stop.is_set() and self._limit_left > 0:
            slots = await self._dispatcher.wait_for_slots()
            if stop.is_set() or slots == 0:
                break
            # Clear before claiming, not after: a message that commits while we claim must wake us again.
            self._waker.clear()
            try:
                async with self._claiming:
                    next_claim_in = await self.tick(slots)
                backoff.reset()
            except DatabaseUnavailable as error:
                self._floor.forget()
                wait = backoff.next()
                event(logging.WARNING, "database.away", loop=f"claim {self._subscription.topic}",
                      retry_in=f"{wait:.2f}s", error=error.message)  # fmt: skip
                await pause(wait, stop)
                continue
            if next_claim_in == 0:
                wait = 0.01
                continue
            # Claim again soon after there was work, and less and less often while there is none.
            wait = min(wait * 2, self._subscription.poll, next_claim_in)
            await self._waker.woken_within(wait)  # stopping the worker wakes us, too

    async def tick(self, slots: int) -> float:
        """Claim once. Returns after how many seconds to claim again if no wake-up comes; 0 means at once."""
        if self._takes_suspects:
            suspects = await self._claim_suspects(int(min(slots, self._limit_left)), is_alone=False)
            if suspects is not None and suspects.token is not None:
                self._dispatcher.accept(self._new_lease(suspects, suspects.token), suspects.messages)
                return 0
            self._takes_suspects = False
        floor = self._floor.current()
        claim = await self._store.claim(
            self._subscription.topic,
            member=self._member,
            max_count=int(min(slots, self._limit_left)),
            lease=self._subscription.lease,
            floor=floor,
            max_bytes=self._subscription.max_bytes,
        )
        self._floor.moved(claim.floor, given=floor, took=claim.took)
        if claim.moved and claim.token is None and not self._has_logged_move:
            self._has_logged_move = True
            event(logging.WARNING, "queue.moved", topic=self._subscription.topic,
                  remedy="the topic is PUB_SUB by now, and its queue is empty: subscribe with group=…")  # fmt: skip
        if claim.token is not None:
            self._dispatcher.accept(self._new_lease(claim, claim.token), claim.messages)
            self._limit_left -= len(claim.messages)
        if claim.more:
            return 0
        if claim.next_due is not None:
            return max(claim.next_due.total_seconds(), 0.001)
        return float("inf")
