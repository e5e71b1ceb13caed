"""Restarts the parts of consumers that fail."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable

from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff, pause
from postbus.errors import PostbusError


class Restarter:
    """Restarts a failed part of a consumer, later each time, so that it does not end the other consumers.

    If the process has only one consumer, the process ends with the error: whoever started it learns of it.
    """

    def __init__(self, worker: str, is_only_consumer: Callable[[], bool], stop: asyncio.Event) -> None:
        self._worker = worker
        self.is_only_consumer = is_only_consumer
        self._stop = stop

    async def run(
        self, topic: str, part: Callable[[], Awaitable[None]], on_failure: Callable[[], None] = lambda: None
    ) -> None:
        """Run a part until it returns. `on_failure` is called before each new start."""
        backoff = Backoff()
        while True:
            try:
                return await part()
            except Exception as error:
                if self.is_only_consumer():
                    raise
                wait = backoff.next()
                self.log_failure(topic, error, wait)
                on_failure()
                await pause(wait, self._stop)

    def log_failure(self, topic: str, error: Exception, wait: float) -> None:
        is_known = isinstance(error, PostbusError)
        event(logging.ERROR, "consumer.failed", worker=self._worker, topic=topic, retry_in=f"{wait:.2f}s",
              error=str(error) if is_known else "".join(traceback.format_exception(error)))  # fmt: skip
