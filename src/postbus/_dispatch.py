"""Dispatching: claimed messages to handlers, never more at a time than there are slots."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from postbus._log import event
from postbus._loop import Backoff
from postbus._settle import HeldLease, Settler
from postbus._store import Store, clean
from postbus.errors import CommitUnknown, DatabaseUnavailable, InvalidOption, LeaseLost, PayloadNotDecodable
from postbus.message import Ack, DeadLetter, Message, Outcome, Release, Retry
from postbus.middleware import Middleware, handling
from postbus.options import as_timedelta
from postbus.subscription import HandlerCall, Subscription

_Delivery = tuple[HeldLease, Message]
_ACK = Ack()
_MOMENT = 0.005  # seconds


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
        self._call = HandlerCall.of(subscription)
        self._store = store
        self._settler = settler
        self._middleware = middleware
        self._ready: deque[_Delivery] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._runner_name = f"postbus-handler-{subscription.name}"
        self._is_plain = (
            subscription.is_async
            and subscription.batch is None
            and subscription.timeout is None
            and not subscription.transactional
            and not middleware
        )
        self._in_hand = 0
        self._unsettled = 0
        self._freed = asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_draining = False
        self._threads = (
            None
            if subscription.is_async
            else ThreadPoolExecutor(subscription.concurrency, thread_name_prefix=f"postbus-{subscription.topic}")
        )

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
        while self.room <= 0 and not self._is_draining:
            self._freed.clear()
            await self._freed.wait()
        if self._is_draining:
            return 0
        try:
            async with asyncio.timeout(_MOMENT):
                while self.room * 2 < self._subscription.slots:
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            pass
        return self.room

    def want_no_more(self) -> None:
        """Let a claimer that waits for room go."""
        self._is_draining = True
        self._freed.set()

    def was_settled(self, count: int) -> None:
        """Messages of ours have been settled."""
        self._unsettled -= count
        self._freed.set()

    def accept(self, lease: HeldLease, messages: Sequence[Message]) -> None:
        """Take what was claimed. The caller has asked for no more than is free."""
        self._in_hand += len(messages)
        self._unsettled += len(messages)
        self._ready.extend((lease, message) for message in messages)
        self._start_runners(1)

    def _start_runners(self, count: int) -> None:
        """Start some, and in the next moment twice as many if work is left then.

        Handlers that wait for nothing need one runner for all that is ready, and each runner costs time.
        """
        wanted = math.ceil(len(self._ready) / (self._subscription.batch or 1))
        for _ in range(min(self._subscription.concurrency - len(self._runners), wanted, count)):
            runner = asyncio.create_task(self._run(), name=self._runner_name)
            self._runners.add(runner)
            runner.add_done_callback(self._has_ended)
        if wanted > count and len(self._runners) < self._subscription.concurrency:
            asyncio.get_running_loop().call_soon(self._start_runners, 2 * count)

    async def drain(self) -> None:
        """Give back what has not begun, and wait for what has."""
        unbegun: dict[HeldLease, list[int]] = {}
        for lease, message in self._ready:
            unbegun.setdefault(lease, []).append(message.id)
        self._in_hand -= len(self._ready)
        self._ready.clear()
        for lease, message_ids in unbegun.items():
            with contextlib.suppress(DatabaseUnavailable):  # then the lease ends by itself
                await self._settler.release(lease, message_ids)
        await asyncio.gather(*self._runners)

    async def abort(self) -> None:
        """Cancel what has begun. Their leases end by themselves."""
        self._ready.clear()
        for runner in self._runners:
            runner.cancel()
        await asyncio.gather(*self._runners, return_exceptions=True)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        """Work through what is ready. As many of these run as there may be handlers at a time."""
        try:
            if self._is_plain:
                await self._work_plainly()
            while self._ready:
                deliveries = self._take()
                try:
                    await self._handle(self._still_ours(deliveries))
                finally:
                    self._in_hand -= len(deliveries)
                    self._freed.set()
        finally:
            # Now, not when the task's callbacks run: what is accepted in between needs a new runner.
            self._runners.discard(asyncio.current_task())

    async def _work_plainly(self) -> None:
        """Do the same in one coroutine, for handlers of single messages with nothing around them.

        Most are of this kind, and the way through the other methods takes longer than all else that Python does
        for a message.
        """
        while self._ready:
            lease, message = self._ready.popleft()
            try:
                if lease.is_lost:
                    self._settler.forget(lease, message.id)
                    continue
                outcome = await self._plain_outcome(message)
                if outcome is _ACK:
                    self._settler.ack(lease, message.id)
                else:
                    await self._settle(lease, message, outcome)
            finally:
                self._in_hand -= 1
                self._freed.set()

    async def _plain_outcome(self, message: Message) -> Outcome:
        call = self._call
        try:
            payload = call.decoder(message.payload, message.content_type) if call.decoder else message
        except (PayloadNotDecodable, UnicodeDecodeError) as error:
            return DeadLetter(reason=f"the payload does not decode: {error}")
        try:
            named = {call.message_parameter: message} if call.message_parameter else {}
            returned = await self._subscription.handler(payload, **named)
            return _ACK if returned is None else self._as_outcomes(returned, 1)[0]
        except (Exception, asyncio.CancelledError) as error:
            return self._as_retry(error)

    def _as_retry(self, error: BaseException) -> Retry:
        """What an error of a handler means. Raises it if it is us who are cancelled, not the handler."""
        if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise error
        return Retry(error=_described(error, self._subscription))

    def _has_ended(self, runner: asyncio.Task[None]) -> None:
        if not runner.cancelled() and (error := runner.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def failure(self) -> None:
        """Wait for a runner that fails, which only a bug of ours makes it do, and raise its error."""
        await self._failed

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
        decoded, payloads = await self._decode(deliveries)
        if not decoded:
            return
        if self._subscription.transactional:
            outcomes = await self._handle_transactionally(decoded, payloads)
        else:
            outcomes = await self._outcomes(decoded, payloads, None)
        for (lease, message), outcome in zip(decoded, outcomes, strict=True):
            if outcome is _ACK:
                self._settler.ack(lease, message.id)
            elif outcome is not None:
                await self._settle(lease, message, outcome)

    async def _decode(self, deliveries: list[_Delivery]) -> tuple[list[_Delivery], list[Any]]:
        """Payloads as the handler wants them. What does not decode never will: it is given up at once."""
        decode = self._call.decoder
        if decode is None:
            return deliveries, [message for _, message in deliveries]
        decoded, payloads = [], []
        for delivery in deliveries:
            message = delivery[1]
            try:
                payloads.append(decode(message.payload, message.content_type))
                decoded.append(delivery)
            except (PayloadNotDecodable, UnicodeDecodeError) as error:
                await self._settle(*delivery, DeadLetter(reason=f"the payload does not decode: {error}"))
        return decoded, payloads

    async def _outcomes(self, deliveries: list[_Delivery], payloads: list[Any], conn: Any) -> Sequence[Outcome | None]:
        try:
            returned = await self._call_handler([message for _, message in deliveries], payloads, conn)
            return self._as_outcomes(returned, len(deliveries))
        except (Exception, asyncio.CancelledError) as error:
            return [self._as_retry(error)] * len(deliveries)

    async def _call_handler(self, messages: list[Message], payloads: list[Any], conn: Any) -> Any:
        is_batch = self._subscription.batch is not None
        named = self._call.named_arguments(messages if is_batch else messages[0], conn)
        payload = payloads if is_batch else payloads[0]

        async def run() -> Any:
            if self._threads is None:
                return await self._subscription.handler(payload, **named)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._call_in_thread, payload, named)

        if self._subscription.timeout is None:
            return await (handling(self._middleware, messages, run) if self._middleware else run())
        async with asyncio.timeout(self._subscription.timeout):
            return await handling(self._middleware, messages, run)

    def _call_in_thread(self, payload: Any, named: dict[str, Any]) -> Any:
        try:
            return self._subscription.handler(payload, **named)
        except StopIteration as error:  # which no future can hold
            raise RuntimeError("the handler raised StopIteration") from error

    def _as_outcomes(self, returned: Any, count: int) -> Sequence[Outcome]:
        if returned is None or isinstance(returned, Ack):
            return [_ACK] * count
        if isinstance(returned, Retry):
            return [Retry(delay=_as_delay(returned.delay), error=_as_text(returned.error))] * count
        if isinstance(returned, DeadLetter):
            return [DeadLetter(reason=str(returned.reason), error=_as_text(returned.error))] * count
        if isinstance(returned, Release):
            return [returned] * count
        if self._subscription.batch is not None and isinstance(returned, list | tuple) and len(returned) == count:
            return [self._as_outcomes(one, 1)[0] for one in returned]
        wrong = f"{self._subscription.name} returned {returned!r:.200}, which is not an outcome"
        return [DeadLetter(reason=wrong)] * count

    async def _handle_transactionally(
        self, deliveries: list[_Delivery], payloads: list[Any]
    ) -> Sequence[Outcome | None]:
        """Run the handler in the transaction in which its messages are acked. None: settled, or lost."""
        outcomes: Sequence[Outcome | None] = []
        try:
            async with self._store.transaction() as conn:
                outcomes = await self._outcomes(deliveries, payloads, conn)
                if any(outcome is not _ACK for outcome in outcomes):
                    raise _RolledBack
                await self._ack_within(conn, deliveries)
        except _RolledBack:
            # What the handler did is undone, for the whole batch: nothing of it may count as done.
            return [Retry() if outcome is _ACK else outcome for outcome in outcomes]
        except (LeaseLost, CommitUnknown) as error:
            event(logging.WARNING, "message.undone", topic=self._subscription.topic,
                  messages=[message.id for _, message in deliveries], error=error.message)  # fmt: skip
        except DatabaseUnavailable as error:
            # A handler that was not even called has made no attempt.
            again = Retry(error=_described(error, self._subscription)) if outcomes else Release()
            return [again] * len(deliveries)
        except Exception as error:
            return [Retry(error=_described(error, self._subscription))] * len(deliveries)
        for lease, message in deliveries:
            self._settler.forget(lease, message.id)
        return [None] * len(deliveries)

    async def _ack_within(self, conn: Any, deliveries: list[_Delivery]) -> None:
        """Ack in the handler's transaction; lease by lease, in the order in which all others lock them."""
        by_lease: dict[HeldLease, list[int]] = {}
        for lease, message in deliveries:
            by_lease.setdefault(lease, []).append(message.id)
        for lease in sorted(by_lease, key=lambda lease: lease.token):
            if lost := await self._store.ack(lease.token, by_lease[lease], conn):
                raise LeaseLost(f"the lease of messages {sorted(lost)} is lost")

    async def _settle(self, lease: HeldLease, message: Message, outcome: Outcome) -> None:
        """Settle other than by an ack. While the database is away, this waits for it."""
        backoff = Backoff()
        while True:
            try:
                match outcome:
                    case Retry(delay=delay, error=error):
                        policy = self._subscription.retry
                        wait = policy.delay(message.attempt) if delay is None and policy else _as_delay(delay)
                        limit = policy.max_attempts if policy else None
                        await self._settler.retry(lease, message, wait, error, limit)
                    case DeadLetter(reason=reason, error=error):
                        await self._settler.dead_letter(lease, message, reason, error)
                    case Release():
                        await self._settler.release(lease, [message.id])
                return
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.next())


class _RolledBack(Exception):
    """Leaves a transaction whose handler did not succeed."""


_LONGEST_DELAY = timedelta(days=36600)


def _as_delay(delay: timedelta | float | None) -> timedelta | None:
    """A delay that the database takes; raises what is wrong with others."""
    if delay is None:
        return None
    wait = as_timedelta(delay, name="delay")
    if not timedelta(0) <= wait <= _LONGEST_DELAY:
        raise InvalidOption(f"delay {wait} is negative or longer than a century", remedy="give one in between")
    return wait


def _as_text(error: object) -> str | None:
    return None if error is None else str(error)


def _described(error: BaseException, subscription: Subscription) -> str:
    if isinstance(error, TimeoutError) and subscription.timeout is not None:
        return f"{subscription.name} took longer than {subscription.timeout} s"
    return clean("".join(traceback.format_exception(error))[-4000:])
