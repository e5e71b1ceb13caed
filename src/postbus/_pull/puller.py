"""Popping from the database, for all pops of a bus."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial

from postbus._db.process import process_name
from postbus._db.statements.queue import Pulled, PulledLease
from postbus._db.store import Store
from postbus._pull.maintenance import PopMaintenance
from postbus._pull.pull_client import PullClient
from postbus._pull.request import PopRequest
from postbus._pull.shared_listener import SharedListener
from postbus._pull.sql_backend import SqlBackend
from postbus._pull.waiters import PopWaiters
from postbus._queue.scan_floor import ScanFloor
from postbus._wakeup.waiters import Wakers, topic_id
from postbus.errors import DatabaseUnavailable, PostbusError
from postbus.scope import Scope

_FLOOR_AGE = 2.0  # seconds after which a group is searched from the beginning
_CANCEL_TIMEOUT = 1.0  # seconds that a cancelled pop waits for the database's answer, to give the messages back


class Puller(PullClient):
    """Pops by SQL."""

    def __init__(self, dsn: str, store: Store, wakers: Wakers, notify: Callable[[str], None]) -> None:
        super().__init__(SqlBackend(store, wakers, notify))
        self._store = store
        self._wakers = wakers
        self._member = process_name()
        self._floors: dict[tuple[Scope, str | None], ScanFloor] = {}
        self._waiters: dict[tuple[Scope, str | None], PopWaiters] = {}
        self._new_topics: dict[tuple[Scope, str | None], _NewTopics] = {}
        """Of wide scopes that pops wait for. `Wakers` holds wakers weakly: here they stay alive."""
        self._subscribed: set[tuple[Scope, str | None]] = set()
        """The groups that this process has subscribed to a scope by their first pop."""
        self._listener = SharedListener(dsn, store, wakers)
        self._maintenance = PopMaintenance(store, wakers)

    async def pop(self, request: PopRequest) -> list[PulledLease]:
        """Take messages. If there are none, wait for them for as long as the request says."""
        group = request.group
        if request.start is not None and group is not None and (request.scope, group) not in self._subscribed:
            await self._store.subscribe_scope(group, request.scope, request.start)
            self._subscribed.add((request.scope, group))
        if group is not None and not request.for_others:
            self._popped_for[request.subscribed_scope, group] = request.member
        if request.wait > 0:
            return await self._wait(request)
        began = time.monotonic()
        pulled = await self._poll_to_the_end(request)
        if not pulled.leases and await self._maintenance.has_returned_messages(since=began):
            pulled = await self._poll_to_the_end(request)
        return pulled.leases

    async def _poll_to_the_end(self, request: PopRequest) -> Pulled:
        """Poll until there are messages, or no more: one poll skips a limited number of messages of busy keys."""
        while True:
            pulled = await self._poll(request)
            if pulled.leases or not pulled.more:
                return pulled

    async def _wait(self, request: PopRequest) -> list[PulledLease]:
        name = request.subscribed_scope, request.group
        waiters = self._waiters.get(name)
        if waiters is None:
            waiters = self._waiters[name] = PopWaiters()
            self._register(*name, waiters)
        with self._listener.listening():
            try:
                return await waiters.wait(request.scope.key, request.wait, partial(self._poll, request))
            finally:
                if waiters.is_empty and self._waiters.get(name) is waiters:
                    del self._waiters[name]
                    self._new_topics.pop(name, None)

    def _register(self, scope: Scope, group: str | None, waiters: PopWaiters) -> None:
        """Let the wake-ups of a topic reach the waiters; of a wide scope, those of all its topics, now and later."""
        if not scope.is_wide or group is None:
            self._wakers.register(str(scope), waiters)
            return

        async def register() -> None:
            for topic in await self._store.group_topics(group, scope):
                self._wakers.register(topic, waiters)
            waiters.set()

        new_topics = self._new_topics[scope, group] = _NewTopics(lambda: self._start(register(), "join"))
        self._wakers.register_for_scopes(new_topics)
        new_topics.set()

    async def _poll(self, request: PopRequest) -> Pulled:
        """Ask the database once. If the caller is cancelled meanwhile, messages that come after all are given back.

        The cancelled caller waits for that, so that the next pop finds the messages; but only for a limited time,
        because the database may not answer.
        """
        self._maintenance.start_due(self._start)
        polling = self._start(self._ask(request), "pop")
        try:
            return await asyncio.shield(polling)
        except asyncio.CancelledError:
            await asyncio.wait((self._start(self._give_back(polling), "give-back"),), timeout=_CANCEL_TIMEOUT)
            raise

    async def _ask(self, request: PopRequest) -> Pulled:
        if request.scope.is_wide:
            assert request.group is not None
            return await self._store.pop_scope(
                request.scope,
                group=request.group,
                member=request.member or self._member,
                max_count=request.batch,
                lease=request.lease,
                auto_ack=request.auto_ack,
            )
        # The floor is one of all keys: a pop of one key neither uses nor moves it.
        floor = self._floor_of(request) if request.scope.key is None else ScanFloor()
        given = floor.current()
        try:
            pulled = await self._store.pop(
                str(request.scope),
                group=request.group,
                member=request.member or self._member,
                max_count=request.batch,
                lease=request.lease,
                key=request.scope.key,
                auto_ack=request.auto_ack,
                floor=given,
            )
        except DatabaseUnavailable:
            floor.forget()
            raise
        floor.moved(pulled.floor, given=given, took=pulled.took)
        return pulled

    def _floor_of(self, request: PopRequest) -> ScanFloor:
        # A group's floor is a time. A transaction that stays open for seconds may release messages from before it.
        name = request.scope, request.group
        return self._floors.setdefault(name, ScanFloor() if request.group is None else ScanFloor(age=_FLOOR_AGE))

    async def _give_back(self, polling: asyncio.Task[Pulled]) -> None:
        with contextlib.suppress(PostbusError):  # then the lease ends by itself
            for lease in (await polling).leases:
                if lease.token is not None:
                    await self._store.release(lease.token, [one.id for one in lease.messages])
                    self._wakers.wake(topic_id(lease.topic))

    async def close(self) -> None:
        """Let waiting pops return without messages, and finish all work that has begun."""
        self._new_topics.clear()
        for waiters in self._waiters.values():
            waiters.send_away()
        await super().close()
        await self._listener.close()

    async def _report_stopped(self, scope: Scope, group: str, member: str | None) -> None:
        await self._store.send_heartbeat(group, scope, stopped_by=member or self._member)


class _NewTopics:
    """A waker that acts when a topic has come into the scope of some group."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def set(self) -> None:
        self._act()
