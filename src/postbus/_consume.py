"""Consuming for a group: what is read goes to handlers, in order per key, and what fails out of the way."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from postbus._handle import ACK, NOT_DECODABLE, Handling, not_decodable
from postbus._log import event
from postbus._loop import Backoff, pause
from postbus._reader import LogReader
from postbus._segment import Piece, Segment
from postbus._settle import last_line
from postbus._store import PutOff, Store
from postbus._strand import Advancer, Entry, HeldLane, Strand
from postbus.errors import CommitUnknown, DatabaseUnavailable, LeaseLost
from postbus.group import Group, Member, stable_hash
from postbus.message import DeadLetter, Message, Outcome, Release, Retry
from postbus.middleware import Middleware

_LEAST_PREFETCH = 1000  # messages that are read ahead, at least …
_RETRY_POLL = 0.2
_RETRY_IDLE_POLL = 5.0
_ALONE = 3  # deaths after which messages are handled one by one
_GUILTY = 5  # deaths after which the message that was handled alone is given up

_Part = tuple[Segment, int, int]


class _Work:
    """Messages for one call of a handler."""

    __slots__ = ("entry", "parts", "retry")

    def __init__(self, entry: Entry | None, parts: Sequence[_Part], retry: tuple[HeldLane, Message] | None = None):
        self.entry = entry
        self.parts = parts
        self.retry = retry
        """A message that is tried again, with its lane, instead of parts of the log."""


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
        advancer: Advancer,
        new_bell: Callable[[], asyncio.Event],
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self.group = group
        self.subscription_id = subscription_id
        self.strands: list[Strand] = []
        self._store = store
        self._handler_store = handler_store
        self._reader = reader
        self._advancer = advancer
        self._new_bell = new_bell
        self._middleware = middleware
        self._handlings: dict[Member, Handling] = {}
        first = next(iter(group.members.values())).subscription
        self._options = first
        self._prefetch = max(_LEAST_PREFETCH, 4 * first.slots)  # … or for some calls of each handler, in two reads
        self._queues: list[deque[_Work]] = [deque() for _ in range(first.concurrency)]
        self._runners: dict[int, asyncio.Task[None]] = {}
        self._next_queue = 0
        self._readers: dict[Strand, asyncio.Task[None]] = {}
        self._waiting: dict[int, str | None] = {}  # ids that are tried again or parked, with their keys
        self._blocked: defaultdict[str, set[int]] = defaultdict(set)
        self._retry_soon = asyncio.Event()
        self._retrying: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # lanes

    @property
    def tokens(self) -> list[UUID]:
        return [lane.token for strand in self.strands for lane in strand.lanes.values()]

    async def take(self, rows: Sequence[Any]) -> None:
        """Start to read lanes that are ours now."""
        known = await self._store.retrying_of([row["token"] for row in rows])
        for one in known:
            self._wait_for(one["id"], one["key"])
        apart: defaultdict[object, list[Any]] = defaultdict(list)
        for row in rows:
            # Each on its own where a message may be to blame, or where progress commits with the handler's work.
            is_alone = row["deaths"] > 0 or self._options.transactional
            apart[row["token"] if is_alone else row["cursor"]].append(row)
        for together in apart.values():
            lanes = [
                HeldLane(row["lane"], row["token"], row["number"], row["deaths"], row["careful_until"])
                for row in together
            ]
            strand = Strand(self.subscription_id, lanes, together[0]["cursor"], self._advancer.add)
            self.strands.append(strand)
            self._readers[strand] = self._started(self._read(strand), f"read-{self.group.name}")
        if self._retrying is None or self._retrying.done():
            self._retrying = self._started(self._try_again(), f"retry-{self.group.name}")
        self._retry_soon.set()

    def lose(self, strand: Strand) -> None:
        """Forget lanes that somebody else has now."""
        if not strand.is_lost:
            strand.is_lost = strand.is_ending = True
            event(logging.WARNING, "lanes.lost", group=self.group.name, topic=self.group.topic, lanes=strand.key)
            self._forget(strand)

    def lose_token(self, token: UUID) -> None:
        for strand in list(self.strands):
            if any(lane.token == token for lane in strand.lanes.values()):
                self.lose(strand)

    async def give_up(self, tokens: Sequence[UUID]) -> None:
        """Finish what is being handled in some lanes, and let others have them."""
        wanted = set(tokens)
        for strand in list(self.strands):
            if wanted & {lane.token for lane in strand.lanes.values()}:
                await self._end(strand)
                if not strand.is_lost:
                    await self._store.release_lanes([lane.token for lane in strand.lanes.values()])
                self._forget(strand)

    async def stop(self) -> None:
        """Finish what is being handled in all lanes."""
        for strand in list(self.strands):
            await self._end(strand)
            self._forget(strand)
        await self.abort()

    async def abort(self) -> None:
        tasks = [*self._readers.values(), *self._runners.values(), *([self._retrying] if self._retrying else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for handling in self._handlings.values():
            handling.close()
        if not self._failed.done():
            self._failed.cancel()

    async def failure(self) -> None:
        """Wait for a task of ours that fails, which only a bug of ours makes it do, and raise its error."""
        try:
            await self._failed
        except asyncio.CancelledError:
            if not self._failed.cancelled():
                raise

    async def _end(self, strand: Strand) -> None:
        strand.is_ending = True
        reader = self._readers.pop(strand, None)
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        held = {lane.token for lane in strand.lanes.values()}
        for queue in self._queues:  # what has not begun
            for work in list(queue):
                is_ours = work.entry is not None and work.entry.strand is strand
                if is_ours or (work.retry is not None and work.retry[0].token in held):
                    queue.remove(work)
        await asyncio.gather(*self._runners.values())
        backoff = Backoff()
        while not strand.is_settled and not strand.is_lost:
            try:
                await self._advancer.advance([strand])
                if strand.is_advancing:
                    await asyncio.sleep(0.005)
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.next())

    def _forget(self, strand: Strand) -> None:
        if strand in self.strands:
            self.strands.remove(strand)
        reader = self._readers.pop(strand, None)
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()
        if not self.strands:
            self._waiting.clear()
            self._blocked.clear()

    def _started(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=f"postbus-{name}")
        task.add_done_callback(self._has_ended)
        return task

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    # reading

    async def _read(self, strand: Strand) -> None:
        """Read on as long as the strand is ours, and never much further than handlers have come."""
        bell, backoff, wait = self._new_bell(), Backoff(), 0.01
        while not strand.is_ending:
            while strand.in_hand >= self._prefetch:
                strand.freed.clear()
                await strand.freed.wait()
            # Clear before reading, not after: a message that commits while we read must wake us again.
            bell.clear()
            try:
                piece = await self._reader.read(
                    self.group.topic,
                    strand.key,
                    strand.cursor,
                    strand.taken_at,
                    is_between=strand.is_between,
                    max_count=self._prefetch // 2,
                    max_bytes=self._options.max_bytes,
                )
                backoff.reset()
            except DatabaseUnavailable as error:
                away = backoff.next()
                event(logging.WARNING, "database.away", loop=f"read {self.group.topic}", retry_in=f"{away:.2f}s",
                      error=error.message)  # fmt: skip
                await asyncio.sleep(away)
                continue
            strand.read_on(piece.next_cursor, is_between=piece.more)
            if piece.segments:
                wait = 0.01
                await self._deliver(strand, piece)
            if not piece.more and not strand.is_ending:
                if not piece.segments:
                    wait = min(wait * 2, self._options.poll)
                await pause(wait, bell)

    async def _deliver(self, strand: Strand, piece: Piece) -> None:
        lanes = list(strand.lanes.values())
        if lanes[0].deaths > 0:
            await self._deliver_carefully(strand, lanes[0], piece)
        elif self._options.transactional:
            for work in self._works(strand, piece, self._options.batch or 1):
                await self._handle_transactionally(lanes[0], work)
        elif self._options.batch is None:
            for work in self._works(strand, piece, 1):
                self._enqueue(work, work.parts[0][0].key(work.parts[0][1]))
        elif self._options.concurrency == 1 or all(segment.keys is None for segment in piece.segments):
            for work in self._works(strand, piece, self._options.batch):
                self._enqueue(work, None)
        else:
            self._enqueue_by_key(strand, piece, self._options.batch)

    def _works(self, strand: Strand, piece: Piece, size: int) -> list[_Work]:
        """A piece as works of up to `size` messages, each an entry of the strand's window."""
        assert piece.during is not None
        works, parts, count = [], [], 0
        for segment in piece.segments:
            start, end = segment.first_index, len(segment)
            while start < end:
                stop = min(end, start + size - count)
                parts.append((segment, start, stop))
                count += stop - start
                start = stop
                if count == size:
                    entry = Entry(strand, segment.position, stop - 1, piece.during, count=count)
                    strand.add(entry)
                    works.append(_Work(entry, parts))
                    parts, count = [], 0
        if parts:
            entry = Entry(strand, parts[-1][0].position, parts[-1][2] - 1, piece.during, count=count)
            strand.add(entry)
            works.append(_Work(entry, parts))
        last = works[-1].entry
        assert last is not None
        last.cursor, last.index = piece.next_cursor, -1  # after the last one the whole piece is done
        return works

    def _enqueue_by_key(self, strand: Strand, piece: Piece, size: int) -> None:
        """Batches in which messages of one key stay in one queue; the piece is settled as a whole."""
        entry = Entry(strand, 0, -1, piece.next_cursor, count=piece.count)
        strand.add(entry)
        by_queue: defaultdict[int, list[_Part]] = defaultdict(list)
        for segment in piece.segments:
            for index in range(segment.first_index, len(segment)):
                by_queue[self._queue_of(segment.key(index))].append((segment, index, index + 1))
        works = [
            (queue, _Work(entry, parts[start : start + size]))
            for queue, parts in by_queue.items()
            for start in range(0, len(parts), size)
        ]
        entry.pending = len(works)
        for queue, work in works:
            self._put(queue, work)

    def _queue_of(self, key: str | None) -> int:
        if key is None:
            self._next_queue = (self._next_queue + 1) % len(self._queues)
            return self._next_queue
        return stable_hash(key) % len(self._queues)

    def _enqueue(self, work: _Work, key: str | None) -> None:
        self._put(self._queue_of(key), work)

    def _put(self, queue: int, work: _Work) -> None:
        self._queues[queue].append(work)
        if queue not in self._runners:
            self._runners[queue] = self._started(self._run(queue), f"handler-{self.group.name}")

    async def _deliver_carefully(self, strand: Strand, lane: HeldLane, piece: Piece) -> None:
        """A few messages at a time, each settled before the next: one of them may have killed those before us."""
        limit = 1 if lane.deaths >= _ALONE else max(1, self._prefetch >> (3 * lane.deaths))
        works = self._works(strand, piece, min(limit, self._options.batch or 1))
        for start in range(0, len(works), max(1, limit // (self._options.batch or 1))):
            some = works[start : start + max(1, limit // (self._options.batch or 1))]
            for work in some:
                assert work.entry is not None
                segment, index, _ = work.parts[0]
                if lane.deaths >= _GUILTY:
                    reason = f"processes that handled it died {lane.deaths} times"
                    await self._put_off(strand, segment, index, "dead", reason=reason)
                    lane.deaths = _ALONE
                    work.entry.done()
                elif self._options.transactional:
                    await self._handle_transactionally(lane, work)
                else:
                    self._enqueue(work, segment.key(index))
            while not strand.is_lost and any(work.entry.pending for work in some if work.entry):
                strand.freed.clear()
                await strand.freed.wait()
            await self._settle_now(strand)
            if strand.is_ending:
                return
            if lane.careful_until is not None and some[-1].parts[-1][0].position > lane.careful_until:
                await self._calm(lane)
        if not piece.more:
            await self._calm(lane)

    async def _calm(self, lane: HeldLane) -> None:
        if lane.deaths:
            lane.deaths, lane.careful_until = 0, None
            await self._patiently(lambda: self._store.calm_lane(lane.token))

    async def _settle_now(self, strand: Strand) -> None:
        while not strand.is_settled and not strand.is_lost:
            await self._patiently(lambda: self._advancer.advance([strand]))
            if strand.is_advancing:
                await asyncio.sleep(0.002)

    async def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Ask the database; while it is away, wait for it."""
        backoff = Backoff()
        while True:
            try:
                return await ask()
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.next())

    # handling

    async def _run(self, queue: int) -> None:
        """Work through one queue. Messages of one key are all in the same one."""
        works = self._queues[queue]
        try:
            while works:
                work = works.popleft()
                if work.retry is not None:
                    await self._handle_again(*work.retry)
                    continue
                assert work.entry is not None
                if not work.entry.strand.is_lost:
                    if self._options.batch is None:
                        await self._handle_one(work.entry.strand, *work.parts[0][:2])
                    else:
                        await self._handle_batch(work.entry.strand, work.parts)
                work.entry.done()
        finally:
            # Now, not when the task's callbacks run: what is added in between needs a new runner.
            self._runners.pop(queue, None)

    def _handling_of(self, member: Member) -> Handling:
        handling = self._handlings.get(member)
        if handling is None:
            handling = self._handlings[member] = Handling(member.subscription, self._middleware)
        return handling

    @property
    def _only_member(self) -> Member | None:
        """The one who gets everything."""
        if self.group.filter is None and len(self.group.members) == 1:
            member = next(iter(self.group.members.values()))
            return member if member.filter is None else None
        return None

    def _choose(self, message: Message) -> Member | Outcome | None:
        """Who gets a message. None: all filters reject it; an outcome: a filter failed."""
        try:
            return self.group.member_for(message)
        except Exception as error:
            first = next(iter(self.group.members.values()))
            return Retry(error=self._handling_of(first).described(error))

    async def _handle_one(self, strand: Strand, segment: Segment, index: int) -> None:
        key = segment.key(index)
        if (self._waiting or self._blocked) and await self._stands_aside(strand, segment, index, key):
            return
        message = segment.message(index)
        chosen = self._only_member or self._choose(message)
        if chosen is None:
            self.group.filtered += 1
        elif isinstance(chosen, Member):
            handling = self._handling_of(chosen)
            chosen.counts.in_flight += 1
            try:
                outcome = await self._outcome(handling, segment, index, message)
            finally:
                chosen.counts.in_flight -= 1
            if outcome is ACK:
                chosen.counts.processed += 1
            else:
                chosen.counts.failed += 1
                await self._set_aside(strand, segment, index, outcome, handling)
        else:
            await self._set_aside(strand, segment, index, chosen, None)

    async def _outcome(self, handling: Handling, segment: Segment, index: int, message: Message) -> Outcome:
        if handling.is_plain and len(segment) == 1:
            return await handling.plain_outcome(message)
        try:
            payload = self._payload(handling, segment, index)
        except NOT_DECODABLE as error:
            return not_decodable(error)
        return (await handling.outcomes([message], [payload], None))[0]

    @staticmethod
    def _payload(handling: Handling, segment: Segment, index: int) -> Any:
        decode = handling.call.decoder
        if decode is None:
            return segment.message(index)
        try:
            return segment.decoded(decode)[index]
        except NOT_DECODABLE:  # not necessarily of this one
            return decode(segment.payloads[index], segment.type_of(index))

    async def _stands_aside(self, strand: Strand, segment: Segment, index: int, key: str | None) -> bool:
        """Whether a message was taken out of the way already, or waits behind another one of its key."""
        message_id = segment.message_id(index)
        if message_id in self._waiting:
            return True
        if key is not None and self._blocked.get(key):
            await self._put_off(strand, segment, index, "park")
            return True
        return False

    async def _handle_batch(self, strand: Strand, parts: Sequence[_Part]) -> None:
        member = self._only_member
        if member is None or self._waiting or self._blocked:
            await self._handle_chosen(strand, parts)
            return
        handling = self._handling_of(member)
        decode = handling.call.decoder
        try:
            payloads: list[Any] = []
            for segment, start, stop in parts:
                whole = stop - start == len(segment)
                found = segment.decoded(decode) if decode else [segment.message(i) for i in range(len(segment))]
                payloads += found if whole else found[start:stop]
        except NOT_DECODABLE:
            await self._handle_chosen(strand, parts)
            return
        needs_messages = handling.call.message_parameter is not None or bool(self._middleware)
        messages = [(s, i) for s, start, stop in parts for i in range(start, stop)] if needs_messages else None
        await self._call_batch(strand, member, messages, parts, payloads)

    async def _call_batch(
        self,
        strand: Strand,
        member: Member,
        messages: list[tuple[Segment, int]] | None,
        parts: Sequence[_Part],
        payloads: list[Any],
    ) -> None:
        handling = self._handling_of(member)
        given = [segment.message(index) for segment, index in messages] if messages is not None else []
        count = len(payloads)  # the handler may change the list
        member.counts.in_flight += count
        try:
            outcomes = await handling.outcomes_unless_acked(given, payloads, None)
        finally:
            member.counts.in_flight -= count
        if outcomes is None:
            member.counts.processed += count
            return
        failed = [place for place, outcome in enumerate(outcomes) if outcome is not ACK]
        member.counts.processed += count - len(failed)
        member.counts.failed += len(failed)
        if failed:
            places = [(segment, index) for segment, start, stop in parts for index in range(start, stop)]
            for place in failed:
                await self._set_aside(strand, *places[place], outcomes[place], handling)

    async def _handle_chosen(self, strand: Strand, parts: Sequence[_Part]) -> None:
        """A batch whose messages have to be looked at one by one before they are handled."""
        by_member: defaultdict[Member, tuple[list[_Part], list[Any]]] = defaultdict(lambda: ([], []))
        for segment, start, stop in parts:
            for index in range(start, stop):
                if await self._stands_aside(strand, segment, index, segment.key(index)):
                    continue
                chosen = self._only_member or self._choose(segment.message(index))
                if chosen is None:
                    self.group.filtered += 1
                elif isinstance(chosen, Member):
                    handling = self._handling_of(chosen)
                    try:
                        payload = self._payload(handling, segment, index)
                    except NOT_DECODABLE as error:
                        chosen.counts.failed += 1
                        await self._set_aside(strand, segment, index, not_decodable(error), handling)
                        continue
                    by_member[chosen][0].append((segment, index, index + 1))
                    by_member[chosen][1].append(payload)
                else:
                    await self._set_aside(strand, segment, index, chosen, None)
        for member, (chosen_parts, payloads) in by_member.items():
            messages = [(segment, index) for segment, index, _ in chosen_parts]
            await self._call_batch(strand, member, messages, chosen_parts, payloads)

    # failures

    async def _set_aside(
        self, strand: Strand, segment: Segment, index: int, outcome: Outcome, handling: Handling | None
    ) -> None:
        match outcome:
            case Retry(error=error):
                delay = handling.retry_delay(outcome, 1) if handling else None
                limit = handling.max_attempts if handling else None
                await self._put_off(strand, segment, index, "retry", delay=delay, error=error, max_attempts=limit)
            case DeadLetter(reason=reason, error=error):
                await self._put_off(strand, segment, index, "dead", reason=reason, error=error)
            case _:  # Release: it has not been tried
                await self._put_off(strand, segment, index, "park")
                self._retry_soon.set()

    async def _put_off(
        self,
        strand: Strand,
        segment: Segment,
        index: int,
        kind: str,
        *,
        delay: Any = None,
        error: str | None = None,
        reason: str | None = None,
        max_attempts: int | None = None,
    ) -> None:
        """Take a message out of the way. While the database is away, this waits for it."""
        lane = strand.lanes[segment.lane]
        message = segment.message(index)
        put_off = PutOff(kind, message, segment.position, delay, error, reason)
        told = await self._patiently(
            lambda: self._store.put_off(self.subscription_id, lane.lane, lane.token, [put_off], max_attempts)
        )
        if told is None:
            self.lose(strand)
            return
        if told[0] in ("retried", "parked"):
            self._wait_for(message.id, message.key)
        self._tell(told[0], message, error or reason)
        self._retry_soon.set()

    def _tell(self, outcome: str, message: Message, error: str | None) -> None:
        if outcome in ("retried", "dead"):
            event(logging.ERROR if outcome == "dead" else logging.WARNING, f"message.{outcome}", topic=message.topic,
                  group=self.group.name, id=message.id, attempt=message.attempt, error=last_line(error))  # fmt: skip

    def _wait_for(self, message_id: int, key: str | None) -> None:
        self._waiting[message_id] = key
        if key is not None and self.group.on_failure == "block":
            self._blocked[key].add(message_id)

    def _wait_no_more(self, message_id: int) -> None:
        key = self._waiting.pop(message_id, None)
        if key is not None and key in self._blocked:
            self._blocked[key].discard(message_id)
            if not self._blocked[key]:
                del self._blocked[key]

    async def _try_again(self) -> None:
        """Look for messages that are due to be tried again."""
        backoff = Backoff()
        while True:
            self._retry_soon.clear()
            try:
                if self.strands:
                    await self._try_due()
                backoff.reset()
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.next())
            if self._waiting:
                await asyncio.sleep(_RETRY_POLL)
            else:
                await pause(_RETRY_IDLE_POLL, self._retry_soon)

    async def _try_due(self) -> None:
        held = {lane.lane: lane for strand in self.strands if not strand.is_ending for lane in strand.lanes.values()}
        busy = sum(len(queue) for queue in self._queues)
        room = self._prefetch - busy
        if not held or room <= 0:
            return
        due = await self._store.claim_retrying(self.group.topic, [one.token for one in held.values()], room)
        for lane, message in due:
            self._wait_for(message.id, message.key)
            self._put(self._queue_of(message.key), _Work(None, (), retry=(held[lane], message)))

    async def _handle_again(self, lane: HeldLane, message: Message) -> None:
        chosen = self._choose(message)
        if chosen is None:
            self.group.filtered += 1
            await self._settle_again(lane, message, ACK, None)
            return
        if not isinstance(chosen, Member):
            await self._settle_again(lane, message, chosen, None)
            return
        handling = self._handling_of(chosen)
        try:
            decode = handling.call.decoder
            payload = message if decode is None else decode(message.payload, message.content_type)
        except NOT_DECODABLE as error:
            await self._settle_again(lane, message, not_decodable(error), handling)
            return
        if self._options.transactional:
            outcome = await self._again_transactionally(lane, message, payload, handling)
            if outcome is None:
                return
        else:
            outcome = (await handling.outcomes([message], [payload], None))[0]
        if outcome is ACK:
            chosen.counts.processed += 1
        else:
            chosen.counts.failed += 1
        await self._settle_again(lane, message, outcome, handling)

    async def _settle_again(
        self, lane: HeldLane, message: Message, outcome: Outcome, handling: Handling | None
    ) -> None:
        kind, delay, error, reason = "done", None, None, None
        match outcome:
            case Retry():
                kind, error = "retry", outcome.error
                delay = handling.retry_delay(outcome, message.attempt) if handling else None
            case DeadLetter():
                kind, error, reason = "dead", outcome.error, outcome.reason
            case Release():
                kind = "release"
        told = await self._patiently(
            lambda: self._store.settle_retrying(
                self.subscription_id,
                lane.lane,
                lane.token,
                [message.id],
                kind,
                delay=delay,
                error=error,
                reason=reason,
                max_attempts=handling.max_attempts if handling else None,
            )
        )
        if told[0] in ("done", "dead", "lost"):
            self._wait_no_more(message.id)
        self._tell(told[0], message, error or reason)
        self._retry_soon.set()

    # transactional handlers

    async def _handle_transactionally(self, lane: HeldLane, work: _Work) -> None:
        """Handle messages in the transaction in which the cursor moves behind them."""
        entry = work.entry
        assert entry is not None
        strand = entry.strand
        places = [(segment, index) for segment, start, stop in work.parts for index in range(start, stop)]
        open_places = [
            (segment, index)
            for segment, index in places
            if not await self._stands_aside(strand, segment, index, segment.key(index))
        ]
        await self._settle_now(strand)
        if not open_places or strand.is_lost:
            entry.done()
            return
        chosen = self._only_member or self._choose(open_places[0][0].message(open_places[0][1]))
        if chosen is None:
            self.group.filtered += len(open_places)
            entry.done()
            return
        handling = self._handling_of(chosen if isinstance(chosen, Member) else next(iter(self.group.members.values())))
        outcomes: Sequence[Outcome]
        if not isinstance(chosen, Member):
            outcomes = [chosen] * len(open_places)
        else:
            outcomes = await self._in_transaction(lane, entry, open_places, handling)
        for (segment, index), outcome in zip(open_places, outcomes, strict=True):
            if outcome is not ACK:
                await self._set_aside(strand, segment, index, outcome, handling)
        if isinstance(chosen, Member):
            succeeded = sum(outcome is ACK for outcome in outcomes)
            chosen.counts.processed += succeeded
            chosen.counts.failed += len(outcomes) - succeeded
        entry.done()

    async def _in_transaction(
        self, lane: HeldLane, entry: Entry, places: Sequence[tuple[Segment, int]], handling: Handling
    ) -> Sequence[Outcome]:
        try:
            payloads = [self._payload(handling, segment, index) for segment, index in places]
        except NOT_DECODABLE as error:
            return [not_decodable(error)] * len(places)
        messages = [segment.message(index) for segment, index in places]
        outcomes: Sequence[Outcome] = []
        strand = entry.strand
        try:
            async with self._handler_store.transaction() as conn:
                if not await self._store.hold_lane(lane.token, conn):
                    raise LeaseLost(f"lane {lane.lane} of group {self.group.name} is lost")
                outcomes = await handling.outcomes(messages, payloads, conn)
                if any(outcome is not ACK for outcome in outcomes):
                    raise _RolledBack
                if await self._store.advance([strand.step_after(entry)], conn):
                    raise LeaseLost(f"lane {lane.lane} of group {self.group.name} is lost")
            lane.number += 1
            strand.was_advanced(entry)
        except _RolledBack:
            return [Retry() if outcome is ACK else outcome for outcome in outcomes]
        except (LeaseLost, CommitUnknown) as error:
            event(logging.WARNING, "message.undone", topic=self.group.topic, group=self.group.name,
                  messages=[message.id for message in messages], error=error.message)  # fmt: skip
            self.lose(strand)
            if isinstance(error, CommitUnknown):  # read the ledger again
                await self._patiently(lambda: self._store.release_lanes([lane.token]))
        except DatabaseUnavailable as error:
            if not outcomes:
                return [Release()] * len(places)
            return [Retry(error=handling.described(error))] * len(places)
        except Exception as error:
            return [Retry(error=handling.described(error))] * len(places)
        return [ACK] * len(places)

    async def _again_transactionally(
        self, lane: HeldLane, message: Message, payload: Any, handling: Handling
    ) -> Outcome | None:
        """The outcome of a message that is tried again; None if it is settled."""
        outcome: Outcome | None = None
        try:
            async with self._handler_store.transaction() as conn:
                outcome = (await handling.outcomes([message], [payload], conn))[0]
                if outcome is not ACK:
                    raise _RolledBack
                told = await self._store.settle_retrying(
                    self.subscription_id, lane.lane, lane.token, [message.id], "done", conn=conn
                )
                if told[0] == "lost":
                    raise LeaseLost(f"lane {lane.lane} of group {self.group.name} is lost")
        except _RolledBack:
            return outcome
        except (LeaseLost, CommitUnknown) as error:
            event(logging.WARNING, "message.undone", topic=self.group.topic, group=self.group.name,
                  messages=[message.id], error=error.message)  # fmt: skip
        except DatabaseUnavailable as error:
            return Retry(error=handling.described(error)) if outcome else Release()
        except Exception as error:
            return Retry(error=handling.described(error))
        self._wait_no_more(message.id)
        return None


class _RolledBack(Exception):
    """Leaves a transaction whose handler did not succeed."""
