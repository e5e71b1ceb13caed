"""Calls a handler, and turns what it returns or raises into an outcome."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from postbus._db.database import clean
from postbus.errors import InvalidOption, PayloadNotDecodable, UnreadableEvent
from postbus.message import Ack, DeadLetter, Message, Outcome, Release, Retry
from postbus.middleware import Middleware, handling
from postbus.options import Duration, as_timedelta
from postbus.subscription import HandlerCall, Subscription

ACK = Ack()
NOT_DECODABLE = (PayloadNotDecodable, UnicodeDecodeError)


class Handling:
    """Calls the handler of one subscription."""

    def __init__(self, subscription: Subscription, middleware: Sequence[Middleware] = ()) -> None:
        self.subscription = subscription
        self.call = HandlerCall.of(subscription)
        self._middleware = middleware
        self.is_plain = (
            subscription.is_async
            and subscription.batch is None
            and subscription.timeout is None
            and not subscription.transactional
            and not middleware
        )
        """The handler takes one message, and needs no thread, no timeout, no connection and no middleware."""
        self._threads = (
            None
            if subscription.is_async
            else ThreadPoolExecutor(subscription.concurrency, thread_name_prefix=f"postbus-{subscription.topic}")
        )

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def plain_outcome(self, payload: Any, message: Message | None) -> Outcome:
        """Do what `outcomes` does, for a plain handler. Most handlers are plain, so this is one coroutine only.

        `message` may be None if the handler does not take it.
        """
        parameter = self.call.message_parameter
        try:
            named = {parameter: message} if parameter else {}
            returned = await self.subscription.handler(payload, **named)
            return ACK if returned is None else self._as_outcomes(returned, 1)[0]
        except BaseException as error:
            return self.as_retry(error)

    async def outcomes(self, messages: Sequence[Message], payloads: list[Any], conn: Any) -> Sequence[Outcome]:
        """Call the handler with messages whose payloads are decoded. Returns an outcome for each."""
        count = len(payloads)  # the handler may change the list
        return await self.outcomes_unless_acked(messages, payloads, conn) or [ACK] * count

    async def outcomes_unless_acked(
        self, messages: Sequence[Message], payloads: list[Any], conn: Any
    ) -> Sequence[Outcome] | None:
        """Do what `outcomes` does, but return None for a handler that returned nothing: all messages are acked.

        Most calls end like that.
        """
        count = len(payloads)
        try:
            returned = await self._call(messages, payloads, conn)
            return None if returned is None else self._as_outcomes(returned, count)
        except BaseException as error:
            return [self.as_retry(error)] * count

    def as_retry(self, error: BaseException) -> Retry:
        """Turn the error of a handler or a filter into a retry. Raises the error if it is meant to end our own task.

        All others are failures of the handler, even a `SystemExit`.
        """
        task = asyncio.current_task()
        is_cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
        if is_cancelled or isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise error
        return Retry(error=self.described(error))

    def described(self, error: BaseException) -> str:
        timeout = self.subscription.timeout
        if isinstance(error, TimeoutError) and timeout is not None:
            return f"{self.subscription.name} took longer than {timeout} s"
        return clean("".join(traceback.format_exception(error))[-4000:])

    def retry_delay(self, retry: Retry, attempt: int) -> timedelta | None:
        """How long to wait before the next attempt. None leaves that to the topic's policy."""
        policy = self.subscription.retry
        return policy.delay(attempt) if retry.delay is None and policy else as_delay(retry.delay)

    @property
    def max_attempts(self) -> int | None:
        """The limit of the subscription's own retry policy."""
        return self.subscription.retry.max_attempts if self.subscription.retry else None

    async def _call(self, messages: Sequence[Message], payloads: list[Any], conn: Any) -> Any:
        is_batch = self.subscription.batch is not None
        named = self.call.named_arguments(list(messages) if is_batch else messages[0], conn)
        payload = payloads if is_batch else payloads[0]

        async def run() -> Any:
            if self._threads is None:
                return await self.subscription.handler(payload, **named)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._call_in_thread, payload, named)

        if self.subscription.timeout is None:
            return await (handling(self._middleware, messages, run) if self._middleware else run())
        async with asyncio.timeout(self.subscription.timeout):
            return await handling(self._middleware, messages, run)

    def _call_in_thread(self, payload: Any, named: dict[str, Any]) -> Any:
        try:
            return self.subscription.handler(payload, **named)
        except StopIteration as error:  # no future can hold it
            raise RuntimeError("the handler raised StopIteration") from error

    def _as_outcomes(self, returned: Any, count: int) -> Sequence[Outcome]:
        if returned is None or isinstance(returned, Ack):
            return [ACK] * count
        if isinstance(returned, Retry):
            return [Retry(delay=as_delay(returned.delay), error=_as_text(returned.error))] * count
        if isinstance(returned, DeadLetter):
            return [DeadLetter(reason=str(returned.reason), error=_as_text(returned.error))] * count
        if isinstance(returned, Release):
            return [returned] * count
        if self.subscription.batch is not None and isinstance(returned, list | tuple) and len(returned) == count:
            return [self._as_outcomes(one, 1)[0] for one in returned]
        wrong = f"{self.subscription.name} returned {returned!r:.200}, which is not an outcome"
        return [DeadLetter(reason=wrong)] * count


def not_decodable(error: Exception) -> DeadLetter:
    """The outcome of a message whose payload does not decode. It never will, so the message is given up at once."""
    return DeadLetter(
        reason=str(error) if isinstance(error, UnreadableEvent) else f"the payload does not decode: {error}"
    )


_LONGEST_DELAY = timedelta(days=36600)


def as_delay(delay: Duration | None) -> timedelta | None:
    """Convert a delay, and refuse one that the database would not take."""
    if delay is None:
        return None
    wait = as_timedelta(delay, name="delay")
    if not timedelta(0) <= wait <= _LONGEST_DELAY:
        raise InvalidOption(f"delay {wait} is negative or longer than a century", remedy="give a delay in between")
    return wait


def _as_text(error: object) -> str | None:
    return None if error is None else str(error)
