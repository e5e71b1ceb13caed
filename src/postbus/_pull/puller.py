"""Popping, for all pops of a process: asking the database, waiting for messages, and what is done beside that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from postbus._db.connect import process_name
from postbus._db.error_map import DRIVER_ERRORS
from postbus._db.statements.queue import Pulled, PulledLease
from postbus._db.store import Store
from postbus._maintenance.sweeper import RETURN_EXPIRED, SWEEP, SWEEP_SUBSCRIPTIONS, Sweeper
from postbus._pull.pull_client import PullClient
from postbus._pull.request import PopRequest
from postbus._pull.sql_backend import SqlBackend
from postbus._pull.waiters import PopWaiters
from postbus._queue.scan_floor import ScanFloor
from postbus._runtime.log_events import event
from postbus._wakeup.listener import Listener
from postbus._wakeup.waiters import Wakers, topic_id
from postbus.errors import DatabaseUnavailable, InvalidInput, PostbusError
from postbus.scope import Scope

_FLOOR_AGE = 2.0  # seconds after which a group is searched from the beginning
_LINGER = 30.0  # seconds that it is listened for rings after the last one who waited
_GOODBYE = 2.0  # seconds that closing may take to tell that groups were stopped
_PARTING = 1.0  # seconds that a pop that is cancelled waits for the database's answer, to give back what comes


class Puller(PullClient):
    """Pops for a process."""

    def __init__(self, dsn: str, store: Store, wakers: Wakers, notify: Callable[[str], None]) -> None:
        super().__init__(SqlBackend(store, wakers, notify))
        self._store = store
        self._wakers = wakers
        self._member = process_name()
        self._floors: dict[tuple[Scope, str | None], ScanFloor] = {}
        self._places: dict[tuple[Scope, str | None], PopWaiters] = {}
        self._joins: dict[tuple[Scope, str | None], _Joins] = {}
        """Of scopes that somebody waits for: heard for as long as they are kept here."""
        self._known: set[tuple[Scope, str | None]] = set()
        """What groups have asked for before, in this process: they are subscribed."""
        self._popped_for: dict[tuple[Scope, str], str] = {}
        """The groups that this process popped for itself, and as which member."""
        self._ear = _Ear(dsn, store, wakers)
        self._tending = _Tending(store, wakers)

    async def pop(self, wish: PopRequest) -> list[PulledLease]:
        """Take messages; wait for them if there are none."""
        if wish.start is not None and wish.group is not None and (wish.scope, wish.group) not in self._known:
            await self._store.subscribe_scope(wish.group, wish.scope, wish.start)
            self._known.add((wish.scope, wish.group))
        if wish.group is not None and not wish.for_others:
            scope = wish.scope if wish.scope.is_wide else Scope(wish.scope.topic)
            self._popped_for[scope, wish.group] = wish.member or self._member
        if wish.wait > 0:
            return await self._wait(wish)
        began = time.monotonic()
        pulled = await self._take_what_is_there(wish)
        if not pulled.leases and await self._tending.has_returned_some(since=began):
            pulled = await self._take_what_is_there(wish)
        return pulled.leases

    async def _take_what_is_there(self, wish: PopRequest) -> Pulled:
        """Ask until there are messages, or no more: one answer passes by a limited number of other keys' messages."""
        while True:
            pulled = await self._take(wish)
            if pulled.leases or not pulled.more:
                return pulled

    async def _wait(self, wish: PopRequest) -> list[PulledLease]:
        whole = Scope(wish.scope.topic) if wish.scope.key is not None else wish.scope
        name = whole, wish.group
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = PopWaiters()
            self._register(whole, wish.group, place)
        with self._ear.listening():
            try:
                return await place.wait(wish.scope.key, wish.wait, partial(self._take, wish))
            finally:
                if place.is_empty and self._places.get(name) is place:
                    del self._places[name]
                    self._joins.pop(name, None)

    def _register(self, scope: Scope, group: str | None, place: PopWaiters) -> None:
        """Let those who wait hear the rings of a topic; of a scope, those of all its topics, and of more that join."""
        if not scope.is_wide or group is None:
            self._wakers.register(str(scope), place)
            return

        async def register() -> None:
            for topic in await self._store.group_topics(group, scope):
                self._wakers.register(topic, place)
            place.set()

        joins = self._joins[scope, group] = _Joins(lambda: self._start(register(), "join"))
        self._wakers.register_for_scopes(joins)
        joins.set()

    async def _take(self, wish: PopRequest) -> Pulled:
        """Ask once. Who is cancelled meanwhile gets nothing, so what comes after all is given back.

        That is waited for, so that whoever pops next finds it there; not for long, should the database not answer.
        """
        self._tending.begin(self._start)
        asking = self._start(self._ask(wish), "pop")
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await asyncio.wait((self._start(self._give_back(asking), "give-back"),), timeout=_PARTING)
            raise

    async def _ask(self, wish: PopRequest) -> Pulled:
        if wish.scope.is_wide:
            assert wish.group is not None
            return await self._store.pop_scope(
                wish.scope,
                group=wish.group,
                member=wish.member or self._member,
                max_count=wish.batch,
                lease=wish.lease,
                auto_ack=wish.auto_ack,
            )
        # A pop of one key knows nothing of where others begin.
        floor = self._floor_of(wish) if wish.scope.key is None else ScanFloor()
        given = floor.current()
        try:
            pulled = await self._store.pop(
                str(wish.scope),
                group=wish.group,
                member=wish.member or self._member,
                max_count=wish.batch,
                lease=wish.lease,
                key=wish.scope.key,
                auto_ack=wish.auto_ack,
                floor=given,
            )
        except DatabaseUnavailable:
            floor.forget()
            raise
        floor.moved(pulled.floor, given=given, took=pulled.took)
        return pulled

    def _floor_of(self, wish: PopRequest) -> ScanFloor:
        """Of a group it is a time, and what a transaction lets go on that stays open for seconds lies below that."""
        name = wish.scope, wish.group
        return self._floors.setdefault(name, ScanFloor() if wish.group is None else ScanFloor(age=_FLOOR_AGE))

    async def _give_back(self, asking: asyncio.Task[Pulled]) -> None:
        with contextlib.suppress(PostbusError):  # then the lease ends by itself
            for lease in (await asking).leases:
                if lease.token is not None:
                    await self._store.release(lease.token, [one.id for one in lease.messages])
                    self._wakers.wake(topic_id(lease.topic))

    async def close(self) -> None:
        """Let those who wait go with nothing, and finish what has begun."""
        self._joins.clear()
        for place in self._places.values():
            place.send_away()
        await super().close()
        await self._ear.close()

    async def say_goodbye(self) -> None:
        """Tell that the groups were stopped as planned. If that fails, they look as if their consumer had vanished."""
        with contextlib.suppress(PostbusError, TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                for (scope, group), member in self._popped_for.items():
                    with contextlib.suppress(InvalidInput):  # the group or the topic has gone
                        await self._store.send_heartbeat(group, scope, stopped_by=member)
        self._popped_for.clear()


class _Joins:
    """A waker that is rung when a topic has come into the scope of some group."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def set(self) -> None:
        self._act()


class _Ear:
    """Listens for rings while somebody waits, on one connection for all."""

    def __init__(self, dsn: str, store: Store, wakers: Wakers) -> None:
        self._dsn = dsn
        self._wakers = wakers
        self._is_possible = not store.is_pooled  # who listens there leaves that to whoever gets the connection next
        self._waiting = 0
        self._listening: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        self._waiting += 1
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._is_possible and (self._listening is None or self._listening.done()):
            listener = Listener(self._dsn, self._wakers).run(asyncio.Event())
            self._listening = asyncio.create_task(listener, name="postbus-listener")
            self._listening.add_done_callback(_tell_failure)
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0 and self._listening is not None:
                self._ending = asyncio.get_running_loop().call_later(_LINGER, self._listening.cancel)

    async def close(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)


def _tell_failure(listening: asyncio.Task[None]) -> None:
    if not listening.cancelled() and (error := listening.exception()) is not None:
        event(logging.WARNING, "wake.by_polling", reason=error)


class _Tending:
    """Does beside popping what workers do beside consuming: whoever only pops may be the only one there is."""

    def __init__(self, store: Store, wakers: Wakers) -> None:
        self._sweeper = Sweeper(store)
        self._wakers = wakers
        self._every: dict[Callable[[], Awaitable[float | None]], float] = {
            self._sweeper.sweep: SWEEP,
            self._sweeper.sweep_log: SWEEP,
            self._sweeper.sweep_subscriptions: SWEEP_SUBSCRIPTIONS,
        }
        self._due_at = dict.fromkeys(self._every, 0.0)
        self._began = 0.0
        self._returning: asyncio.Task[bool] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def begin(self, start: Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]]) -> None:
        """See to what is due, beside whatever the caller does. Looks once a second whether leases have ended."""
        now = time.monotonic()
        if self._returning is None or (self._returning.done() and now >= self._began + RETURN_EXPIRED):
            self._began = now
            self._returning = start(self._return_expired(), "return-expired")
        if (self._sweeping is None or self._sweeping.done()) and now >= min(self._due_at.values()):
            self._sweeping = start(self._sweep(), "sweep")

    async def has_returned_some(self, *, since: float) -> bool:
        """Whether messages came back since then, whose lease has ended."""
        if self._returning is None or (self._returning.done() and self._began < since):
            return False
        return await asyncio.shield(self._returning)

    async def _return_expired(self) -> bool:
        returned = await self._quietly(self._sweeper.give_back)
        if returned:
            self._wakers.wake_all()
        return bool(returned)

    async def _sweep(self) -> None:
        for job, every in self._every.items():
            if time.monotonic() >= self._due_at[job]:
                again = await self._quietly(job)
                self._due_at[job] = time.monotonic() + (every if again is None else again)

    async def _quietly(self, job: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await job()
        except (PostbusError, *DRIVER_ERRORS) as error:
            level = logging.DEBUG if isinstance(error, DatabaseUnavailable) else logging.WARNING
            event(level, "upkeep.failed", error=error)
            return None
