"""Sharing the lanes of groups with other processes."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

from postbus._db.store import Store
from postbus._group.consumer import GroupConsumer
from postbus._group.cursor_writer import CursorWriter
from postbus._group.lane_set import LaneSet
from postbus._maintenance.heartbeat import GroupHeartbeats, MemberCounts
from postbus._maintenance.sweeper import log_group_events
from postbus._runtime.log_events import event
from postbus.catch_up import CatchUp
from postbus.errors import DatabaseUnavailable
from postbus.group import Group

_LOOK = 1.0  # seconds between looks at who has which lanes …
_LOOK_WHEN_STABLE = 3.0  # … when nothing has changed for a while
_PARTING = 2.0  # seconds, at most, for leaving groups when the process does not wait for handlers
_LOOK_SOON = 0.1  # … while lanes are being given up that may be taken again


class MakeHistory(Protocol):
    """Makes the consumer for a group's history."""

    def __call__(self, subscription_id: int, *, history_of: int, catch_up: CatchUp) -> GroupConsumer: ...


class LaneAssigner:
    """Takes lanes for the groups of this process, and gives up those that others should have."""

    def __init__(self, store: Store, cursor_writer_store: Store, heartbeat_store: Store, worker: str) -> None:
        self._store = store
        self._worker = worker
        self.cursor_writer = CursorWriter(cursor_writer_store, self._lose)
        self.heartbeats = GroupHeartbeats(
            heartbeat_store,
            on_silent=self._fall_silent,
            on_heard=self._is_heard_again,
        )
        self._counts = MemberCounts(store)
        self.consumers: dict[int, GroupConsumer] = {}
        self.leases: dict[int, timedelta] = {}
        self._quiet = 0
        self._states: dict[int, str] = {}
        self._ticking = asyncio.Lock()
        self._is_unsure = False
        """The database may have given us lanes without our hearing of it."""
        self._is_silent = False
        """Nobody hears that our groups are alive: nothing is taken for them."""
        self._has_left = False
        """Whoever looks now, because a topic has come just then, takes nothing any more."""
        self._is_drained = False
        self.was_cut_short = False
        """By an abort: something was cancelled that had begun."""
        self._stopping: dict[asyncio.Task[None], GroupConsumer] = {}
        self._make_history: dict[int, MakeHistory] = {}

    def add(self, consumer: GroupConsumer, lease: timedelta, heartbeat: timedelta, make_history: MakeHistory) -> None:
        self.consumers[consumer.subscription_id] = consumer
        self.leases[consumer.subscription_id] = lease
        self.heartbeats.add(consumer.subscription_id, heartbeat)
        self._make_history[consumer.subscription_id] = make_history
        consumer.group.report_anew()

    def _add_history(self, row: Any) -> None:
        """Work through a group's history, too: by a consumer of its own, for which others do not wait."""
        group = self.consumers.get(row["number"])
        if group is not None and row["subscription_id"] not in self.consumers:
            make = self._make_history[row["number"]]
            history = make(row["subscription_id"], history_of=row["number"], catch_up=CatchUp.from_json(row["cursor"]))
            self.consumers[history.subscription_id] = history
            self.leases[history.subscription_id] = self.leases[row["number"]]
            event(logging.INFO, "catch_up.begun", group=group.group.name, topic=group.group.topic)

    def consumer_of(self, group: Group) -> GroupConsumer | None:
        return next((one for one in self.consumers.values() if one.group is group and one.history_of is None), None)

    async def halt(self, groups: Collection[Group]) -> None:
        """Begin with no more messages for groups that are not ACTIVE any more."""
        async with self._ticking:  # not while lanes are being taken
            for consumer in self.consumers.values():
                if consumer.group in groups:
                    consumer.give_up(consumer.tokens)

    async def remove(self, consumer: GroupConsumer) -> None:
        """Finish what a group has in hand here, and leave it to other processes."""
        async with self._ticking:  # not while lanes are being taken
            all_of_it = [one for one in self.consumers.values() if one.group is consumer.group]
            stopping = [self._start_to_stop(one) for one in all_of_it]
        await asyncio.gather(*stopping)

    def _start_to_stop(self, consumer: GroupConsumer) -> asyncio.Task[None]:
        """Beside other work: it may take as long as a handler does, and other groups must not wait for that."""
        self.consumers.pop(consumer.subscription_id, None)
        self.leases.pop(consumer.subscription_id, None)
        stopping = asyncio.create_task(self._stop(consumer), name=f"postbus-stop-{consumer.group.name}")
        self._stopping[stopping] = consumer
        stopping.add_done_callback(lambda task: self._stopping.pop(task, None))
        return stopping

    async def _stop(self, consumer: GroupConsumer) -> None:
        await consumer.stop()
        with suppress(DatabaseUnavailable):  # then others get the lanes when our lease ends
            await self._counts.write({consumer.history_of or consumer.subscription_id: consumer.group})
            if consumer.subscription_id not in self.consumers:  # not started again meanwhile
                await self.heartbeats.remove([consumer.subscription_id])
                await self._store.leave_groups(self._worker, [consumer.subscription_id], is_stop=True)

    async def tick(self) -> float:
        """Look once at who should have which lanes. Returns after how many seconds to look again."""
        async with self._ticking:
            if not self.consumers or self._has_left:
                return _LOOK
            if self._is_unsure and not await self._start_over():
                return _LOOK_SOON
            return _LOOK if self._is_silent else await self._tick()

    async def _start_over(self) -> bool:
        """Give up all lanes, also those that we do not know of. Returns whether that is done."""
        for consumer in self.consumers.values():
            consumer.give_up(consumer.tokens)
        if not all(consumer.has_left for consumer in self.consumers.values()):
            return False
        await self._store.leave_groups(self._worker, list(self.consumers))
        self._is_unsure = False
        return True

    async def _tick(self) -> float:
        tokens = [token for consumer in self.consumers.values() for token in consumer.tokens]
        try:
            rows = await self._store.lease_lanes(self._worker, list(self.consumers), tokens)
        except DatabaseUnavailable:
            self._is_unsure = True
            raise
        told: defaultdict[str, list[Any]] = defaultdict(list)
        for row in rows:
            told[row["action"]].append(row)
        stopped = {row["subscription_id"]: row["state"] for row in told["stop"]}
        for subscription_id, consumer in self.consumers.items():
            for row in told["lost"]:  # of one that has ended, as a catch-up does, there is no lane any more
                consumer.lose_token(row["token"], is_expected=stopped.get(subscription_id) == "CANCELLED")
        self._tell_states(stopped)
        taken: defaultdict[int, list[Any]] = defaultdict(list)
        for row in told["take"]:
            taken[row["subscription_id"]].append(row)
        given_up: defaultdict[int, list[Any]] = defaultdict(list)
        for row in told["give_up"]:
            given_up[row["subscription_id"]].append(row["token"])
        for subscription_id, state in stopped.items():
            given_up[subscription_id] = self.consumers[subscription_id].tokens
            if state == "CANCELLED":  # or removed
                self._end(self.consumers[subscription_id])
        wait = await self._follow(taken, given_up)
        for row in told["catch_up"]:
            self._add_history(row)
        await self._report_histories()
        dead = [one for one, state in stopped.items() if state == "DEAD"]
        if dead:  # not by a heartbeat, which may not take long: what was missed is counted
            await self._store.resurrect(dead)
            await log_group_events(self._store)
        return _LOOK_SOON if dead or told["catch_up"] else wait

    def _end(self, consumer: GroupConsumer) -> None:
        if consumer.history_of is None:
            consumer.group.is_started = False
        self._start_to_stop(consumer)

    async def _report_histories(self) -> None:
        for consumer in self.consumers.values():
            consumer.share_out()
            if consumer.throttle is not None and consumer.throttle.p95 is not None and consumer.tokens:
                allowed = consumer.throttle.allowed_rate
                await self._store.report_catch_up(consumer.tokens[0], allowed, consumer.throttle.p95)

    async def _follow(self, taken: dict[int, list[Any]], given_up: dict[int, list[Any]]) -> float:
        """Give up lanes, beside other work, and take lanes."""
        for subscription_id, unwanted in given_up.items():
            if subscription_id in self.consumers:
                self.consumers[subscription_id].give_up(unwanted)
        await asyncio.gather(*(self.consumers[one].take(lanes) for one, lanes in taken.items()))
        for consumer in self.consumers.values():
            consumer.join_lane_sets()
        self._quiet = 0 if taken or any(given_up.values()) else self._quiet + 1
        if any(given_up.values()):
            return _LOOK_SOON
        return _LOOK if self._quiet < 5 else _LOOK_WHEN_STABLE

    def _tell_states(self, stopped: dict[int, str]) -> None:
        for subscription_id, consumer in self.consumers.items():
            state = stopped.get(subscription_id, "ACTIVE")
            name, topic = consumer.group.name, consumer.group.topic
            if state == "CANCELLED" and consumer.history_of is not None:
                event(logging.INFO, "catch_up.ended", group=name, topic=topic)
            elif state == "CANCELLED":
                event(logging.WARNING, "group.stopped", group=name, topic=topic, reason="cancelled or removed",
                      remedy="subscribe again: start the group, or this process, anew")  # fmt: skip
            elif state != self._states.get(subscription_id, "ACTIVE"):
                level = logging.INFO if state == "ACTIVE" else logging.WARNING
                event(level, "group.state", group=name, topic=topic, state=state)
            self._states[subscription_id] = state

    def lose_all(self) -> None:
        """The server may have crashed: what was read, but not stored, is in doubt."""
        for consumer in self.consumers.values():
            for lane_set in list(consumer.lane_sets):
                lane_set.is_in_doubt = True
                consumer.lose(lane_set, "a connection broke, and the server may have crashed")

    def _lose(self, lane_set: LaneSet, reason: str) -> None:
        consumer = self.consumers.get(lane_set.subscription_id)
        if consumer is not None:
            consumer.lose(lane_set, reason)

    async def tell_counts(self) -> None:
        groups = [one for one in self.consumers.values() if one.history_of is None]
        await self._counts.write({one.subscription_id: one.group for one in groups})

    def _fall_silent(self) -> None:
        """Stop consuming: our groups may be taken for DEAD, and then nothing is kept for what they still do."""
        self._is_silent = self._is_unsure = True
        for consumer in self.consumers.values():
            consumer.give_up(consumer.tokens)

    def _is_heard_again(self) -> None:
        self._is_silent = False

    async def drain(self) -> None:
        """Finish what is in hand, tell it, and leave all groups."""
        async with self._ticking:
            self._has_left = True
            consumers = list(self.consumers.values())
            await asyncio.gather(*(consumer.stop() for consumer in consumers), *self._stopping)
            await self.cursor_writer.settled()
            with suppress(DatabaseUnavailable):  # then others get the lanes when our lease ends
                await self.tell_counts()
                await self.heartbeats.remove(self.consumers)
                await self._store.leave_groups(self._worker, list(self.consumers), is_stop=True)
            self._is_drained = True

    async def abort(self) -> None:
        """Cancel what is in hand. Unless the groups have been left already, tell what is done, and leave them."""
        for task in self._stopping:
            task.cancel()
        consumers = [*self.consumers.values(), *self._stopping.values()]
        await asyncio.gather(*(one.abort() for one in consumers))
        self.was_cut_short = any(one.was_cut_short for one in consumers)
        await asyncio.gather(*self._stopping, return_exceptions=True)
        if consumers and not self._is_drained:
            with suppress(DatabaseUnavailable, TimeoutError):  # then others get the lanes when our lease ends
                async with asyncio.timeout(_PARTING):
                    left = [one.subscription_id for one in consumers]
                    await self.heartbeats.remove(left)
                    await self._store.leave_groups(self._worker, left, is_stop=self._has_left)
