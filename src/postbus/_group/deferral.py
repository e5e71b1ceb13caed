"""Taking messages out of a group's way: what failed, and what has to wait behind it."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta

from postbus._content.segment import Segment
from postbus._db.statements.log import PutOff
from postbus._db.store import Store
from postbus._group.deferred import DeferredMessages
from postbus._group.lane_set import TAKEN, LaneSet, Lose
from postbus._handling.handling import Handling
from postbus._handling.settler import last_line
from postbus._runtime.log_events import event
from postbus._runtime.loop import patiently
from postbus.group import Group
from postbus.message import DeadLetter, Message, Outcome, Retry

POLL = 0.2  # seconds between two looks at what is due to be tried again
_LOOKS_APART = 0.5  # seconds: other processes are rung for by the same waker


class Deferral:
    """Where a group's messages go that do not pass in the order of the log, and which of them are there."""

    def __init__(self, group: Group, subscription_id: int, store: Store, lose: Lose) -> None:
        self.waiting = DeferredMessages(blocks=group.on_failure == "block")
        self.is_due = asyncio.Event()
        """Something may have to be tried again now."""
        self.keys: frozenset[str] | None = None
        """Messages of other keys are not wanted, and pass by as filtered ones do; None: all are."""
        self._group = group
        self._subscription_id = subscription_id
        self._store = store
        self._lose = lose
        self._next_look = 0.0

    def look(self) -> None:
        """Somebody rang, and nothing is new in the log: perhaps messages were redriven."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOKS_APART
            self.is_due.set()

    @property
    def concerns_log(self) -> bool:
        """Whether messages of the log have to be looked at."""
        return self.keys is not None or self.waiting.concerns_log

    async def stands_aside(self, lane_set: LaneSet, segment: Segment, index: int) -> bool:
        """Whether a message is not wanted, was taken out of the way already, or waits behind another one of its key."""
        if self.keys is not None and segment.key(index) not in self.keys:
            self._group.filtered += 1
            return True
        if self.waiting.passes_by(segment.message_id(index)):
            return True
        if self.waiting.is_blocked(segment.key(index)):
            await self.put_off(lane_set, segment, index, "park")
            return True
        return False

    async def set_aside(
        self, lane_set: LaneSet, segment: Segment, index: int, outcome: Outcome, handling: Handling | None
    ) -> None:
        """Take a message out of the way as its outcome says."""
        match outcome:
            case Retry(error=error):
                delay = handling.retry_delay(outcome, 1) if handling else None
                limit = handling.max_attempts if handling else None
                await self.put_off(lane_set, segment, index, "retry", delay=delay, error=error, max_attempts=limit)
            case DeadLetter(reason=reason, error=error):
                await self.put_off(lane_set, segment, index, "dead", reason=reason, error=error)
            case _:  # Release: it is tried again, and this was no attempt
                await self.put_off(lane_set, segment, index, "release")

    async def put_off(
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
        """Store a message apart. While the database is away, this waits for it."""
        lane = lane_set.lanes[segment.lane]
        message = segment.message(index)
        lane_set.is_putting_off = True
        if kind not in ("park", "dead") and self.waiting.is_behind(message):  # failed together with one before it
            kind = "park"
        put_off = PutOff(kind, message.id, segment.position, delay, error, reason)
        told = await patiently(
            lambda: self._store.put_off(self._subscription_id, lane.lane, lane.token, [put_off], max_attempts)
        )
        if told is None:
            self._lose(lane_set, TAKEN)
            return
        if told[0] not in ("dead", "gone") and not lane_set.is_lost:  # else it is for whoever has the lane now
            self.waiting.add(message.id, message.key, lane.lane)
        if told[0] in ("retried", "released", "suspected"):
            self.comes_back(delay)
        self.tell(told[0], message, error or reason)

    def comes_back(self, delay: timedelta | None) -> None:
        """Something is to be tried again, now or after a while; what takes longer than a poll is found by one."""
        seconds = 0.0 if delay is None else delay.total_seconds()
        if 0 < seconds < POLL:
            asyncio.get_running_loop().call_later(seconds, self.is_due.set)
        else:
            self.is_due.set()

    def tell(self, outcome: str, message: Message, error: str | None) -> None:
        if outcome == "gone":
            event(logging.WARNING, "message.gone", topic=message.topic, group=self._group.name, id=message.id,
                  error=last_line(error))  # fmt: skip
        elif outcome in ("retried", "dead"):
            event(logging.ERROR if outcome == "dead" else logging.WARNING, f"message.{outcome}", topic=message.topic,
                  group=self._group.name, id=message.id, attempt=message.attempt, error=last_line(error))  # fmt: skip
