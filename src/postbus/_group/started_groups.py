"""The groups that a worker consumes for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from postbus._db.statements.scopes import Joined
from postbus._db.store import Store
from postbus._group.consumer import GroupConsumer
from postbus._group.context import GroupContext
from postbus._group.lane_assignment import LaneAssigner
from postbus._group.log_reader import LogReader
from postbus._group.scope_watcher import ScopeWatcher, log_bounded_catch_up
from postbus._handling.isolation import SuspectSource
from postbus._maintenance.heartbeat import WRITE_COUNTS, ProcessHeartbeat
from postbus._maintenance.sweeper import log_group_events
from postbus._runtime.loop import Backoff, patiently, pause, repeat
from postbus._runtime.restarter import Restarter
from postbus._runtime.tasks import cancel_all, start_all
from postbus._wakeup.waiters import Wakers
from postbus.errors import DatabaseUnavailable, PostbusError
from postbus.group import Group
from postbus.middleware import Middleware
from postbus.scope import Scope
from postbus.start import Start


class StartedGroups:
    """Subscribes groups, and has a consumer for each of their topics."""

    def __init__(
        self,
        groups: dict[Group, Start],
        *,
        worker: str,
        topics: list[str],
        store: Store,
        upkeep_store: Store,
        handler_store: Store,
        heartbeat_store: Store,
        middleware: Sequence[Middleware],
        wakers: Wakers,
        restarter: Restarter,
        stop: asyncio.Event,
    ) -> None:
        self._groups = groups
        self._topics = topics
        """The topics that the process consumes, for its heartbeats. Topics of groups that start later are added."""
        self._store = store
        self._upkeep_store = upkeep_store
        self._handler_store = handler_store
        self._middleware = middleware
        self._wakers = wakers
        self._restarter = restarter
        self._stop = stop
        self._reader = LogReader(store)
        self._assigner = LaneAssigner(upkeep_store, store, heartbeat_store, worker, self._watch)
        self.heartbeat = ProcessHeartbeat(heartbeat_store, worker, topics, self._assigner.leases.values)
        self._scopes = ScopeWatcher(upkeep_store, self._assigner.consumers.keys, self._consume, self._assigner.tick)
        self._scope_waker = wakers.add_for_scopes()
        self.background: list[asyncio.Task[None]] = []
        """Tasks that groups need beside their consumers. It grows as groups start."""

    def __len__(self) -> int:
        """How many consumers there are, or will be when all groups are joined."""
        return max(len(self._groups), len(self._assigner.consumers))

    def upkeep(self, ended: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        """The loops that keep groups alive and consumed. No new lanes are taken after the worker's stop."""
        assigner = self._assigner
        return [
            repeat(self.heartbeat.tick, name="heartbeat", every=1.0, stop=ended),
            repeat(assigner.heartbeats.tick, name="group heartbeat", every=1.0, stop=ended),
            repeat(assigner.write_counts, name="counts", every=WRITE_COUNTS, stop=ended),
            repeat(assigner.tick, name="lanes", every=1.0, stop=self._stop),
            repeat(self._scopes.tick, name="scopes", every=1.0, stop=self._stop, wake=self._scope_waker),
            assigner.cursor_writer.run(),
        ]

    # starting and stopping groups

    async def join_all(self) -> None:
        """Join all groups. A group that cannot be joined is tried again later, unless it is the only consumer."""
        for group, start in list(self._groups.items()):  # other groups may start meanwhile
            try:
                await patiently(partial(self._join, group, start), stop=self._stop)
            except PostbusError as error:
                if self._restarter.is_only_consumer():
                    raise
                self.background.extend(start_all(self._join_later(group, start, error)))

    async def start(self, group: Group, start: Start) -> None:
        """Join a group, and take lanes for it at once."""
        await self._join(group, start)
        await self.heartbeat.tick()
        await self._assigner.tick()

    async def _join_later(self, group: Group, start: Start, error: PostbusError) -> None:
        """Try again to join a group. Its topic may still be a QUEUE, for instance."""
        backoff = Backoff()
        while not self._stop.is_set() and group in self._groups:
            wait = backoff.next()
            self._restarter.log_failure(group.topic, error, wait)
            await pause(wait, self._stop)
            try:
                await self.start(group, start)
            except DatabaseUnavailable:
                continue
            except PostbusError as next_error:
                error = next_error
                continue
            return

    async def _join(self, group: Group, start: Start) -> None:
        if start.mode is not None:
            await self._scopes.add(group, start)
            group.is_started = True
            return
        store = self._upkeep_store
        info = await store.subscribe(group.topic, group.name, start, group.on_failure, group.catch_up)
        if info.was_dead:
            await log_group_events(store)
        else:
            log_bounded_catch_up(group.name, group.topic, info.missed, info.skipped)
        topic = (await store.topics(group.topic))[0]
        is_limited = await store.keys_of(info.id) is not None
        self._consume(
            group,
            Joined(group.topic, info.id, info.lease, info.heartbeat, topic.max_attempts, topic.lanes, is_limited),
        )

    def _consume(self, group: Group, joined: Joined) -> None:
        """Consume one topic for a group."""
        known = self._assigner.consumer_of(group)
        if known is not None and known.subscription_id == joined.subscription_id:
            return  # it is started already
        context = GroupContext(
            group,
            joined.subscription_id,
            lease=joined.lease,
            max_attempts=joined.max_attempts,
            lanes=joined.lanes,
            is_limited=joined.is_limited,
            store=self._store,
            handler_store=self._handler_store,
            reader=self._reader,
            cursor_writer=self._assigner.cursor_writer,
            heartbeat=self.heartbeat,
            new_waker=lambda: self._wakers.add(group.topic),
            middleware=self._middleware,
        )
        self._assigner.add(GroupConsumer(context), joined.heartbeat)
        group.is_started = True
        if group.topic not in self._topics:
            self._topics.append(group.topic)

    def _watch(self, consumer: GroupConsumer) -> None:
        """Have a consumer's failures reported. It reads again from the stored cursors what it had in hand."""

        def start_over() -> None:
            consumer.lose_all("a task of its consumer failed")

        self.background.extend(start_all(self._restarter.run(consumer.group.topic, consumer.failure, start_over)))

    async def stop(self, group: Group) -> None:
        """Finish what a group has in hand here, and consume for it no longer."""
        self._scopes.remove(group)
        consumers = [self._assigner.consumer_of(one) for one in (group, *group.parts.values())]
        await asyncio.gather(*(self._assigner.remove(one) for one in consumers if one is not None))

    async def halt(self, topic: str, group_name: str) -> None:
        """Begin with no more messages for a group on one topic, because it is no longer ACTIVE."""
        groups = [one for group in self._groups for one in (group, *group.parts.values())]
        await self._assigner.halt([one for one in groups if one.name == group_name and one.topic == topic])

    async def halt_scope(self, group_name: str, scope: Scope) -> None:
        """Begin with no more messages for a group of a wide scope, in all topics of it."""
        groups = [group for group in self._groups if group.name == group_name and group.scope == scope]
        await self._assigner.halt([one for group in groups for one in (group, *group.parts.values())])

    # the process

    def with_suspects(self) -> list[SuspectSource]:
        """The consumers that have suspects."""
        return [one for one in self._assigner.consumers.values() if one.has_suspects]

    def server_may_have_crashed(self) -> None:
        """Forget what was read, because the server may never have committed it."""
        self._reader.forget()
        self._assigner.lose_all_in_doubt()

    async def drain(self) -> None:
        """Finish what is in hand, and leave all groups."""
        await self._assigner.drain()

    async def abort(self) -> None:
        """Cancel the handlers, and leave all groups."""
        await self._assigner.abort()

    @property
    def was_cut_short(self) -> bool:
        """Whether an abort has cancelled a handler."""
        return self._assigner.was_cut_short

    async def close(self) -> None:
        await cancel_all(self.background)
