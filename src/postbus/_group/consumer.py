"""Consuming for a group: lanes are taken, read lane set by lane set, and given up; the steps between are put together.

What `lane_reader` has read waits in `work_queues`, is handled (`handler`, `transactional`), and is deferred if it fails
(`deferral`), to be tried again (`redelivery`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from postbus._db.store import Store
from postbus._group.catch_up_throttle import Throttle
from postbus._group.cursor_writer import CursorWriter
from postbus._group.deferral import Deferral
from postbus._group.handler import GroupHandler
from postbus._group.lane_reader import LaneReader
from postbus._group.lane_set import TAKEN, LaneSet, LeasedLane
from postbus._group.log_reader import LogReader
from postbus._group.members import Members
from postbus._group.redelivery import Redelivery
from postbus._group.transactional import GroupTransactions
from postbus._group.work_queues import Work, WorkQueues
from postbus._handling.isolation import Suspect
from postbus._maintenance.heartbeat import ProcessHeartbeat
from postbus._runtime.log_events import event
from postbus._runtime.loop import patiently
from postbus._wakeup.waiters import TimedWaker
from postbus.catch_up import CatchUp
from postbus.group import Group
from postbus.middleware import Middleware

_LEAST_PREFETCH = 1000  # messages that are read ahead, in two reads: at least, …
_MOST_PREFETCH = 20_000  # … and at most, for handlers that take many
_PARTING = 3.0  # seconds, at most, for telling what is done when handlers have been cancelled
_GATHER = 0.005  # seconds in which handlers that end while lanes are left are told together


class GroupConsumer:
    """Works for one group in this process."""

    def __init__(
        self,
        group: Group,
        subscription_id: int,
        *,
        store: Store,
        handler_store: Store,
        reader: LogReader,
        cursor_writer: CursorWriter,
        heartbeat: ProcessHeartbeat,
        new_waker: Callable[[], TimedWaker],
        lease: timedelta,
        max_attempts: int,
        middleware: Sequence[Middleware] = (),
        lanes: int,
        is_limited: bool = False,
        history_of: int | None = None,
        catch_up: CatchUp | None = None,
    ) -> None:
        self.group = group
        self.history_of = history_of
        """The group's own subscription, if this one reads its history."""
        self.throttle = Throttle(catch_up) if catch_up is not None else None
        self.subscription_id = subscription_id
        self.lane_sets: list[LaneSet] = []
        self._store = store
        self._cursor_writer = cursor_writer
        self._lanes = lanes
        self._is_limited = is_limited
        self._heartbeat = heartbeat
        self._making_sure = asyncio.Lock()
        self._lease = lease.total_seconds()
        first = next(iter(group.members.values())).subscription
        self._options = first
        prefetch = max(_LEAST_PREFETCH, min(16 * first.slots, _MOST_PREFETCH))
        if catch_up is not None:
            prefetch = max(prefetch, 2 * catch_up.batch_size)
        self._members = Members(group, middleware)
        self._aside = Deferral(group, subscription_id, store, self.lose)
        self._handler = GroupHandler(self._members, self._aside)
        self._queues = WorkQueues(first.concurrency, self._do, self._started)
        self._transactions = transactions = None
        if first.transactional:
            self._transactions = transactions = GroupTransactions(
                subscription_id,
                self._members,
                self._handler,
                self._aside,
                store=store,
                handler_store=handler_store,
                cursor_writer=cursor_writer,
                concurrency=first.concurrency,
                lose=self.lose,
            )
        self._again = Redelivery(
            subscription_id,
            self._members,
            self._aside,
            self._queues,
            self.lane_sets,
            store=store,
            transactions=transactions,
            most=prefetch,
            max_attempts=max_attempts,
            lease=self._lease,
        )
        self._delivery = LaneReader(
            group.topic,
            first,
            self._queues,
            self._aside,
            store=store,
            reader=reader,
            cursor_writer=cursor_writer,
            transactions=transactions,
            new_waker=new_waker,
            prefetch=prefetch,
            throttle=self.throttle,
            lose=self.lose,
        )
        self._readers: dict[LaneSet, asyncio.Task[None]] = {}
        self._leaving: dict[asyncio.Task[None], LaneSet] = {}
        self._retrying: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._was_cut_short = False

    async def _do(self, work: Work) -> None:
        """What the queues do with a work."""
        lane_set, entry = work.lane_set, work.entry
        if not self._heartbeat.was_seen_ever_since(lane_set.sure_at):
            await self._make_sure(lane_set)
        if work.retry is not None:
            await self._again.handle(*work.retry)
            return
        assert entry is not None
        if lane_set.is_ending:
            return
        if self._options.batch is None:
            segment, index, _ = work.parts[0]
            is_settled = await self._handler.handle_one(lane_set, segment, index)
        else:
            is_settled = await self._handler.handle_batch(entry, work.parts)
        if is_settled:
            entry.done(work.parts)

    async def _make_sure(self, lane_set: LaneSet) -> None:
        """Begin nothing more in lanes that somebody else may have: this process was not seen for their lease.

        It stood still, or the database was away. Whoever has them goes on in them, and must not be overtaken.
        """
        async with self._making_sure:
            while not lane_set.is_lost and not self._heartbeat.was_seen_ever_since(lane_set.sure_at):
                await patiently(self._heartbeat.tick)
                asked_at = time.monotonic()
                if await patiently(lambda: self._store.are_held(lane_set.tokens)):
                    lane_set.sure_at = asked_at
                else:
                    self.lose(lane_set, TAKEN)

    @property
    def has_suspects(self) -> bool:
        return self._again.has_suspects

    async def claim_suspect(self) -> Suspect | None:
        """The next message that is to be tried alone, to be handled at once."""
        return await self._again.claim_suspect()

    async def try_beside(self) -> None:
        """Let what is to be tried alone wait in line with others."""
        await self._again.try_beside()

    # taking lanes

    def share_out(self) -> None:
        """Go as fast as fits the part of the work that this process has."""
        if self.throttle is not None:
            self.throttle.take_share(len(self.tokens) / self._lanes)

    @property
    def tokens(self) -> list[UUID]:
        return [token for lane_set in self.lane_sets for token in lane_set.tokens]

    async def take(self, rows: Sequence[Any]) -> None:
        """Start to read lanes that are ours now."""
        if self._is_limited:  # after they were taken: who adds a key takes all lanes away first
            keys = await patiently(lambda: self._store.keys_of(self.subscription_id))
            self._aside.keys = None if keys is None else frozenset(keys)
        known = await patiently(lambda: self._store.retrying_of([row["token"] for row in rows]))
        for one in known:
            self._aside.waiting.take_over(
                one["id"], one["key"], one["lane"], is_done=one["is_done"], ahead=one["ahead"]
            )
        apart: defaultdict[object, list[Any]] = defaultdict(list)
        for row in rows:
            # Each on its own where a message may be to blame, or where progress commits with the handler's work.
            is_alone = row["deaths"] > 0 or self._options.transactional
            apart[row["token"] if is_alone else row["cursor"]].append(row)
        for together in apart.values():
            lanes = [
                LeasedLane(row["lane"], row["token"], row["number"], row["deaths"], row["careful_until"])
                for row in together
            ]
            self._begin(lanes, together[0]["cursor"], together[0]["server"])
        if self._retrying is None or self._retrying.done():
            self._retrying = self._started(self._again.run(), "retry")
        self._aside.is_due.set()

    def _begin(self, lanes: Sequence[LeasedLane], cursor: str, server: datetime) -> None:
        lane_set = LaneSet(self.subscription_id, lanes, cursor, server, self._cursor_writer.add)
        self.lane_sets.append(lane_set)
        self._readers[lane_set] = self._started(self._delivery.read(lane_set), "read")

    def join_lane_sets(self) -> None:
        """Read lanes together that have come to the same place, with nothing in hand."""
        alike: defaultdict[tuple[str, datetime], list[LaneSet]] = defaultdict(list)
        for lane_set in self.lane_sets:
            if lane_set.is_at_rest and not self._options.transactional:
                alike[lane_set.cursor, lane_set.server].append(lane_set)
        for (cursor, server), lane_sets in alike.items():
            if len(lane_sets) > 1:
                for lane_set in lane_sets:
                    lane_set.is_ending = True
                    self.lane_sets.remove(lane_set)
                    self._readers.pop(lane_set).cancel()
                self._begin([lane for lane_set in lane_sets for lane in lane_set.lanes.values()], cursor, server)

    # losing and leaving them

    def lose(self, lane_set: LaneSet, reason: str, *, is_expected: bool = False) -> None:
        """Forget lanes of which some are somebody else's now, or nobody's."""
        if lane_set.is_lost:
            return
        lane_set.is_lost = lane_set.is_ending = True
        lane_set.freed.set()
        if not is_expected:
            event(logging.WARNING, "lanes.lost", group=self.group.name, topic=self.group.topic, lanes=lane_set.key,
                  reason=reason)  # fmt: skip
        reader = self._forget(lane_set)
        self._leave(lane_set, self._let_go(lane_set, reader))

    async def _let_go(self, lane_set: LaneSet, reader: asyncio.Task[None] | None) -> None:
        """Give back what is still ours: its other lanes, or all if we took our own step twice."""
        if reader is not None:
            await asyncio.gather(reader, return_exceptions=True)
        await self._finish(lane_set)
        await patiently(lambda: self._store.release_lanes(lane_set.tokens))

    def lose_token(self, token: UUID, *, is_expected: bool) -> None:
        for lane_set in list(self.lane_sets):
            if token in lane_set.tokens:
                self.lose(lane_set, TAKEN, is_expected=is_expected)

    def give_up(self, tokens: Sequence[UUID]) -> None:
        """Finish what is being handled in some lanes, beside other work, and then let others have them.

        From now on no handler begins with another message of these lanes.
        """
        for lane_set in list(self.lane_sets):
            if not lane_set.is_ending and not set(tokens).isdisjoint(lane_set.tokens):
                lane_set.is_ending = True
                lane_set.freed.set()
                self._leave(lane_set, self._give_up(lane_set, self._queues.drop(lane_set)))

    async def _give_up(self, lane_set: LaneSet, dropped: Sequence[Work]) -> None:
        await self._release(dropped)
        await self._end(lane_set)
        self._forget(lane_set)  # before others may have the lanes, of whom we may be one
        if not lane_set.is_lost:
            await patiently(lambda: self._store.release_lanes(lane_set.tokens))

    @property
    def has_left(self) -> bool:
        """Whether nothing is held or being given back."""
        return not self.lane_sets and not self._leaving

    async def stop(self) -> None:
        """Finish what is being handled in all lanes."""
        lane_sets = list(self.lane_sets)
        for lane_set in lane_sets:
            lane_set.is_ending = True
        await asyncio.gather(*(self._end(lane_set) for lane_set in lane_sets))
        for lane_set in lane_sets:
            self._forget(lane_set)
        await asyncio.gather(*self._leaving)
        await self.abort()

    async def abort(self) -> None:
        """Cancel what is being handled: that was no attempt. Tell what has been handled, if that does not take long."""
        lane_sets = {*self.lane_sets, *self._leaving.values()}
        for lane_set in lane_sets:
            lane_set.is_ending = True
        running = sum(lane_set.running for lane_set in lane_sets)
        in_hand = self._queues.close()
        tasks = [
            *self._readers.values(),
            *self._queues.tasks,
            *self._leaving,
            *([self._retrying] if self._retrying else []),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._was_cut_short |= running > len(self._again.returned)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PARTING):
                await self._again.settle_returned()
                for lane, due in [*self._again.cancelled, *(work.retry for work in in_hand if work.retry)]:
                    await self._again.release(lane, due)
                for lane_set in lane_sets:
                    await self._tell(lane_set)
        late = list(
            self._leaving
        )  # a lane set may be lost only as it is told of; who leaves the group gives its lanes back
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        self._members.close()
        if not self._failed.done():
            self._failed.cancel()

    @property
    def was_cut_short(self) -> bool:
        """Whether something was cancelled that had begun."""
        in_transaction = self._transactions is not None and self._transactions.was_cut_short
        return self._was_cut_short or in_transaction or bool(self._again.cancelled)

    async def failure(self) -> None:
        """Wait for a task of ours that fails, which only a bug of ours makes it do, and raise its error."""
        try:
            await self._failed
        except asyncio.CancelledError:
            if not self._failed.cancelled():
                raise
        except Exception:
            self._failed = asyncio.get_running_loop().create_future()  # for the next one
            raise

    async def _end(self, lane_set: LaneSet) -> None:
        lane_set.is_ending = True
        lane_set.freed.set()
        reader = self._readers.pop(lane_set, None)
        if reader is not None:
            if lane_set.is_waiting:
                reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        await self._finish(lane_set)
        await self._again.settled()

    async def _finish(self, lane_set: LaneSet) -> None:
        """Drop what has not begun, and wait for what has. Each handler that ends is told at once."""
        await self._release(self._queues.drop(lane_set))
        while True:
            is_running = lane_set.running > 0
            await self._tell(lane_set)
            if not is_running:
                return
            if lane_set.running:
                await lane_set.until_freed()
                await asyncio.sleep(_GATHER)

    async def _release(self, dropped: Sequence[Work]) -> None:
        for work in dropped:
            assert work.retry is not None
            await self._again.release(*work.retry)

    async def _tell(self, lane_set: LaneSet) -> None:
        """Tell the database what is done in lanes that are being left: up to the cursor, and ahead of it."""
        async with lane_set.telling:  # another one, who waits for us, gives the lanes back afterwards
            await self._cursor_writer.settle(lane_set)
            done = lane_set.take_done()
            if done and not lane_set.is_in_doubt:
                try:
                    await patiently(lambda: self._store.note_done(lane_set.tokens, done, lane_set.server))
                except BaseException:  # nobody knows whether they were told
                    lane_set.untold_done += done
                    raise

    def _forget(self, lane_set: LaneSet) -> asyncio.Task[None] | None:
        if lane_set in self.lane_sets:
            self.lane_sets.remove(lane_set)
            self._aside.waiting.remove_lanes(lane_set.key)
        reader = self._readers.pop(lane_set, None)
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()
        return reader

    def _leave(self, lane_set: LaneSet, work: Coroutine[Any, Any, None]) -> None:
        task = self._started(work, "leave")
        self._leaving[task] = lane_set
        task.add_done_callback(lambda task: self._leaving.pop(task, None))

    # tasks

    def _started(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"postbus-{what}-{self.group.name}")
        task.add_done_callback(self._has_ended)
        return task

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)
