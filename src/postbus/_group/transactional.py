"""Transactional handlers of groups: their work and the group's position commit together."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import Any

from postbus._db.error_map import translate
from postbus._group.context import GroupContext
from postbus._group.deferral import Deferral
from postbus._group.handler import Chosen, GroupHandler
from postbus._group.lane_set import LeasedLane, WindowEntry
from postbus._group.members import Members
from postbus._group.work_queues import Work
from postbus._handling.handling import ACK, Handling
from postbus._handling.isolation import running_calls
from postbus._runtime.log_events import event
from postbus._runtime.loop import Backoff
from postbus.errors import CommitUnknown, DatabaseUnavailable, LeaseLost
from postbus.group import Member
from postbus.message import Message, Outcome, Release, Retry


class GroupTransactions:
    """Runs handlers in transactions, as many at a time as the group's concurrency."""

    def __init__(self, context: GroupContext, members: Members, handler: GroupHandler, deferral: Deferral) -> None:
        self._subscription_id = context.subscription_id
        self._store = context.store
        self._handler_store = context.handler_store
        self._cursor_writer = context.cursor_writer
        self._slots = asyncio.Semaphore(context.options.concurrency)
        self._members = members
        self._handler = handler
        self._deferral = deferral
        self._calls = running_calls()
        self.was_cut_short = False
        """Whether a handler was cancelled."""

    async def handle(self, lane: LeasedLane, work: Work) -> None:
        """Handle messages in the transaction that moves the cursor behind them."""
        async with self._calls.counted():
            await self._handle(lane, work)

    async def _handle(self, lane: LeasedLane, work: Work) -> None:
        entry = work.entry
        assert entry is not None
        lane_set = entry.lane_set
        chosen = await self._handler.choose_each(lane_set, work.parts)
        await self._cursor_writer.settle(lane_set)
        if chosen and not lane_set.is_lost:
            failed = await self._in_transaction(lane, entry, chosen)
            if failed is None:
                return
            for member, outcomes in failed.items():
                messages = [(segment, index) for segment, index, _ in chosen[member][0]]
                member.counts.failed += len(messages)
                handling = self._members.handling_of(member)
                for (segment, index), outcome in zip(messages, outcomes, strict=True):
                    await self._deferral.defer_by_outcome(lane_set, segment, index, outcome, handling)
        if lane_set.is_lost:
            return
        entry.done()
        if lane_set.is_deferring:
            await self._cursor_writer.settle(lane_set)
            lane_set.deferral_was_written()

    async def _in_transaction(
        self, lane: LeasedLane, entry: WindowEntry, chosen: Chosen
    ) -> dict[Member, Sequence[Outcome]] | None:
        """Call handlers in a transaction. Returns the outcomes of messages that have to be deferred.

        There are none if all is done, or if the lane is lost. None means that no handler was called, because the lane
        set is ending.
        """
        backoff, mark = Backoff(), secrets.token_hex(8)
        while True:
            outcomes: dict[Member, Sequence[Outcome]] = {}
            try:
                async with self._slots, self._handler_store.transaction(mark) as conn:
                    if not await self._store.hold_lane(lane.token, conn):
                        raise self._lane_is_lost(lane)
                    if entry.lane_set.is_ending:  # by now: nothing more begins
                        return None
                    for member, (parts, payloads) in chosen.items():
                        messages = [segment.message(index) for segment, index, _ in parts]
                        outcomes[member] = await self._outcomes(member, messages, payloads, conn)
                        if any(outcome is not ACK for outcome in outcomes[member]):
                            raise _HandlerRolledBack
                    if await self._store.advance([entry.lane_set.step_after(entry)], conn, mark):
                        raise self._lane_is_lost(lane)
                lane.number += 1
                entry.lane_set.was_advanced(entry)
                for member, succeeded in outcomes.items():
                    member.counts.processed += len(succeeded)
                return {}
            except _HandlerRolledBack:
                return {
                    member: [Retry() if outcome is ACK else outcome for outcome in outcomes[member]]
                    if member in outcomes
                    else [Release()] * len(parts)
                    for member, (parts, _) in chosen.items()
                }
            except (LeaseLost, CommitUnknown) as error:  # if it is unknown, the stored cursor tells where to go on
                self._log_undone(error)
                entry.lane_set.lose(error.message)
                return {}
            except Exception as error:
                if outcomes or not _is_away(error):
                    retry = Retry(error=self._members.handling_of(next(iter(chosen))).described(error))
                    return {member: [retry] * len(parts) for member, (parts, _) in chosen.items()}
                # No handler was called, so this was no attempt: try once more.
                if entry.lane_set.is_ending:
                    return None
                await asyncio.sleep(backoff.next())

    async def _outcomes(
        self, member: Member, messages: Sequence[Message], payloads: list[Any], conn: Any
    ) -> Sequence[Outcome]:
        count = len(payloads)  # the handler may change the list
        with member.counts.running(count):
            try:
                return await self._members.handling_of(member).outcomes(messages, payloads, conn)
            except asyncio.CancelledError:
                self.was_cut_short = True
                raise

    async def handle_deferred(
        self, lane: LeasedLane, message: Message, payload: Any, handling: Handling
    ) -> Outcome | None:
        """Handle a deferred message in the transaction that settles it. Returns None if it needs no more settlement."""
        outcome: Outcome | None = None
        mark = secrets.token_hex(8)
        try:
            async with self._slots, self._handler_store.transaction(mark) as conn:
                if lane.lane_set.is_ending:  # while we waited for the connection: nothing more begins
                    return Release()
                outcome = (await handling.outcomes([message], [payload], conn))[0]
                if outcome is not ACK:
                    raise _HandlerRolledBack
                results = await self._store.settle_deferred(
                    self._subscription_id, lane.lane, lane.token, [message.id], "done", conn=conn, mark=mark
                )
                if results[0] == "lost":
                    raise self._lane_is_lost(lane)
        except _HandlerRolledBack:
            return outcome
        except (LeaseLost, CommitUnknown) as error:
            self._log_undone(error, messages=[message.id])
        except Exception as error:
            return Release() if outcome is None and _is_away(error) else Retry(error=handling.described(error))
        if not lane.lane_set.is_lost:
            self._deferral.messages.remove(message.id)
        self._deferral.may_be_due.set()
        return None

    def _lane_is_lost(self, lane: LeasedLane) -> LeaseLost:
        return LeaseLost(f"lane {lane.lane} of group {self._members.group.name} is lost")

    def _log_undone(self, error: LeaseLost | CommitUnknown, **details: Any) -> None:
        group = self._members.group
        event(logging.WARNING, "message.undone", topic=group.topic, group=group.name, **details, error=error.message)


def _is_away(error: Exception) -> bool:
    return isinstance(error, DatabaseUnavailable) or isinstance(translate(error), DatabaseUnavailable)


class _HandlerRolledBack(Exception):
    """Rolls back the transaction of a handler that did not ack everything."""
