"""A consuming process: everything that runs between `bus.run()` and its return."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import traceback
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

from postbus._db.connect import process_name
from postbus._db.statements.scopes import Joined
from postbus._db.store import Store
from postbus._group.consumer import GroupConsumer
from postbus._group.lane_assignment import LaneAssigner
from postbus._group.log_reader import LogReader
from postbus._group.scope_watcher import ScopeWatcher, tell_bounded
from postbus._handling.isolation import Suspects, Suspicious
from postbus._handling.settler import Settler
from postbus._maintenance.heartbeat import CONNECTIONS, WRITE_COUNTS, ProcessHeartbeat
from postbus._maintenance.lease_extender import EXTEND_LEASES, LeaseExtender
from postbus._maintenance.sweeper import Sweeper, log_group_events
from postbus._queue.claimer import Claimer
from postbus._queue.dispatcher import Dispatcher
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff, patiently, pause, repeat
from postbus._wakeup.listener import Listener
from postbus._wakeup.waiters import Wakers, topic_id
from postbus.catch_up import CatchUp
from postbus.errors import DatabaseUnavailable, PostbusError, WrongSemantics
from postbus.group import Group
from postbus.middleware import Middleware
from postbus.scope import Scope
from postbus.start import Start
from postbus.subscription import Subscription

T = TypeVar("T")

_running: weakref.WeakSet[Worker] = weakref.WeakSet()


def workers_of(source: str) -> list[Worker]:
    """The workers of this event loop that consume from a database, whichever bus runs them."""
    loop = asyncio.get_running_loop()
    return [one for one in _running if one.loop is loop and one.source == source]


class _Stopped(Exception):
    """It was told to stop while it waited for the server."""


class Worker:
    """Consumes for a number of subscriptions until it is told to stop.

    The first stop drains: nothing more is claimed, what runs is finished and settled, what has not begun
    is given back. The second, or the end of `drain_timeout`, aborts: handlers are cancelled, which was no attempt, and
    their messages are given back. What other handlers have finished by then is settled all the same.
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
        self._stores: tuple[Store, Store, Store] | None = None
        self._assigner: LaneAssigner | None = None
        self._scopes: ScopeWatcher | None = None
        self._topics: list[str] = []
        self._claimers: list[Claimer] = []
        self._heartbeat: ProcessHeartbeat | None = None
        self._reader: LogReader | None = None
        self._beside: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()
        self._was_cut_short = False
        self._drain_timeout = drain_timeout
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def source(self) -> str | None:
        """Which database it consumes from, as soon as it is connected."""
        return None if self._stores is None else self._stores[0].source

    def stop(self) -> None:
        """Drain and end; called again: abort."""
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
        """Whether a handler that had begun was cancelled."""
        return self._was_cut_short

    async def run(self, *, signals: bool = True) -> None:
        """Consume until stopped. Raises what made it impossible to go on."""
        stores: list[Store] = []
        self.loop = asyncio.get_running_loop()
        _running.add(self)
        try:
            with _signals(self.stop) if signals else nullcontext():
                await self._open(stores)
                await self._consume(*stores)
        except _Stopped:
            event(logging.INFO, "worker.stopped", worker=self.name, reason="it was still waiting for the server")
        finally:
            _running.discard(self)
            for task in self._beside:
                task.cancel()
            await asyncio.gather(*self._beside, return_exceptions=True)
            for store in stores:
                if self._abort.is_set():
                    store.terminate()
                else:
                    await store.close()

    async def _open(self, stores: list[Store]) -> None:
        """Connect. Whoever cannot connect at all was told by the bus; from here on the server is waited for."""
        handlers = [*self._subscriptions, *(one for group in self._groups for one in _subscriptions_of(group))]
        transactional = [one for one in handlers if one.transactional]
        for size in (10, 2, 8 + sum(one.concurrency for one in transactional), CONNECTIONS):
            stores.append(await self._patiently(partial(Store.open, self._dsn, size=size)))
        for subscription in self._subscriptions:
            await self._patiently(partial(stores[0].ensure_topic, subscription.topic))
            try:
                await self._patiently(partial(_check_is_queue, stores[0], subscription))
            except WrongSemantics:
                if self._is_alone:
                    raise  # else its claims say so, again and again, and the other consumers work
        self._stores = stores[0], stores[1], stores[2]

    async def _consume(self, store: Store, upkeep_store: Store, handler_store: Store, heartbeat_store: Store) -> None:
        settler = Settler(store, lambda topic: self._wakers.wake(topic_id(topic)))
        dispatchers = [Dispatcher(one, handler_store, settler, self._middleware) for one in self._subscriptions]
        claimers = self._claimers = [
            Claimer(one, store, dispatcher, settler, member=self.name, waker=self._wakers.add(one.topic))
            for one, dispatcher in zip(self._subscriptions, dispatchers, strict=True)
        ]
        known = [group.topic for group in self._groups if not group.scope.is_wide]
        self._topics[:] = sorted({one.topic for one in self._subscriptions} | set(known))
        lanes = LaneAssigner(upkeep_store, store, heartbeat_store, self.name)
        heartbeat = ProcessHeartbeat(heartbeat_store, self.name, self._topics, lanes.leases.values)
        self._assigner, self._reader, self._heartbeat = lanes, LogReader(store), heartbeat
        self._scopes = ScopeWatcher(upkeep_store, lanes.consumers.keys, self._consume_for, lanes.tick)
        scope_waker = self._wakers.add_for_scopes()
        await self._patiently(heartbeat.tick)  # lanes go to processes that are known
        for group, start in list(self._groups.items()):  # others may start while these join
            try:
                await self._patiently(partial(self._join, group, start))
            except PostbusError as error:
                if self._is_alone:
                    raise
                self._beside.extend(_started(self._join_later(group, start, error)))
        extender = LeaseExtender(heartbeat_store, settler.leases)
        ended = asyncio.Event()
        upkeep = _started(
            settler.run(),
            repeat(heartbeat.tick, name="heartbeat", every=1.0, stop=ended),
            repeat(lanes.heartbeats.tick, name="group heartbeat", every=1.0, stop=ended),
            repeat(lanes.tell_counts, name="counts", every=WRITE_COUNTS, stop=ended),
            repeat(lanes.tick, name="lanes", every=1.0, stop=self._stop),
            repeat(self._scopes.tick, name="scopes", every=1.0, stop=self._stop, wake=scope_waker),
            self._assigner.cursor_writer.run(),
            repeat(extender.tick, name="leases", every=EXTEND_LEASES, stop=ended),
            *(job.run(ended) for job in Sweeper(upkeep_store).jobs),
        )
        if store.is_pooled:  # who listens there leaves that to whoever gets the server's connection next
            event(logging.INFO, "wake.by_polling", worker=self.name, reason="a connection pooler is before the server")
        else:
            upkeep += _started(Listener(self._dsn, self._wakers, self._was_cut_off).run(ended))
        upkeep += _started(
            *(
                self._outlive(one.topic, dispatcher.failure)
                for one, dispatcher in zip(self._subscriptions, dispatchers, strict=True)
            )
        )

        async def suspicious() -> list[Suspicious]:
            topics = await store.suspected([one.topic for one in self._subscriptions]) if claimers else []
            of_queues = [claimer for claimer in claimers if claimer.topic in topics]
            return [*of_queues, *(one for one in lanes.consumers.values() if one.has_suspects)]

        suspects = Suspects(suspicious, self._stop)
        claiming = _started(
            repeat(suspects.tick, name="suspects", every=1.0, stop=self._stop),
            *(
                self._outlive(one.topic, partial(claimer.run, self._stop))
                for one, claimer in zip(self._subscriptions, claimers, strict=True)
            ),
        )
        event(
            logging.INFO,
            "worker.started",
            worker=self.name,
            topics=[one.topic for one in self._subscriptions],
            groups=[f"{group.name} on {group.topic}" for group in self._groups],
        )
        try:
            await _over(self._stop.wait(), beside=[*claiming, *upkeep], more=self._beside)
            for dispatcher in dispatchers:
                dispatcher.want_no_more()
            draining = _drain(claiming, dispatchers, settler, self._assigner, suspects)
            await _over(draining, self._is_told_to_abort(), beside=upkeep)
        finally:
            for task in (*claiming, *upkeep):
                task.cancel()
            await asyncio.gather(*claiming, *upkeep, return_exceptions=True)
            await suspects.abort()
            await self._assigner.abort()  # when nothing takes lanes any more
            for dispatcher in dispatchers:
                await dispatcher.abort()
                dispatcher.close()
            was_cut_short = self._assigner.was_cut_short or any(one.was_cut_short for one in dispatchers)
            self._was_cut_short = self._abort.is_set() and was_cut_short
            await _leave_quietly(heartbeat.sign_off())
        event(logging.INFO, "worker.stopped", worker=self.name)

    async def _is_told_to_abort(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_timeout):
                await self._abort.wait()
        if not self._abort.is_set():
            event(
                logging.WARNING, "worker.aborting", worker=self.name, reason="handlers did not end within drain_timeout"
            )
            self._abort.set()

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await patiently(ask, stop=self._stop)
        except DatabaseUnavailable as error:
            raise _Stopped from error

    @property
    def _is_alone(self) -> bool:
        """Whether the process has one consumer. It ends with its error: whoever started it will know."""
        groups = len(self._groups) if self._assigner is None else max(len(self._groups), len(self._assigner.consumers))
        return len(self._subscriptions) + groups < 2

    async def _outlive(
        self, topic: str, run: Callable[[], Awaitable[None]], forget: Callable[[], None] = lambda: None
    ) -> None:
        """Run a part of a consumer. If it fails, start it again, later each time, while there are other consumers."""
        backoff = Backoff()
        while True:
            try:
                return await run()
            except Exception as error:
                if self._is_alone:
                    raise
                wait = backoff.next()
                self._tell_failure(topic, error, wait)
                forget()
                await pause(wait, self._stop)

    async def _join_later(self, group: Group, start: Start, error: PostbusError) -> None:
        """Join a group that could not be joined at first, as one whose topic is still a QUEUE, once that helps."""
        backoff = Backoff()
        while not self._stop.is_set() and group in self._groups:
            wait = backoff.next()
            self._tell_failure(group.topic, error, wait)
            await pause(wait, self._stop)
            try:
                await self.start_group(group, start)
            except DatabaseUnavailable:
                continue
            except PostbusError as again:
                error = again
                continue
            return

    def _tell_failure(self, topic: str, error: Exception, wait: float) -> None:
        known = isinstance(error, PostbusError)
        event(logging.ERROR, "consumer.failed", worker=self.name, topic=topic, retry_in=f"{wait:.2f}s",
              error=str(error) if known else "".join(traceback.format_exception(error)))  # fmt: skip

    def _was_cut_off(self) -> None:
        """A connection that is always there has broken: the server may have crashed."""
        if self._assigner is not None and self._reader is not None:
            self._reader.forget()
            self._assigner.lose_all()

    async def start_group(self, group: Group, start: Start) -> None:
        """Consume for a group, from now on or when the worker runs."""
        self._groups[group] = start
        if self._assigner is not None and self._heartbeat is not None:
            await self._join(group, start)
            await self._heartbeat.tick()
            await self._assigner.tick()

    async def stop_group(self, group: Group) -> None:
        """Finish what a group has in hand here, and consume for it no longer."""
        self._groups.pop(group, None)
        if self._assigner is not None and self._scopes is not None:
            self._scopes.remove(group)
            consumers = [self._assigner.consumer_of(one) for one in (group, *group.parts.values())]
            await asyncio.gather(*(self._assigner.remove(one) for one in consumers if one is not None))

    async def halt(self, topic: str, group_name: str | None = None) -> None:
        """Begin with no more messages of a queue that is paused, or for a group that is not ACTIVE any more."""
        if group_name is None:
            await asyncio.gather(*(one.halt() for one in self._claimers if one.topic == topic))
        else:
            groups = (one for group in self._groups for one in (group, *group.parts.values()))
            await self._halt_groups([one for one in groups if one.name == group_name and one.topic == topic])

    async def halt_scope(self, group_name: str, scope: Scope) -> None:
        """The same for a group of a wide scope, in all topics of it."""
        groups = [group for group in self._groups if group.name == group_name and group.scope == scope]
        await self._halt_groups([one for group in groups for one in (group, *group.parts.values())])

    async def _halt_groups(self, groups: Sequence[Group]) -> None:
        if self._assigner is not None:
            await self._assigner.halt(groups)

    async def _join(self, group: Group, start: Start) -> None:
        assert self._scopes is not None
        assert self._stores is not None
        if start.mode is not None:
            await self._scopes.add(group, start)
            group.is_started = True
            return
        upkeep_store = self._stores[1]
        info = await upkeep_store.subscribe(group.topic, group.name, start, group.on_failure, group.catch_up)
        if info.was_dead:
            await log_group_events(upkeep_store)
        else:
            tell_bounded(group.name, group.topic, info.missed, info.skipped)
        topic = (await upkeep_store.topics(group.topic))[0]
        is_limited = await upkeep_store.keys_of(info.id) is not None
        self._consume_for(
            group,
            Joined(group.topic, info.id, info.lease, info.heartbeat, topic["max_attempts"], topic["lanes"], is_limited),
        )

    def _consume_for(self, group: Group, joined: Joined) -> None:
        """Consume for a group on one topic."""
        assert self._assigner is not None
        assert self._reader is not None
        assert self._heartbeat is not None
        assert self._stores is not None
        store, _, handler_store = self._stores
        reader, assigner, heartbeat = self._reader, self._assigner, self._heartbeat
        known = assigner.consumer_of(group)
        if known is not None and known.subscription_id == joined.subscription_id:
            return  # it is started already

        def consumer(
            subscription_id: int, history_of: int | None = None, catch_up: CatchUp | None = None
        ) -> GroupConsumer:
            made = GroupConsumer(
                group,
                subscription_id,
                store=store,
                handler_store=handler_store,
                reader=reader,
                cursor_writer=assigner.cursor_writer,
                heartbeat=heartbeat,
                new_waker=lambda: self._wakers.add(group.topic),
                lease=joined.lease,
                max_attempts=joined.max_attempts,
                middleware=self._middleware,
                lanes=joined.lanes,
                is_limited=joined.is_limited,
                history_of=history_of,
                catch_up=catch_up,
            )
            self._beside.extend(_started(self._outlive(group.topic, made.failure, lambda: _lose_all_of(made))))
            return made

        assigner.add(consumer(joined.subscription_id), joined.lease, joined.heartbeat, consumer)
        group.is_started = True
        if group.topic not in self._topics:
            self._topics.append(group.topic)


