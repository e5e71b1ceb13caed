"""The groups of a bus: registered, started, stopped, paused and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from postbus._db.store import Store
from postbus.errors import DuplicateHandler
from postbus.group import Group
from postbus.results.groups import GroupState
from postbus.start import Default, Start
from postbus.worker import Worker, workers_of


class GroupControl:
    """Carries out what the methods of `Group` ask for: in the database, and in the worker that is running."""

    def __init__(
        self, connect: Callable[[], Awaitable[Store]], default: Default, running_worker: Callable[[], Worker | None]
    ) -> None:
        self.default = default
        self._connect = connect
        self._running_worker = running_worker
        self._groups: dict[tuple[str, str], tuple[Group, Start | None]] = {}
        """By topic and name, with the position to start at; None for a group that is not started."""

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, group: Group, start: Start | None = None) -> Group:
        """Register a group. Without `start` it waits for `group.start()`."""
        if (group.topic, group.name) in self._groups:
            raise DuplicateHandler(
                f"group {group.name!r} of topic {group.topic!r} exists already in this process",
                remedy="add members to it, or give it another name",
            )
        self._groups[group.topic, group.name] = group, start
        return group

    def remove(self, group: Group) -> None:
        """Forget a group, so that another one can have its name."""
        del self._groups[group.topic, group.name]

    def started(self) -> list[tuple[Group, Start]]:
        """The groups that a worker has to run, each with its start."""
        return [(group, start) for group, start in self._groups.values() if start is not None]

    async def start_group(self, group: Group, start: Start) -> None:
        """Subscribe a group, and consume for it while the bus runs."""
        store = await self._connect()
        if start.mode is None:
            await store.subscribe(group.topic, group.name, start, group.on_failure, group.catch_up)
        else:
            await store.subscribe_scope(group.name, group.scope, start, group.on_failure, group.catch_up)
        self._groups[group.topic, group.name] = group, start
        if (worker := self._running_worker()) is not None:
            await worker.start_group(group, start)

    async def stop_group(self, group: Group) -> None:
        """Consume for a group no longer in this process."""
        self._groups[group.topic, group.name] = group, None
        if (worker := self._running_worker()) is not None:
            await worker.stop_group(group)

    async def set_group_state(self, group: Group, state: GroupState) -> None:
        """Pause, resume or cancel a group."""
        store = await self._connect()
        if not group.scope.is_wide:
            await store.set_group_state(group.topic, group.name, state)
        elif state == "CANCELLED":
            await store.forget_scope(group.name, group.scope, cancel=True)
        else:
            await store.set_scope_state(group.name, group.scope, state)
        if state == "ACTIVE":
            return
        if group.scope.is_wide:
            await asyncio.gather(*(one.halt_scope(group.name, group.scope) for one in workers_of(store.source)))
        else:
            await self.halt(group.topic, group.name)

    async def halt(self, topic: str, group: str | None = None) -> None:
        """Let the workers of this event loop begin no more messages of a queue, or of a group."""
        store = await self._connect()
        await asyncio.gather(*(one.halt(topic, group) for one in workers_of(store.source)))
