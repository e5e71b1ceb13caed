"""A consuming process: everything that runs between `bus.run()` and its return."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import NamedTuple

from postbus._db.process import process_name
from postbus._db.store import Store
from postbus._group.started_groups import StartedGroups
from postbus._handling.isolation import SuspectRunner, SuspectSource
from postbus._maintenance.heartbeat import CONNECTIONS
from postbus._maintenance.lease_extender import EXTEND_LEASES, LeaseExtender
from postbus._maintenance.sweeper import Sweeper
from postbus._queue.consumers import QueueConsumers, check_is_queue
from postbus._runtime.log_events import event
from postbus._runtime.loop import Stopped, patiently, repeat
from postbus._runtime.restarter import Restarter
from postbus._runtime.tasks import attempt, cancel_all, first_of, start_all, stop_on_signals
from postbus._wakeup.listener import Listener
from postbus._wakeup.waiters import Wakers
from postbus.errors import WrongSemantics
from postbus.group import Group
from postbus.middleware import Middleware
from postbus.scope import Scope
from postbus.start import Start
from postbus.subscription import Subscription

_SIGN_OFF = 2.0  # seconds, at most; if it fails, the sweep removes the process

_running: weakref.WeakSet[Worker] = weakref.WeakSet()


def workers_of(source: str) -> list[Worker]:
    """The workers of this event loop that consume from a database, for all buses."""
    loop = asyncio.get_running_loop()
    return [one for one in _running if one.loop is loop and one.source == source]


class _Stores(NamedTuple):
    """Pools of connections, so that none of these waits for another."""

    main: Store
    upkeep: Store
    handlers: Store
    heartbeat: Store


class Worker:
    """Consumes for a number of subscriptions and groups until it is stopped.

    The first stop drains: the worker claims nothing more, releases messages whose handlers have not begun, and waits
    for those that have. The second stop, or the end of `drain_timeout`, aborts: the worker cancels handlers, which is
    no attempt, and releases their messages. It still settles messages whose handlers have finished by then.
    """

    def __init__(
        self,
        dsn: str,
        subscriptions: Sequence[Subscription],
        *,
        groups: Sequence[tuple[Group, Start]] = (),
        wakers: Wakers,
        middleware: Sequence[Middleware] = (),
        name: str | None = None,
        drain_timeout: float | None = None,
    ) -> None:
        self.name = process_name(name)
        self._dsn = dsn
        self._subscriptions = subscriptions
        self._middleware = middleware
        self._wakers = wakers
        self._groups: dict[Group, Start] = dict(groups)
        self._stores: _Stores | None = None
        self._queue_consumers: QueueConsumers | None = None
        self._started_groups: StartedGroups | None = None
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()
        self._was_cut_short = False
        self._drain_timeout = drain_timeout
        self._restarter = Restarter(self.name, self._has_one_consumer, self._stop)
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def source(self) -> str | None:
        """The database that it consumes from, or None before it is connected."""
        return None if self._stores is None else self._stores.main.source

    def stop(self) -> None:
        """Drain and end. If it is called again, abort."""
        if self._stop.is_set():
            self._abort.set()
        event(logging.INFO, "worker.aborting" if self._abort.is_set() else "worker.stopping", worker=self.name)
        self._stop.set()
        self._wakers.wake_all()

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def was_aborted(self) -> bool:
        """Whether a handler was cancelled."""
        return self._was_cut_short

    # groups and topics that change while it runs

    async def start_group(self, group: Group, start: Start) -> None:
        """Consume for a group: from now on, or as soon as the worker runs."""
        self._groups[group] = start
        if self._started_groups is not None:
            await self._started_groups.start(group, start)

    async def stop_group(self, group: Group) -> None:
        """Finish what a group has in hand here, and consume for it no longer."""
        self._groups.pop(group, None)
        if self._started_groups is not None:
            await self._started_groups.stop(group)

    async def halt(self, topic: str, group_name: str | None = None) -> None:
        """Begin with no more messages of a queue that is paused, or for a group that is no longer ACTIVE."""
        if group_name is None:
            if self._queue_consumers is not None:
                await self._queue_consumers.halt(topic)
        elif self._started_groups is not None:
            await self._started_groups.halt(topic, group_name)

    async def halt_scope(self, group_name: str, scope: Scope) -> None:
        """Begin with no more messages for a group of a wide scope, in all topics of it."""
        if self._started_groups is not None:
            await self._started_groups.halt_scope(group_name, scope)

    # running

    async def run(self, *, signals: bool = True) -> None:
        """Consume until stopped. Raises the error that made it impossible to go on."""
        opened: list[Store] = []
        self.loop = asyncio.get_running_loop()
        _running.add(self)
        try:
            with stop_on_signals(self.stop) if signals else nullcontext():
                await self._consume(await self._open(opened))
        except Stopped:
            event(logging.INFO, "worker.stopped", worker=self.name, reason="it was still waiting for the server")
        finally:
            _running.discard(self)
            if self._started_groups is not None:
                await self._started_groups.close()
            for store in opened:
                if self._abort.is_set():
                    store.terminate()
                else:
                    await store.close()

    async def _open(self, opened: list[Store]) -> _Stores:
        """Connect. The bus has connected before, so if the server is away now, this waits for it."""
        handlers = [
            *self._subscriptions,
            *(member.subscription for group in self._groups for member in group.members.values()),
        ]
        transactional = [one for one in handlers if one.transactional]
        for size in (10, 2, 8 + sum(one.concurrency for one in transactional), CONNECTIONS):
            opened.append(await patiently(partial(Store.open, self._dsn, size=size), stop=self._stop))
        stores = _Stores(*opened)
        for subscription in self._subscriptions:
            await patiently(partial(stores.main.ensure_topic, subscription.topic), stop=self._stop)
            try:
                await patiently(partial(check_is_queue, stores.main, subscription), stop=self._stop)
            except WrongSemantics:
                if self._has_one_consumer():
                    raise  # otherwise its claims log the error, and the other consumers work
        self._stores = stores
        return stores

    async def _consume(self, stores: _Stores) -> None:
        queues, groups = self._make_consumers(stores)
        await patiently(groups.heartbeat.tick, stop=self._stop)  # the database gives lanes to processes that it knows
        await groups.join_all()
        ended = asyncio.Event()
        suspects = self._suspect_runner(queues, groups)
        upkeep = start_all(
            queues.settler.run(),
            *groups.upkeep(ended),
            repeat(
                LeaseExtender(stores.heartbeat, queues.settler.leases).tick,
                name="leases",
                every=EXTEND_LEASES,
                stop=ended,
            ),
            *(job.run(ended) for job in Sweeper(stores.upkeep).jobs),
            *queues.watch(),
        )
        if stores.main.is_pooled:  # a pooler may give the connection that listens to another client
            event(logging.INFO, "wake.by_polling", worker=self.name, reason="a connection pooler is before the server")
        else:
            upkeep += start_all(Listener(self._dsn, self._wakers, groups.server_may_have_crashed).run(ended))
        claiming = start_all(
            repeat(suspects.tick, name="suspects", every=1.0, stop=self._stop), *queues.claim(self._stop)
        )
        event(
            logging.INFO,
            "worker.started",
            worker=self.name,
            topics=[one.topic for one in self._subscriptions],
            groups=[f"{group.name} on {group.topic}" for group in self._groups],
        )
        try:
            await first_of(self._stop.wait(), beside=[*claiming, *upkeep], growing=groups.background)
            queues.stop_claiming()
            await first_of(_drain(claiming, queues, groups, suspects), self._abort_is_due(), beside=upkeep)
        finally:
            await cancel_all([*claiming, *upkeep])
            await suspects.abort()
            await groups.abort()  # nothing takes lanes any more
            await queues.abort()
            self._was_cut_short = self._abort.is_set() and (groups.was_cut_short or queues.was_cut_short)
            await attempt(groups.heartbeat.sign_off(), seconds=_SIGN_OFF)
        event(logging.INFO, "worker.stopped", worker=self.name)

    def _make_consumers(self, stores: _Stores) -> tuple[QueueConsumers, StartedGroups]:
        known = [group.topic for group in self._groups if not group.scope.is_wide]
        self._queue_consumers = QueueConsumers(
            self._subscriptions,
            member=self.name,
            store=stores.main,
            handler_store=stores.handlers,
            middleware=self._middleware,
            wakers=self._wakers,
            restarter=self._restarter,
        )
        self._started_groups = StartedGroups(
            self._groups,
            worker=self.name,
            topics=sorted({one.topic for one in self._subscriptions} | set(known)),
            store=stores.main,
            upkeep_store=stores.upkeep,
            handler_store=stores.handlers,
            heartbeat_store=stores.heartbeat,
            middleware=self._middleware,
            wakers=self._wakers,
            restarter=self._restarter,
            stop=self._stop,
        )
        return self._queue_consumers, self._started_groups

    def _suspect_runner(self, queues: QueueConsumers, groups: StartedGroups) -> SuspectRunner:
        async def with_suspects() -> list[SuspectSource]:
            return [*await queues.with_suspects(), *groups.with_suspects()]

        return SuspectRunner(with_suspects, self._stop)

    def _has_one_consumer(self) -> bool:
        groups = len(self._groups) if self._started_groups is None else len(self._started_groups)
        return len(self._subscriptions) + groups < 2

    async def _abort_is_due(self) -> None:
        """Return when the worker is stopped again, or when `drain_timeout` is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_timeout):
                await self._abort.wait()
        if not self._abort.is_set():
            event(
                logging.WARNING, "worker.aborting", worker=self.name, reason="handlers did not end within drain_timeout"
            )
            self._abort.set()


async def _drain(
    claiming: Sequence[asyncio.Task[None]], queues: QueueConsumers, groups: StartedGroups, suspects: SuspectRunner
) -> None:
    # Wait for a claim that is under way: the messages that it brings have to be released.
    await asyncio.gather(*claiming)
    await asyncio.gather(groups.drain(), suspects.drain(), queues.drain())
    await queues.settler.settled()
