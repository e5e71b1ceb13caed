"""Dispatching: claimed messages to handlers, never more at a time than there are slots."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Any

from postbus._db.store import Store
from postbus._handling.handling import ACK, NOT_DECODABLE, Handling, not_decodable
from postbus._handling.isolation import company
from postbus._handling.settler import ClaimedLease, Settler
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff
from postbus.errors import CommitUnknown, DatabaseUnavailable, LeaseLost
from postbus.message import DeadLetter, Message, Outcome, Release, Retry
from postbus.middleware import Middleware
from postbus.subscription import Subscription

_Delivery = tuple[ClaimedLease, Message]
_MOMENT = 0.005  # seconds
_PARTING = 1.0  # seconds, at most, for telling what calls came to that have ended when others are cancelled


class Dispatcher:
    """Runs the handler of one subscription."""

    def __init__(
        self,
        subscription: Subscription,
        store: Store,
        settler: Settler,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._subscription = subscription
        self._handling = Handling(subscription, middleware)
        self._store = store
        self._settler = settler
        self._ready: deque[_Delivery] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._runner_name = f"postbus-handler-{subscription.name}"
        self._in_hand = 0
        self._unsettled = 0
        self._freed = asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_draining = False
        self._cancelled: list[_Delivery] = []
        self._returned: list[tuple[ClaimedLease, Message, Outcome]] = []
        """Whose handlers have returned, and which were cancelled while the database was told so."""
        self._unbegun: list[_Delivery] = []
        self._halts = 0
        self._company = company()
        self._is_trying = False
        """Whether messages are tried alone."""
        self._beside = 0
        """Calls beside the runners: 1 while such a try goes on although others do, too."""

    @property
    def room(self) -> int:
        """How many more messages may be claimed: as many as there are free slots.

        What is handled but not settled yet occupies no slot, but there is no more of that than slots either.
        """
        slots = self._subscription.slots
        return min(slots - self._in_hand, 2 * slots - self._unsettled)

    async def wait_for_room(self) -> int:
        """Wait until messages may be claimed, preferably many: half of all slots, or what a moment brings.

        Returns 0 when no more are wanted.
        """
        while not self._is_draining:
            if self.room <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MOMENT):
                    while self.room * 2 < self._subscription.slots:
                        self._freed.clear()
                        await self._freed.wait()
            # Suspects, which are tried alone, may have taken the slots meanwhile.
            if self.room > 0 and not self._is_draining:
                return self.room
        return 0

    def want_no_more(self) -> None:
        """Let a claimer that waits for room go."""
        self._is_draining = True
        self._freed.set()

    def was_settled(self, count: int) -> None:
        """Messages of ours have been settled."""
        self._unsettled -= count
        self._freed.set()

    def accept(self, lease: ClaimedLease, messages: Sequence[Message]) -> None:
        """Take what was claimed. The caller has asked for no more than is free."""
        self._in_hand += len(messages)
        self._unsettled += len(messages)
        self._ready.extend((lease, message) for message in messages)
        self._start_runners(1)

    async def try_alone(self, lease: ClaimedLease, left: deque[Message]) -> None:
        """Handle what was claimed, one call after the other, and wait until it is settled, while nothing else runs."""
        self._in_hand += len(left)
        self._unsettled += len(left)
        halts, self._is_trying = self._halts, True
        try:
            while left and self._halts == halts:
                size = min(self._subscription.batch or 1, len(left))
                deliveries = [(lease, left.popleft()) for _ in range(size)]
                try:
                    await self._handle(self._still_ours(deliveries))
                finally:
                    self._in_hand -= size
                if not self._beside:
                    await self._settler.settled()
            if left:
                with contextlib.suppress(DatabaseUnavailable):  # then the lease ends by itself
                    await self._settler.release(lease, [message.id for message in left])
        except asyncio.CancelledError:
            self._unbegun += [(lease, message) for message in left]
            raise
        finally:
            self._in_hand -= len(left)
            self._is_trying, self._beside = False, 0
            self._freed.set()
            if not self._is_draining:
                self._start_runners(1)

    def go_on_beside(self, lease: ClaimedLease, left: deque[Message]) -> None:
        """The call that runs alone takes long: others begin, and with them what is left of its lease."""
        if self._is_trying:
            self._beside = 1
            self._ready.extend((lease, message) for message in left)
            left.clear()
            self._start_runners(1)

    def _start_runners(self, count: int) -> None:
        """Start some, and in the next moment twice as many if work is left then.

        Handlers that wait for nothing need one runner for all that is ready, and each runner costs time.
        """
        wanted = math.ceil(len(self._ready) / (self._subscription.batch or 1))
        for _ in range(min(self._slots - len(self._runners), wanted, count)):
            runner = asyncio.create_task(self._run(), name=self._runner_name)
            self._runners.add(runner)
            runner.add_done_callback(self._has_ended)
        if wanted > count and len(self._runners) < self._slots:
            asyncio.get_running_loop().call_soon(self._start_runners, 2 * count)

    @property
    def _slots(self) -> int:
        """How many runners there may be."""
        return self._subscription.concurrency - self._beside

    async def drain(self) -> None:
        """Give back what has not begun, and wait for what has."""
        await self.give_back()
        await asyncio.gather(*self._runners)

    async def give_back(self) -> None:
        """Give back what has not begun; it does not begin any more."""
        self._halts += 1
        unbegun: dict[ClaimedLease, list[int]] = {}
        for lease, message in self._ready:
            unbegun.setdefault(lease, []).append(message.id)
        self._in_hand -= len(self._ready)
        self._ready.clear()
        for lease, message_ids in unbegun.items():
            with contextlib.suppress(DatabaseUnavailable):  # then the lease ends by itself
                await self._settler.release(lease, message_ids)
        self._freed.set()

    @property
    def was_cut_short(self) -> bool:
        """Whether something was cancelled that had begun."""
        return bool(self._cancelled)

    async def abort(self) -> None:
        """Cancel what has begun: that was no attempt. Handlers in threads cannot be cancelled: their leases stay."""
        unbegun = [*self._unbegun, *self._ready]
        self._ready.clear()
        for runner in self._runners:
            runner.cancel()
        await asyncio.gather(*self._runners, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARTING):
                for one in self._returned:
                    await self._settle(*one)
        given_back = unbegun + (self._cancelled if self._subscription.is_async else [])
        await self._settler.part([(lease, message.id) for lease, message in given_back])

    def close(self) -> None:
        self._handling.close()

    async def _run(self) -> None:
        """Work through what is ready. As many of these run as there may be handlers at a time."""
        try:
            if self._handling.is_plain:
                await self._work_plainly()
            while self._ready:
                if self._company.is_closed:
                    await self._company.opened()
                    continue
                if self._beside and len(self._runners) > self._slots:
                    return
                deliveries = self._take()
                self._company.running += 1
                try:
                    await self._handle(self._still_ours(deliveries))
                except Exception:
                    self._lose(deliveries)
                    raise
                finally:
                    self._in_hand -= len(deliveries)
                    self._freed.set()
                    self._company.left()
        finally:
            # Now, not when the task's callbacks run: what is accepted in between needs a new runner.
            self._runners.discard(asyncio.current_task())

    async def _work_plainly(self) -> None:
        """Do the same in one coroutine, for handlers of single messages with nothing around them.

        Most are of this kind, and the way through the other methods takes longer than all else that Python does
        for a message.
        """
        company = self._company
        while self._ready:
            if company.is_closed:
                await company.opened()
                continue
            if self._beside and len(self._runners) > self._slots:
                return
            lease, message = self._ready.popleft()
            company.running += 1
            outcome: Outcome | None = None
            try:
                if lease.is_lost:
                    self._settler.forget(lease, message.id)
                    continue
                try:
                    payload = self._handling.call.payload(message)
                except NOT_DECODABLE as error:
                    outcome = not_decodable(error)
                else:
                    outcome = await self._handling.plain_outcome(payload, message)
                if outcome is ACK:
                    self._settler.ack(lease, message.id)
                else:
                    await self._settle(lease, message, outcome)
            except Exception:
                self._lose([(lease, message)])
                raise
            except asyncio.CancelledError:
                self._note_cancelled(lease, message, outcome)
                raise
            finally:
                self._in_hand -= 1
                self._freed.set()
                company.left()

    def _note_cancelled(self, lease: ClaimedLease, message: Message, outcome: Outcome | None) -> None:
        if outcome is None:
            self._cancelled.append((lease, message))
        else:
            self._returned.append((lease, message, outcome))

    def _has_ended(self, runner: asyncio.Task[None]) -> None:
        if not runner.cancelled() and (error := runner.exception()) is not None:
            if not self._failed.done():
                self._failed.set_exception(error)
            if not self._is_draining:
                self._start_runners(1)  # for what others have in hand

    def _lose(self, deliveries: Sequence[_Delivery]) -> None:
        """What becomes of these is not known: their leases end, of which nothing is acked but what is done."""
        for lease, message in deliveries:
            lease.is_lost = True
            if message.id in lease.in_hand:
                self._settler.forget(lease, message.id)

    async def failure(self) -> None:
        """Wait for a runner that fails, which only a bug of ours makes it do, and raise its error."""
        try:
            await asyncio.shield(self._failed)
        except asyncio.CancelledError:
            raise
        except Exception:
            self._failed = asyncio.get_running_loop().create_future()  # for the next one
            raise

    def _take(self) -> list[_Delivery]:
        if self._subscription.batch is None:
            return [self._ready.popleft()]
        return [self._ready.popleft() for _ in range(min(self._subscription.batch, len(self._ready)))]

    def _still_ours(self, deliveries: list[_Delivery]) -> list[_Delivery]:
        """Without those whose lease is known to be lost: they are somebody else's now."""
        for lease, message in deliveries:
            if lease.is_lost:
                self._settler.forget(lease, message.id)
        return [delivery for delivery in deliveries if not delivery[0].is_lost]

    async def _handle(self, deliveries: list[_Delivery]) -> None:
        returned: list[tuple[ClaimedLease, Message, Outcome]] | None = None
        try:
            outcomes = await self._outcomes_of(deliveries)
            returned = [(lease, message, outcome) for (lease, message), outcome in outcomes if outcome is not None]
            for lease, message, _ in (one for one in returned if one[2] is ACK):
                self._settler.ack(lease, message.id)
            returned = [one for one in returned if one[2] is not ACK]
            while returned:
                await self._settle(*returned[0])
                del returned[0]
        except asyncio.CancelledError:
            if returned is None:
                self._cancelled += deliveries
            else:
                self._returned += returned
            raise

    async def _outcomes_of(self, deliveries: list[_Delivery]) -> list[tuple[_Delivery, Outcome | None]]:
        """What becomes of messages; None where that is settled."""
        halts = self._halts
        decoded, payloads = await self._decode(deliveries)
        if not decoded:
            return []
        outcomes: Sequence[Outcome | None]
        if self._halts > halts:  # while others of the batch were given up
            outcomes = [Release()] * len(decoded)
        elif self._subscription.transactional:
            outcomes = await self._handle_transactionally(decoded, payloads)
        else:
            outcomes = await self._outcomes(decoded, payloads, None)
        return list(zip(decoded, outcomes, strict=True))

    async def _decode(self, deliveries: list[_Delivery]) -> tuple[list[_Delivery], list[Any]]:
        """Payloads as the handler wants them. What does not decode never will: it is given up at once."""
        decoded, payloads = [], []
        for delivery in deliveries:
            try:
                payloads.append(self._handling.call.payload(delivery[1]))
                decoded.append(delivery)
            except NOT_DECODABLE as error:
                await self._settle(*delivery, not_decodable(error))
        return decoded, payloads

    async def _outcomes(self, deliveries: list[_Delivery], payloads: list[Any], conn: Any) -> Sequence[Outcome | None]:
        return await self._handling.outcomes([message for _, message in deliveries], payloads, conn)

    async def _handle_transactionally(
        self, deliveries: list[_Delivery], payloads: list[Any]
    ) -> Sequence[Outcome | None]:
        """Run the handler in the transaction in which its messages are acked. None: settled, or lost."""
        outcomes: Sequence[Outcome | None] = []
        mark, halts = secrets.token_hex(8), self._halts
        try:
            async with self._store.transaction(mark) as conn:
                if self._halts > halts:  # while we waited for the connection
                    return [Release()] * len(deliveries)
                outcomes = await self._outcomes(deliveries, payloads, conn)
                if any(outcome is not ACK for outcome in outcomes):
                    raise _RolledBack
                await self._ack_within(conn, mark, deliveries)
        except _RolledBack:
            # What the handler did is undone, for the whole batch: nothing of it may count as done.
            return [Retry() if outcome is ACK else outcome for outcome in outcomes]
        except (LeaseLost, CommitUnknown) as error:
            event(logging.WARNING, "message.undone", topic=self._subscription.topic,
                  messages=[message.id for _, message in deliveries], error=error.message)  # fmt: skip
        except DatabaseUnavailable as error:
            # A handler that was not even called has made no attempt.
            again = Retry(error=self._handling.described(error)) if outcomes else Release()
            return [again] * len(deliveries)
        except Exception as error:
            return [Retry(error=self._handling.described(error))] * len(deliveries)
        for lease, message in deliveries:
            self._settler.forget(lease, message.id)
        return [None] * len(deliveries)

    async def _ack_within(self, conn: Any, mark: str, deliveries: list[_Delivery]) -> None:
        """Ack in the handler's transaction; lease by lease, in the order in which all others lock them."""
        by_lease: dict[ClaimedLease, list[int]] = {}
        for lease, message in deliveries:
            by_lease.setdefault(lease, []).append(message.id)
        for lease in sorted(by_lease, key=lambda lease: lease.token):
            if lost := await self._store.ack_within(lease.token, by_lease[lease], conn, mark):
                raise LeaseLost(f"the lease of messages {sorted(lost)} is lost")

    async def _settle(self, lease: ClaimedLease, message: Message, outcome: Outcome) -> None:
        """Settle other than by an ack. While the database is away, this waits for it."""
        backoff = Backoff()
        while True:
            try:
                match outcome:
                    case Retry(error=error):
                        wait = self._handling.retry_delay(outcome, message.attempt)
                        await self._settler.retry(lease, message, wait, error, self._handling.max_attempts)
                    case DeadLetter(reason=reason, error=error):
                        await self._settler.dead_letter(lease, message, reason, error)
                    case Release():
                        await self._settler.release(lease, [message.id])
                return
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.next())


class _RolledBack(Exception):
    """Leaves a transaction whose handler did not succeed."""