def _lose_all_of(consumer: GroupConsumer) -> None:
    """What was in hand is read again from the stored cursor."""
    for lane_set in list(consumer.lane_sets):
        consumer.lose(lane_set, "a task of its consumer failed")


async def _drain(
    claiming: Sequence[asyncio.Task[None]],
    dispatchers: Sequence[Dispatcher],
    settler: Settler,
    assigner: LaneAssigner,
    suspects: Suspects,
) -> None:
    # A claim that is under way must be awaited: what it brings has to be given back.
    await asyncio.gather(*claiming)
    await asyncio.gather(assigner.drain(), suspects.ended(), *(dispatcher.drain() for dispatcher in dispatchers))
    await settler.settled()


def _subscriptions_of(group: Group) -> list[Subscription]:
    return [member.subscription for member in group.members.values()]


async def _check_is_queue(store: Store, subscription: Subscription) -> None:
    """Also of a topic that became PUB_SUB what is left in its queue may be consumed."""
    topic = subscription.topic
    if (await store.semantics(topic)).get(topic) == "PUB_SUB":
        left = (await store.topics(topic))[0]
        if not any(left[count] for count in ("waiting", "delayed", "leased")):
            raise WrongSemantics(
                f"topic {topic!r} is PUB_SUB, and {subscription.name} belongs to no group",
                remedy="name its group: @bus.subscribe(topic, group=…)",
            )


async def _over(
    *ends: Coroutine[Any, Any, Any], beside: Sequence[asyncio.Task[None]], more: Sequence[asyncio.Task[None]] = ()
) -> None:
    """Wait until one of the ends is reached. A task beside it that fails ends the worker with its error."""
    ending = [asyncio.create_task(end) for end in ends]
    try:
        while not any(end.done() for end in ending):
            running = [task for task in (*ending, *beside, *more) if not task.done()]
            # `more` may grow: look at it from time to time.
            await asyncio.wait(running, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            for task in (*ending, *beside, *more):
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
