"""Sharing the lanes of groups with other processes, and showing that the groups are alive."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from postbus._consume import GroupConsumer
from postbus._log import event
from postbus._store import Store
from postbus._strand import Advancer, Strand
from postbus.group import Counts

_LOOK = 1.0  # seconds between looks at who has which lanes …
_LOOK_WHEN_STABLE = 3.0  # … when nothing has changed for a while


class LaneKeeper:
    """Takes lanes for the groups of this process, and gives up those that others should have."""

    def __init__(self, store: Store, advancer_store: Store, worker: str) -> None:
        self._store = store
        self._worker = worker
        self.advancer = Advancer(advancer_store, self._lose)
        self.consumers: dict[int, GroupConsumer] = {}
        self.leases: dict[int, timedelta] = {}
        self._quiet = 0
        self._told: defaultdict[tuple[int, str], Counts] = defaultdict(Counts)
        self._states: dict[int, str] = {}
        self._ticking = asyncio.Lock()

    def add(self, consumer: GroupConsumer, lease: timedelta) -> None:
        self.consumers[consumer.subscription_id] = consumer
        self.leases[consumer.subscription_id] = lease

    async def remove(self, consumer: GroupConsumer) -> None:
        """Finish what a group has in hand here, and leave it to other processes."""
        async with self._ticking:
            self.consumers.pop(consumer.subscription_id, None)
            self.leases.pop(consumer.subscription_id, None)
            await consumer.stop()
            await self._count()
            await self._store.leave_groups(self._worker, [consumer.subscription_id])

    async def tick(self) -> float:
        """Look once at who should have which lanes. Returns after how many seconds to look again."""
        async with self._ticking:
            return await self._tick()

    async def _tick(self) -> float:
        if not self.consumers:
            return _LOOK
        tokens = [token for consumer in self.consumers.values() for token in consumer.tokens]
        rows = await self._store.lease_lanes(self._worker, list(self.consumers), tokens)
        taken: defaultdict[int, list[Any]] = defaultdict(list)
        given_up: defaultdict[int, list[Any]] = defaultdict(list)
        stopped: dict[int, str] = {}
        for row in rows:
            match row["action"]:
                case "take":
                    taken[row["subscription_id"]].append(row)
                case "give_up":
                    given_up[row["subscription_id"]].append(row["token"])
                case "stop":
                    stopped[row["subscription_id"]] = row["state"]
                case "lost":
                    for consumer in self.consumers.values():
                        consumer.lose_token(row["token"])
        self._tell_states(stopped)
        for subscription_id in stopped:
            if self.consumers[subscription_id].tokens:
                given_up[subscription_id] = self.consumers[subscription_id].tokens
        await asyncio.gather(*(self.consumers[one].give_up(tokens) for one, tokens in given_up.items()))
        await asyncio.gather(*(self.consumers[one].take(lanes) for one, lanes in taken.items()))
        self._quiet = 0 if taken or given_up else self._quiet + 1
        return _LOOK if self._quiet < 5 else _LOOK_WHEN_STABLE

    def _tell_states(self, stopped: dict[int, str]) -> None:
        for subscription_id, consumer in self.consumers.items():
            state = stopped.get(subscription_id, "ACTIVE")
            if state != self._states.get(subscription_id, "ACTIVE"):
                level = logging.INFO if state == "ACTIVE" else logging.WARNING
                event(level, "group.state", group=consumer.group.name, topic=consumer.group.topic, state=state)
            self._states[subscription_id] = state

    def _lose(self, strand: Strand) -> None:
        consumer = self.consumers.get(strand.subscription_id)
        if consumer is not None:
            consumer.lose(strand)

    async def heartbeat(self) -> None:
        """Show that the groups of this process are alive, and what their members have done."""
        if self.consumers:
            await self._count()

    async def _count(self) -> None:
        counts: list[Sequence[Any]] = []
        now = {
            (consumer.subscription_id, member.name): (member.counts, 0)
            for consumer in self.consumers.values()
            for member in consumer.group.members.values()
        }
        for consumer in self.consumers.values():
            first = next(iter(consumer.group.members), None)
            if first is not None:  # what all filters rejected is counted with the first member
                member = consumer.group.members[first]
                now[consumer.subscription_id, first] = (member.counts, consumer.group.filtered)
        for (subscription_id, name), (have, filtered) in now.items():
            told = self._told[subscription_id, name]
            counts.append(
                (
                    subscription_id,
                    name,
                    have.processed - told.processed,
                    have.failed - told.failed,
                    filtered - told.filtered,
                    have.in_flight,
                )
            )
        await self._store.group_heartbeat(list(self.consumers), counts)
        for (subscription_id, name), (have, filtered) in now.items():
            self._told[subscription_id, name] = Counts(have.processed, have.failed, filtered)

    async def drain(self) -> None:
        """Finish what is in hand, tell it, and leave all groups."""
        async with self._ticking:
            await asyncio.gather(*(consumer.stop() for consumer in self.consumers.values()))
            await self.advancer.settled()
            await self._count()
            await self._store.leave_groups(self._worker, list(self.consumers))

    async def abort(self) -> None:
        await asyncio.gather(*(consumer.abort() for consumer in self.consumers.values()))
