"""Handles works of the work queues."""

from __future__ import annotations

import asyncio
import time

from postbus._group.context import GroupContext
from postbus._group.handler import GroupHandler
from postbus._group.lane_set import TAKEN, LaneSet
from postbus._group.redelivery_handler import RedeliveryHandler
from postbus._group.work_queues import Work
from postbus._runtime.loop import patiently


class WorkHandler:
    """Hands a work to the handler for messages of the log, or to the one for deferred messages."""

    def __init__(self, context: GroupContext, handler: GroupHandler, redelivery_handler: RedeliveryHandler) -> None:
        self._store = context.store
        self._heartbeat = context.heartbeat
        self._is_batch = context.options.batch is not None
        self._handler = handler
        self._redelivery_handler = redelivery_handler
        self._confirming = asyncio.Lock()

    async def handle(self, work: Work) -> None:
        lane_set, entry = work.lane_set, work.entry
        if not self._heartbeat.was_seen_ever_since(lane_set.confirmed_at):
            await self._confirm(lane_set)
        if work.deferred is not None:
            await self._redelivery_handler.handle(*work.deferred)
            return
        assert entry is not None
        if lane_set.is_ending:
            return
        if self._is_batch:
            is_settled = await self._handler.handle_batch(entry, work.parts)
        else:
            segment, index, _ = work.parts[0]
            is_settled = await self._handler.handle_one(lane_set, segment, index)
        if is_settled:
            entry.done(work.parts)

    async def _confirm(self, lane_set: LaneSet) -> None:
        """Ask the database whether the lanes are still ours, because no heartbeat has arrived for longer than a lease.

        The process stood still, or the database was away. Another process may have the lanes by now, and this one must
        not overtake it.
        """
        async with self._confirming:
            while not lane_set.is_lost and not self._heartbeat.was_seen_ever_since(lane_set.confirmed_at):
                await patiently(self._heartbeat.tick)
                asked_at = time.monotonic()
                if await patiently(lambda: self._store.are_held(lane_set.tokens)):
                    lane_set.confirmed_at = asked_at
                else:
                    lane_set.lose(TAKEN)
