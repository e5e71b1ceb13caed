"""A consuming process: everything that runs between `bus.run()` and its return."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from postbus._claim import Claimer
from postbus._dispatch import Dispatcher
from postbus._log import event
from postbus._loop import repeat
from postbus._settle import Settler
from postbus._store import Store
from postbus._upkeep import (
    HEARTBEAT,
    LOOK_AT_LEASES,
    RETURN_EXPIRED,
    SWEEP,
    Heartbeat,
    LeaseKeeper,
    Sweeper,
)
from postbus._wake import Bells, Listener, topic_id
from postbus.errors import PostbusError
from postbus.middleware import Middleware
from postbus.subscription import Subscription


class Worker:
    """Consumes for a number of subscriptions until it is told to stop.

    The first stop drains: nothing more is claimed, what runs is finished and settled, what has not begun
    is given back. The second aborts: handlers are cancelled, and their messages come back when the leases end.
    """

    def __init__(
        self,
        dsn: str,
        subscriptions: Sequence[Subscription],
        *,
        bells: Bells,
        middleware: Sequence[Middleware] = (),
        name: str | None = None,
    ) -> None:
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._dsn = dsn
        self._subscriptions = subscriptions
        self._middleware = middleware
        self._bells = bells
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()

    def stop(self) -> None:
        """Drain and end; called again: abort."""
        if self._stop.is_set():
            self._abort.set()
        event(logging.INFO, "worker.aborting" if self._abort.is_set() else "worker.stopping", worker=self.name)
        self._stop.set()
        self._bells.ring_all()

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def was_aborted(self) -> bool:
        return self._abort.is_set()

    async def run(self) -> None:
        """Consume until stopped. Raises what made it impossible to go on."""
        transactional = [one for one in self._subscriptions if one.transactional]
        stores = [await Store.open(self._dsn)]
        try:
            stores.append(await Store.open(self._dsn, size=2))
            stores.append(await Store.open(self._dsn, size=max(sum(one.concurrency for one in transactional), 1)))
            for subscription in self._subscriptions:
                await stores[0].ensure_topic(subscription.topic)
            with _signals(self.stop):
                await self._consume(*stores)
        finally:
            for store in stores:
                if self._abort.is_set():
                    store.terminate()
                else:
                    await store.close()

    async def _consume(self, store: Store, upkeep_store: Store, handler_store: Store) -> None:
        settler = Settler(store, lambda topic: self._bells.ring(topic_id(topic)))
        dispatchers = [Dispatcher(one, handler_store, settler, self._middleware) for one in self._subscriptions]
        claimers = [
            Claimer(one, store, dispatcher, settler, member=self.name, bell=self._bells.add(one.topic))
            for one, dispatcher in zip(self._subscriptions, dispatchers, strict=True)
        ]
        heartbeat = Heartbeat(upkeep_store, self.name, sorted({one.topic for one in self._subscriptions}))
        keeper, sweeper = LeaseKeeper(upkeep_store, settler), Sweeper(upkeep_store)
        ended = asyncio.Event()
        upkeep = _started(
            settler.run(),
            Listener(self._dsn, self._bells).run(ended),
            repeat(heartbeat.tick, name="heartbeat", every=HEARTBEAT, stop=ended),
            repeat(keeper.tick, name="leases", every=LOOK_AT_LEASES, stop=ended),
            repeat(sweeper.return_expired, name="return expired", every=RETURN_EXPIRED, stop=ended),
            repeat(sweeper.sweep, name="sweep", every=SWEEP, stop=ended),
        )
        upkeep += _started(*(dispatcher.failure() for dispatcher in dispatchers))
        claiming = _started(*(claimer.run(self._stop) for claimer in claimers))
        event(
            logging.INFO,
            "worker.started",
            worker=self.name,
            topics=[one.topic for one in self._subscriptions],
        )
        try:
            await _over(self._stop.wait(), beside=[*claiming, *upkeep])
            for dispatcher in dispatchers:
                dispatcher.want_no_more()
            await _over(_drain(claiming, dispatchers, settler), self._abort.wait(), beside=upkeep)
        finally:
            for task in (*claiming, *upkeep):
                task.cancel()
            for dispatcher in dispatchers:
                await dispatcher.abort()
                dispatcher.close()
            await asyncio.gather(*claiming, *upkeep, return_exceptions=True)
            await _leave_quietly(heartbeat.sign_off())
        event(logging.INFO, "worker.stopped", worker=self.name)


async def _drain(claiming: Sequence[asyncio.Task[None]], dispatchers: Sequence[Dispatcher], settler: Settler) -> None:
    # A claim that is under way must be awaited: what it brings has to be given back.
    await asyncio.gather(*claiming)
    await asyncio.gather(*(dispatcher.drain() for dispatcher in dispatchers))
    await settler.settled()


async def _over(*ends: Coroutine[Any, Any, Any], beside: Sequence[asyncio.Task[None]]) -> None:
    """Wait until one of the ends is reached. A task beside it that fails ends the worker with its error."""
    ending = [asyncio.create_task(end) for end in ends]
    try:
        while not any(end.done() for end in ending):
            running = [task for task in (*ending, *beside) if not task.done()]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in (*ending, *beside):
                if task.done():
                    task.result()
    finally:
        for end in ending:
            end.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


def _started(*coroutines: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(one, name=f"postbus-{getattr(one, '__qualname__', one)}") for one in coroutines]


async def _leave_quietly(farewell: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(2):
            await farewell
    except (PostbusError, TimeoutError):
        pass  # the sweep removes us


class _signals:
    """Stop on SIGINT and SIGTERM, where the event loop can be told of them."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._is_main:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self._stop)

    def __exit__(self, *error: object) -> None:
        if self._is_main:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().remove_signal_handler(number)
