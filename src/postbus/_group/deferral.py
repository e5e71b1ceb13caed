"""Defers messages of a group: messages whose handling failed, and messages that have to wait behind them."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta

from postbus._content.segment import Segment
from postbus._db.statements.log import ToDefer
from postbus._group.context import GroupContext
from postbus._group.deferred import DeferredMessages
from postbus._group.lane_set import TAKEN, LaneSet
from postbus._handling.handling import Handling
from postbus._runtime.log_events import event
from postbus._runtime.loop import patiently
from postbus._runtime.visible_text import last_line
from postbus.message import DeadLetter, Message, Outcome, Retry

POLL = 0.2  # seconds between two searches for deferred messages that are due
_WAKE_APART = 0.5  # seconds between two of them that wake-ups cause: these come for new messages, too
SUSPICION = "processes died while they handled messages at this position"


class Deferral:
    """Takes messages out of the order of the log, and knows which are deferred."""

    def __init__(self, context: GroupContext) -> None:
        self.messages = DeferredMessages(blocks=context.group.on_failure == "block")
        self.may_be_due = asyncio.Event()
        """Set when a deferred message may be due now."""
        self.keys: frozenset[str] | None = None
        """Messages of other keys are filtered. None: the group wants all keys."""
        self._group = context.group
        self._subscription_id = context.subscription_id
        self._store = context.store
        self._next_wake = 0.0

    def was_woken(self) -> None:
        """Note a wake-up that brought nothing new in the log. Perhaps dead letters were redriven."""
        now = time.monotonic()
        if now >= self._next_wake:
            self._next_wake = now + _WAKE_APART
            self.may_be_due.set()

    @property
    def affects_log(self) -> bool:
        """Whether each message that the log brings has to be checked."""
        return self.keys is not None or self.messages.affects_log

    async def skip_or_park(self, lane_set: LaneSet, segment: Segment, index: int) -> bool:
        """Whether a message is not to be handled now.

        It has a key that the group does not want, or it is deferred or settled already, or it is parked by this call
        behind another message of its key.
        """
        if self.keys is not None and segment.key(index) not in self.keys:
            self._group.filtered += 1
            return True
        if self.messages.skips(segment.message_id(index)):
            return True
        if self.messages.is_blocked(segment.key(index)):
            await self.defer(lane_set, segment, index, "park")
            return True
        return False

    async def defer_by_outcome(
        self, lane_set: LaneSet, segment: Segment, index: int, outcome: Outcome, handling: Handling | None
    ) -> None:
        """Defer a message, or make it a dead letter, as its outcome says."""
        match outcome:
            case Retry(error=error):
                delay = handling.retry_delay(outcome, 1) if handling else None
                limit = handling.max_attempts if handling else None
                await self.defer(lane_set, segment, index, "retry", delay=delay, error=error, max_attempts=limit)
            case DeadLetter(reason=reason, error=error):
                await self.defer(lane_set, segment, index, "dead", reason=reason, error=error)
            case _:  # Release: it is delivered again, and this was no attempt
                await self.defer(lane_set, segment, index, "release")

    async def defer(
        self,
        lane_set: LaneSet,
        segment: Segment,
        index: int,
        kind: str,
        *,
        delay: timedelta | None = None,
        error: str | None = None,
        reason: str | None = None,
        max_attempts: int | None = None,
    ) -> None:
        """Store a message as deferred. While the database is away, this waits for it."""
        lane = lane_set.lanes[segment.lane]
        message = segment.message(index)
        lane_set.is_deferring = True
        if kind not in ("park", "dead") and self.messages.is_behind(message):  # it failed together with an earlier one
            kind = "park"
        deferred = ToDefer(kind, message.id, segment.sequence, delay, error, reason)
        results = await patiently(
            lambda: self._store.defer(self._subscription_id, lane.lane, lane.token, [deferred], max_attempts)
        )
        if results is None:
            lane_set.lose(TAKEN)
            return
        result = results[0]
        if result not in ("dead", "gone") and not lane_set.is_lost:  # if it is lost, the lane's new holder has it
            self.messages.add(message.id, message.key, lane.lane)
        if result in ("retried", "released", "suspected"):
            self.will_be_due(delay)
        self.log_result(result, message, error or reason)

    def will_be_due(self, delay: timedelta | None) -> None:
        """Note that a message is due now or after a delay. If the delay is longer than a poll, a poll finds it."""
        seconds = 0.0 if delay is None else delay.total_seconds()
        if 0 < seconds < POLL:
            asyncio.get_running_loop().call_later(seconds, self.may_be_due.set)
        else:
            self.may_be_due.set()

    def log_result(self, result: str, message: Message, error: str | None) -> None:
        if result == "gone":
            event(logging.WARNING, "message.gone", topic=message.topic, group=self._group.name, id=message.id,
                  error=last_line(error))  # fmt: skip
        elif result in ("retried", "dead"):
            event(logging.ERROR if result == "dead" else logging.WARNING, f"message.{result}", topic=message.topic,
                  group=self._group.name, id=message.id, attempt=message.attempt, error=last_line(error))  # fmt: skip
