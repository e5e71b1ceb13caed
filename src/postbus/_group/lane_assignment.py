"""Lane assignment: which lanes of its groups this process has, and which it leaves to other processes."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from typing import Any

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

_INTERVAL = 1.0  # seconds between two questions which lanes this process should have, …
_INTERVAL_WHEN_STABLE = 3.0  # … when nothing has changed for a while, …
_SOON = 0.1  # … and while lanes are being given up that may be taken again
_ABORT_TIMEOUT = 2.0  # seconds, at most, for leaving groups when the process does not wait for handlers


class LaneAssigner:
    """Asks the database which lanes this process should have. Has its consumers take and give up lanes accordingly."""

    def __init__(
        self,
        store: Store,
        cursor_writer_store: Store,
        heartbeat_store: Store,
        worker: str,
        on_added: Callable[[GroupConsumer], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._on_added = on_added
        """Called with each new consumer."""
        self.cursor_writer = CursorWriter(cursor_writer_store, self._was_lost)
        self.heartbeats = GroupHeartbeats(
            heartbeat_store,
            on_failing=self._stop_consuming,
            on_recovered=self._consume_again,
        )
        self._counts = MemberCounts(store)
        self.consumers: dict[int, GroupConsumer] = {}
        """By subscription id, without those that are being stopped."""
        self.leases: dict[int, timedelta] = {}
        self._stable_ticks = 0
        """Ticks since lanes were last taken or given up."""
        self._states: dict[int, str] = {}
        self._ticking = asyncio.Lock()
        self._is_unsure = False
        """Whether the database may have leased lanes to us in an answer that was lost."""
        self._is_failing = False
        """Whether our heartbeats fail. Then we take no lanes, since groups may be taken for DEAD."""
        self._has_left = False
        """Whether the process is ending. A tick that waits meanwhile takes no lanes any more."""
        self._is_drained = False
        self.was_cut_short = False
        """Whether an abort has cancelled a handler."""
        self._stopping: dict[asyncio.Task[None], GroupConsumer] = {}

    def add(self, consumer: GroupConsumer, heartbeat: timedelta) -> None:
        """Take lanes for a consumer from now on, and send heartbeats for its group."""
        self._add(consumer)
        self.heartbeats.add(consumer.subscription_id, heartbeat)
        consumer.group.report_anew()

    def _add_history(self, row: Any) -> None:
        """Add a consumer for a group's history. The group's own consumer does not wait for it."""
        consumer = self.consumers.get(row["number"])
        if consumer is not None and row["subscription_id"] not in self.consumers:
            context = consumer.context.for_history(row["subscription_id"], CatchUp.from_json(row["cursor"]))
            self._add(GroupConsumer(context))
            event(logging.INFO, "catch_up.begun", group=consumer.group.name, topic=consumer.group.topic)

    def _add(self, consumer: GroupConsumer) -> None:
        self.consumers[consumer.subscription_id] = consumer
        self.leases[consumer.subscription_id] = consumer.context.lease
        self._on_added(consumer)

    def consumer_of(self, group: Group) -> GroupConsumer | None:
        return next((one for one in self.consumers.values() if one.group is group and one.history_of is None), None)

    async def halt(self, groups: Collection[Group]) -> None:
        """Begin with no more messages of groups that are no longer ACTIVE."""
        async with self._ticking:  # not while lanes are being taken
            for consumer in self.consumers.values():
                if consumer.group in groups:
                    consumer.give_up(consumer.tokens)

    async def remove(self, consumer: GroupConsumer) -> None:
        """Finish what a group has in hand here, and leave it to other processes."""
        async with self._ticking:  # not while lanes are being taken
            of_group = [one for one in self.consumers.values() if one.group is consumer.group]
            stopping = [self._start_to_stop(one) for one in of_group]
        await asyncio.gather(*stopping)

    def _start_to_stop(self, consumer: GroupConsumer) -> asyncio.Task[None]:
        """Stop a consumer in a task of its own. It may take as long as a handler, and other groups must not wait."""
        self.consumers.pop(consumer.subscription_id, None)
        self.leases.pop(consumer.subscription_id, None)
        stopping = asyncio.create_task(self._stop(consumer), name=f"postbus-stop-{consumer.group.name}")
        self._stopping[stopping] = consumer
        stopping.add_done_callback(lambda task: self._stopping.pop(task, None))
        return stopping

    async def _stop(self, consumer: GroupConsumer) -> None:
        await consumer.stop()
        with suppress(DatabaseUnavailable):  # then others get the lanes when our leases expire
            await self._counts.write({consumer.history_of or consumer.subscription_id: consumer.group})
            if consumer.subscription_id not in self.consumers:  # the group has not been started again meanwhile
                await self.heartbeats.remove([consumer.subscription_id])
                await self._store.leave_groups(self._worker, [consumer.subscription_id], is_stop=True)

    async def tick(self) -> float:
        """Ask once which lanes this process should have. Returns after how many seconds to ask again."""
        async with self._ticking:
            if not self.consumers or self._has_left:
                return _INTERVAL
            if self._is_unsure and not await self._start_over():
                return _SOON
            return _INTERVAL if self._is_failing else await self._assign()

    async def _start_over(self) -> bool:
        """Give up all lanes, even those that we do not know of. Returns whether that is done."""
        for consumer in self.consumers.values():
            consumer.give_up(consumer.tokens)
        if not all(consumer.has_left for consumer in self.consumers.values()):
            return False
        await self._store.leave_groups(self._worker, list(self.consumers))
        self._is_unsure = False
        return True

    async def _assign(self) -> float:
        actions = await self._ask_for_actions()
        states = {row["subscription_id"]: row["state"] for row in actions["stop"]}
        for subscription_id, consumer in self.consumers.items():
            for row in actions["lost"]:  # a subscription that has ended, such as a catch-up, has no lanes any more
                consumer.lose_token(row["token"], is_expected=states.get(subscription_id) == "CANCELLED")
        self._log_states(states)
        taken: defaultdict[int, list[Any]] = defaultdict(list)
        for row in actions["take"]:
            taken[row["subscription_id"]].append(row)
        given_up: defaultdict[int, list[Any]] = defaultdict(list)
        for row in actions["give_up"]:
            given_up[row["subscription_id"]].append(row["token"])
        for subscription_id, state in states.items():
            given_up[subscription_id] = self.consumers[subscription_id].tokens
            if state == "CANCELLED":  # or removed
                self._end(self.consumers[subscription_id])
        wait = await self._take_and_give_up(taken, given_up)
        for row in actions["catch_up"]:
            self._add_history(row)
        await self._report_histories()
        dead = [one for one, state in states.items() if state == "DEAD"]
        if dead:  # not by a heartbeat, which may not take long: this counts the messages that were missed
            await self._store.resurrect(dead)
            await log_group_events(self._store)
        return _SOON if dead or actions["catch_up"] else wait

    async def _ask_for_actions(self) -> dict[str, list[Any]]:
        """Ask the database what to do with lanes. Returns its rows by action."""
        tokens = [token for consumer in self.consumers.values() for token in consumer.tokens]
        try:
            rows = await self._store.lease_lanes(self._worker, list(self.consumers), tokens)
        except DatabaseUnavailable:
            self._is_unsure = True
            raise
        actions: defaultdict[str, list[Any]] = defaultdict(list)
        for row in rows:
            actions[row["action"]].append(row)
        return actions

    async def _take_and_give_up(self, taken: dict[int, list[Any]], given_up: dict[int, list[Any]]) -> float:
        """Take lanes, and begin to give up others. Returns after how many seconds to ask again."""
        for subscription_id, unwanted in given_up.items():
            if subscription_id in self.consumers:
                self.consumers[subscription_id].give_up(unwanted)
        await asyncio.gather(*(self.consumers[one].take(lanes) for one, lanes in taken.items()))
        for consumer in self.consumers.values():
            consumer.join_lane_sets()
        self._stable_ticks = 0 if taken or any(given_up.values()) else self._stable_ticks + 1
        if any(given_up.values()):
            return _SOON
        return _INTERVAL if self._stable_ticks < 5 else _INTERVAL_WHEN_STABLE

    def _end(self, consumer: GroupConsumer) -> None:
        """Stop a consumer whose subscription has ended."""
        if consumer.history_of is None:
            consumer.group.is_started = False
        self._start_to_stop(consumer)

    async def _report_histories(self) -> None:
        """Store how fast catch-ups go."""
        for consumer in self.consumers.values():
            consumer.share_rate()
            if consumer.throttle is not None and consumer.throttle.p95 is not None and consumer.tokens:
                allowed = consumer.throttle.allowed_rate
                await self._store.report_catch_up(consumer.tokens[0], allowed, consumer.throttle.p95)

    def _log_states(self, states: dict[int, str]) -> None:
        """Log changes of state. `states` has the subscriptions that are not ACTIVE."""
        for subscription_id, consumer in self.consumers.items():
            state = states.get(subscription_id, "ACTIVE")
            name, topic = consumer.group.name, consumer.group.topic
            if state == "CANCELLED" and consumer.history_of is not None:
                event(logging.INFO, "catch_up.ended", group=name, topic=topic)
            elif state == "CANCELLED":
                event(logging.WARNING, "group.stopped", group=name, topic=topic, reason="cancelled or removed",
                      remedy="subscribe again: start the group or this process again")  # fmt: skip
            elif state != self._states.get(subscription_id, "ACTIVE"):
                level = logging.INFO if state == "ACTIVE" else logging.WARNING
                event(level, "group.state", group=name, topic=topic, state=state)
            self._states[subscription_id] = state

    def lose_all_in_doubt(self) -> None:
        """Read everything again from the stored cursors, because the server may have crashed."""
        for consumer in self.consumers.values():
            consumer.lose_all("a connection broke, and the server may have crashed", is_in_doubt=True)

    def _was_lost(self, lane_set: LaneSet, reason: str) -> None:
        # A consumer that is being stopped leaves its lanes anyway.
        if lane_set.subscription_id in self.consumers:
            lane_set.lose(reason)

    async def write_counts(self) -> None:
        groups = [one for one in self.consumers.values() if one.history_of is None]
        await self._counts.write({one.subscription_id: one.group for one in groups})

    def _stop_consuming(self) -> None:
        """Stop consuming. Our groups may be taken for DEAD, and then messages that they still handle are not kept."""
        self._is_failing = self._is_unsure = True
        for consumer in self.consumers.values():
            consumer.give_up(consumer.tokens)

    def _consume_again(self) -> None:
        self._is_failing = False

    async def drain(self) -> None:
        """Finish what is in hand, and leave all groups."""
        async with self._ticking:
            self._has_left = True
            consumers = list(self.consumers.values())
            await asyncio.gather(*(consumer.stop() for consumer in consumers), *self._stopping)
            await self.cursor_writer.settled()
            with suppress(DatabaseUnavailable):  # then others get the lanes when our leases expire
                await self.write_counts()
                await self.heartbeats.remove(self.consumers)
                await self._store.leave_groups(self._worker, list(self.consumers), is_stop=True)
            self._is_drained = True

    async def abort(self) -> None:
        """Cancel the handlers, settle what is done, and leave the groups, unless `drain` has left them already."""
        for task in self._stopping:
            task.cancel()
        consumers = [*self.consumers.values(), *self._stopping.values()]
        await asyncio.gather(*(one.abort() for one in consumers))
        self.was_cut_short = any(one.was_cut_short for one in consumers)
        await asyncio.gather(*self._stopping, return_exceptions=True)
        if consumers and not self._is_drained:
            with suppress(DatabaseUnavailable, TimeoutError):  # then others get the lanes when our leases expire
                async with asyncio.timeout(_ABORT_TIMEOUT):
                    left = [one.subscription_id for one in consumers]
                    await self.heartbeats.remove(left)
                    await self._store.leave_groups(self._worker, left, is_stop=self._has_left)
