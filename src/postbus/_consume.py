"""Consuming for a group: what is read goes to handlers, in order per key, and what fails out of the way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from postbus._handle import ACK, NOT_DECODABLE, Handling, not_decodable
from postbus._log import event
from postbus._log_store import Due, PutOff
from postbus._loop import Backoff, pause
from postbus._reader import LogReader
from postbus._segment import Piece, Segment
from postbus._settle import last_line
from postbus._store import Store
from postbus._strand import Advancer, Entry, HeldLane, Strand
from postbus._translate import may_have_crashed, translate
from postbus._waiting import Waiting
from postbus.errors import CommitUnknown, DatabaseUnavailable, LeaseLost, WrongSemantics
from postbus.group import Group, Member, stable_hash
from postbus.message import DeadLetter, Message, Outcome, Release, Retry
from postbus.middleware import Middleware

_LEAST_PREFETCH = 1000  # messages that are read ahead, in two reads: at least, …
_MOST_PREFETCH = 20_000  # … and at most, for handlers that take many
_RETRY_POLL = 0.2
_RETRY_IDLE_POLL = 5.0
_GAPS = 1.0  # seconds in which, at the end, messages are still begun that others have overtaken
_SUSPECTED = 3  # deaths after which the first messages of a lane are taken out of the way, to be tried one by one
_GUILTY = 4  # attempts, the first of which stands for those deaths, after which such a message is given up
_SUSPICION = "processes that handled messages at this place died"

_Part = tuple[Segment, int, int]
_Chosen = dict[Member, tuple[list[_Part], list[Any]]]


class _Work:
    """Messages for one call of a handler."""

    __slots__ = ("entry", "parts", "retry")

    def __init__(self, entry: Entry | None, parts: Sequence[_Part], retry: tuple[HeldLane, Due] | None = None):
        self.entry = entry
        self.parts = parts
        self.retry = retry
        """A message that is tried again, with its lane, instead of parts of the log."""

    @property
    def strand(self) -> Strand:
        if self.retry is not None:
            return self.retry[0].strand
        assert self.entry is not None
        return self.entry.strand


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
        lease: timedelta,
        max_attempts: int,
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
        self._lease = lease.total_seconds()
        self._max_attempts = max_attempts
        self._middleware = middleware
        self._handlings: dict[Member, Handling] = {}
        first = next(iter(group.members.values())).subscription
        self._options = first
        self._prefetch = max(_LEAST_PREFETCH, min(16 * first.slots, _MOST_PREFETCH))
        self._queues: list[deque[_Work]] = [deque() for _ in range(first.concurrency)]
        self._runners: dict[int, asyncio.Task[None]] = {}
        self._next_queue = 0
        self._readers: dict[Strand, asyncio.Task[None]] = {}
        self._waiting = Waiting(blocks=group.on_failure == "block")
        self._tried_again: set[int] = set()  # ids in hand
        self._suspicious_until = 0.0
        self._slots = asyncio.Semaphore(first.concurrency)
        self._leaving: set[asyncio.Task[None]] = set()
        self._retry_soon = asyncio.Event()
        self._retrying: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # lanes

    @property
    def tokens(self) -> list[UUID]:
        return [token for strand in self.strands for token in strand.tokens]

    async def take(self, rows: Sequence[Any]) -> None:
        """Start to read lanes that are ours now."""
        known = await self._patiently(lambda: self._store.retrying_of([row["token"] for row in rows]))
        for one in known:
            self._waiting.add(one["id"], one["key"], one["lane"])
        if any(row["deaths"] > 0 for row in rows):
            self._suspicious_until = time.monotonic() + 2 * self._lease
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
            self._begin(lanes, together[0]["cursor"], together[0]["server"])
        if self._retrying is None or self._retrying.done():
            self._retrying = self._started(self._try_again(), f"retry-{self.group.name}")
        self._retry_soon.set()

    def _begin(self, lanes: Sequence[HeldLane], cursor: str, server: datetime) -> None:
        strand = Strand(self.subscription_id, lanes, cursor, server, self._advancer.add)
        self.strands.append(strand)
        self._readers[strand] = self._started(self._read(strand), f"read-{self.group.name}")

    def join_strands(self) -> None:
        """Read lanes together that have come to the same place, with nothing in hand."""
        alike: defaultdict[tuple[str, datetime], list[Strand]] = defaultdict(list)
        for strand in self.strands:
            if strand.is_at_rest and not self._options.transactional:
                alike[strand.cursor, strand.server].append(strand)
        for (cursor, server), strands in alike.items():
            if len(strands) > 1:
                for strand in strands:
                    strand.is_ending = True
                    self.strands.remove(strand)
                    self._readers.pop(strand).cancel()
                self._begin([lane for strand in strands for lane in strand.lanes.values()], cursor, server)

    def lose(self, strand: Strand) -> None:
        """Forget lanes of which some are somebody else's now."""
        if strand.is_lost:
            return
        strand.is_lost = strand.is_ending = True
        strand.freed.set()
        event(logging.WARNING, "lanes.lost", group=self.group.name, topic=self.group.topic, lanes=strand.key)
        reader = self._forget(strand)
        self._leave(self._let_go(strand, reader))

    async def _let_go(self, strand: Strand, reader: asyncio.Task[None] | None) -> None:
        """Give back what is still ours: lanes of the same strand, or all if it was our own step that we took twice."""
        if reader is not None:
            await asyncio.gather(reader, return_exceptions=True)
        await self._finish(strand)
        await self._patiently(lambda: self._store.release_lanes(strand.tokens))

    def lose_token(self, token: UUID) -> None:
        for strand in list(self.strands):
            if token in strand.tokens:
                self.lose(strand)

    def give_up(self, tokens: Sequence[UUID]) -> None:
        """Finish what is being handled in some lanes, beside other work, and then let others have them."""
        for strand in list(self.strands):
            if not strand.is_ending and not set(tokens).isdisjoint(strand.tokens):
                strand.is_ending = True
                self._leave(self._give_up(strand))

    async def _give_up(self, strand: Strand) -> None:
        await self._end(strand)
        if not strand.is_lost:
            await self._patiently(lambda: self._store.release_lanes(strand.tokens))
        self._forget(strand)

    @property
    def has_left(self) -> bool:
        """Whether nothing is held or being given back."""
        return not self.strands and not self._leaving

    async def stop(self) -> None:
        """Finish what is being handled in all lanes."""
        strands = list(self.strands)
        for strand in strands:
            strand.is_ending = True
        await asyncio.gather(*(self._end(strand) for strand in strands))
        for strand in strands:
            self._forget(strand)
        await asyncio.gather(*self._leaving)
        await self.abort()

    async def abort(self) -> None:
        tasks = [
            *self._readers.values(),
            *self._runners.values(),
            *self._leaving,
            *([self._retrying] if self._retrying else []),
        ]
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
        strand.freed.set()
        reader = self._readers.pop(strand, None)
        if reader is not None:
            if strand.is_waiting:
                reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        await self._finish(strand)
        backoff = Backoff()
        while not strand.is_settled and not strand.is_lost:
            try:
                await self._advancer.advance([strand])
                if strand.is_advancing:
                    await asyncio.sleep(0.005)
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.next())

    async def _finish(self, strand: Strand) -> None:
        """Drop what has not begun, and wait for what has."""
        if not strand.is_lost:
            # What lies before something that is done already is better done too: else that would come twice.
            await self._drop_works(strand, strand.unbegun())
            with suppress(TimeoutError):
                async with asyncio.timeout(_GAPS):
                    while any(work.strand is strand for queue in self._queues for work in queue):
                        await strand.until_freed()
        await self._drop_works(strand, None)
        while strand.running:
            await strand.until_freed()

    async def _drop_works(self, strand: Strand, entries: set[Entry] | None) -> None:
        """Drop what waits in queues: retries, and what belongs to these entries, or all of it."""
        dropped: list[_Work] = []
        for queue in self._queues:
            for work in [one for one in queue if one.strand is strand]:
                if entries is None or work.entry is None or work.entry in entries:
                    queue.remove(work)
                    dropped.append(work)
        for work in dropped:
            if work.retry is not None:
                await self._release_again(*work.retry)

    def _forget(self, strand: Strand) -> asyncio.Task[None] | None:
        if strand in self.strands:
            self.strands.remove(strand)
            self._waiting.remove_lanes(strand.key)
        reader = self._readers.pop(strand, None)
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()
        return reader

    def _leave(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._started(work, f"leave-{self.group.name}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

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
            strand.is_waiting = True
            while strand.in_hand >= self._prefetch:
                await strand.until_freed()
            # Clear before reading, not after: a message that commits while we read must wake us again.
            bell.clear()
            try:
                piece = await self._reader.read(
                    self.group.topic,
                    strand.key,
                    strand.cursor,
                    strand.taken_at,
                    strand.server,
                    is_between=strand.is_between,
                    max_count=self._prefetch // 2,
                    max_bytes=self._options.max_bytes,
                )
                backoff.reset()
            except DatabaseUnavailable as error:
                away = backoff.next()
                event(logging.WARNING, "database.away", loop=f"read {self.group.topic}", retry_in=f"{away:.2f}s",
                      error=error.message)  # fmt: skip
                if may_have_crashed(error):  # our cursor is not to be trusted any more: the stored one is
                    self.lose(strand)
                    return
                await asyncio.sleep(away)
                continue
            except WrongSemantics:  # the topic was deleted, and its groups with it
                self.lose(strand)
                return
            if piece.server != strand.server:
                self.lose(strand)
                return
            strand.is_waiting = False
            strand.read_on(piece.next_cursor, is_between=piece.more)
            if piece.segments:
                wait = 0.01
                await self._deliver(strand, piece)
            elif piece.during is not None:  # much of others was passed by, which nobody needs to do again
                strand.was_passed(piece.next_cursor)
            if not piece.more and not strand.is_ending:
                if not piece.segments:
                    wait = min(wait * 2, self._options.poll)
                strand.is_waiting = True
                await pause(wait, bell)

    async def _deliver(self, strand: Strand, piece: Piece) -> None:
        lane = next(iter(strand.lanes.values()))
        if lane.deaths > 0 and lane.careful_until is not None and piece.segments[0].position > lane.careful_until:
            await self._calm(lane)  # all of this came after the last death
        if lane.deaths > 0:
            await self._deliver_carefully(strand, lane, piece)
        elif self._options.transactional or self._options.batch is None:
            await self._hand_out(lane, self._works(strand, piece, self._options.batch or 1))
        elif self._options.concurrency == 1 or all(segment.keys is None for segment in piece.segments):
            for work in self._works(strand, piece, self._options.batch):
                self._enqueue(work, None)
        else:
            self._enqueue_by_key(strand, piece, self._options.batch)

    async def _hand_out(self, lane: HeldLane, works: Sequence[_Work]) -> None:
        for work in works:
            if not self._options.transactional:
                self._enqueue(work, work.parts[0][0].key(work.parts[0][1]))
            elif work.strand.is_ending:
                return
            else:
                await self._handle_transactionally(lane, work)

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
        size = self._options.batch or 1
        limit = max(1, self._prefetch >> (3 * min(lane.deaths, _SUSPECTED - 1)))
        if lane.deaths >= _SUSPECTED:
            works = self._works(strand, piece, 1)
            await self._suspect(strand, lane, works[:limit])
            works = works[limit:]
        else:
            works = self._works(strand, piece, min(limit, size))
        at_once = max(1, limit // size)
        for start in range(0, len(works), at_once):
            some = works[start : start + at_once]
            await self._hand_out(lane, some)
            while not strand.is_ending and any(work.entry.pending for work in some if work.entry):
                await strand.until_freed()
            await self._settle_now(strand)
            if strand.is_ending:
                return
            if lane.careful_until is not None and some[-1].parts[-1][0].position > lane.careful_until:
                await self._calm(lane)
        if not piece.more:
            await self._calm(lane)

    async def _suspect(self, strand: Strand, lane: HeldLane, works: Sequence[_Work]) -> None:
        """Take messages out of the way of which one may be deadly: their attempts are counted before they begin."""
        for work in works:
            segment, index, _ = work.parts[0]
            if not await self._stands_aside(strand, segment, index, segment.key(index)):
                delay = timedelta(0)
                await self._put_off(strand, segment, index, "retry", delay=delay, error=_SUSPICION)
            assert work.entry is not None
            work.entry.done()
        await self._settle_now(strand)
        self._have_put_off(strand)
        if not strand.is_ending:
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
                strand = work.strand
                strand.running += 1
                try:
                    if work.retry is not None:
                        await self._handle_again(*work.retry)
                        continue
                    assert work.entry is not None
                    work.entry.is_begun = True
                    if not strand.is_lost:
                        if self._options.batch is None:
                            await self._handle_one(strand, *work.parts[0][:2])
                        else:
                            await self._handle_batch(strand, work.parts)
                    work.entry.done()
                finally:
                    strand.running -= 1
                    if strand.is_ending:
                        strand.freed.set()
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
        if self._waiting and await self._stands_aside(strand, segment, index, key):
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
            if decode.is_shareable:
                return segment.decoded(decode)[index]
        except NOT_DECODABLE:
            pass  # not necessarily this one
        return decode(segment.payloads[index], segment.type_of(index))

    async def _stands_aside(self, strand: Strand, segment: Segment, index: int, key: str | None) -> bool:
        """Whether a message was taken out of the way already, or waits behind another one of its key."""
        if segment.message_id(index) in self._waiting:
            return True
        if self._waiting.is_blocked(key):
            await self._put_off(strand, segment, index, "park")
            return True
        return False

    async def _handle_batch(self, strand: Strand, parts: Sequence[_Part]) -> None:
        member = self._only_member
        if member is None or self._waiting:
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
        for member, (chosen_parts, payloads) in (await self._choose_each(strand, parts)).items():
            messages = [(segment, index) for segment, index, _ in chosen_parts]
            await self._call_batch(strand, member, messages, chosen_parts, payloads)

    async def _choose_each(self, strand: Strand, parts: Sequence[_Part]) -> _Chosen:
        """Who gets which messages; those that nobody can handle now are out of the way afterwards."""
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
        return by_member

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
            case _:  # Release: it is tried again, and this was no attempt
                await self._put_off(strand, segment, index, "release")

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
        strand.is_putting_off = True
        if kind in ("retry", "release") and self._waiting.is_behind(message):  # failed together with one before it
            kind = "park"
        put_off = PutOff(kind, message, segment.position, delay, error, reason)
        told = await self._patiently(
            lambda: self._store.put_off(self.subscription_id, lane.lane, lane.token, [put_off], max_attempts)
        )
        if told is None:
            self.lose(strand)
            return
        if told[0] != "dead":
            self._waiting.add(message.id, message.key, lane.lane)
        if told[0] in ("retried", "released"):
            self._retry_soon.set()
        self._tell(told[0], message, error or reason)

    @staticmethod
    def _have_put_off(strand: Strand) -> None:
        """What was taken out of the way is behind the cursor now."""
        strand.is_putting_off = False
        strand.freed.set()

    def _tell(self, outcome: str, message: Message, error: str | None) -> None:
        if outcome in ("retried", "dead"):
            event(logging.ERROR if outcome == "dead" else logging.WARNING, f"message.{outcome}", topic=message.topic,
                  group=self.group.name, id=message.id, attempt=message.attempt, error=last_line(error))  # fmt: skip

    async def _try_again(self) -> None:
        """Look for messages that are due to be tried again."""
        backoff = Backoff()
        while True:
            self._retry_soon.clear()
            try:
                if not self._waiting:
                    await self._look_for_others()
                if self._waiting:
                    await self._try_due()
                backoff.reset()
            except DatabaseUnavailable:
                await asyncio.sleep(backoff.next())
            await pause(_RETRY_POLL if self._waiting else _RETRY_IDLE_POLL, self._retry_soon)

    async def _look_for_others(self) -> None:
        """Messages that somebody else has put there, by a redrive. Writes nothing, since it is done all the time."""
        held = {token for strand in self.strands if not strand.is_ending for token in strand.tokens}
        if held:
            found = await self._store.retrying_of(list(held))
            for one in found:
                self._waiting.add(one["id"], one["key"], one["lane"])

    async def _try_due(self) -> None:
        held = {lane.lane: lane for strand in self.strands if not strand.is_ending for lane in strand.lanes.values()}
        room = self._prefetch - sum(len(queue) for queue in self._queues)
        if time.monotonic() < self._suspicious_until:  # one by one: only the deadly one's attempts must count
            room = 0 if self._tried_again else 1
        if not held or room <= 0:
            return
        due = await self._store.claim_retrying(self.group.topic, [one.token for one in held.values()], room)
        for one in sorted(due, key=lambda one: one.message.id):
            lane = held[one.lane]
            if lane.strand.is_ending:
                await self._release_again(lane, one)
            elif one.message.id not in self._tried_again:  # else it takes longer than the lease
                self._tried_again.add(one.message.id)
                self._waiting.add(one.message.id, one.message.key, one.lane)
                self._put(self._queue_of(one.message.key), _Work(None, (), retry=(lane, one)))
        if len(due) == room:
            self._retry_soon.set()

    async def _release_again(self, lane: HeldLane, due: Due) -> None:
        """Let a message be tried by whoever has the lane; it has not been tried now."""
        self._tried_again.discard(due.message.id)
        with suppress(DatabaseUnavailable):  # then it is due after the lease
            await self._store.settle_retrying(self.subscription_id, lane.lane, lane.token, [due.message.id], "release")

    async def _handle_again(self, lane: HeldLane, due: Due) -> None:
        message = due.message
        try:
            while self._options.transactional and lane.strand.is_putting_off and not lane.strand.is_lost:
                await lane.strand.until_freed()
            if lane.strand.is_lost:
                return
            if self._waiting.is_behind(message):
                await self._release_again(lane, due)
                return
            outcome, handling = await self._outcome_again(lane, due)
            if outcome is not None:
                await self._settle_again(lane, message, outcome, handling)
        finally:
            self._tried_again.discard(message.id)

    async def _outcome_again(self, lane: HeldLane, due: Due) -> tuple[Outcome | None, Handling | None]:
        """What becomes of a message that is tried again; None if it is settled."""
        message = due.message
        chosen = self._choose(message)
        if chosen is None:
            self.group.filtered += 1
            return ACK, None
        if not isinstance(chosen, Member):
            return chosen, None
        handling = self._handling_of(chosen)
        if self._is_deadly(due, handling):
            chosen.counts.failed += 1
            return DeadLetter(reason=f"{_SUSPICION}, {message.attempt - 1} times with it alone"), handling
        try:
            decode = handling.call.decoder
            payload = message if decode is None else decode(message.payload, message.content_type)
        except NOT_DECODABLE as error:
            chosen.counts.failed += 1
            return not_decodable(error), handling
        chosen.counts.in_flight += 1
        try:
            if self._options.transactional:
                outcome = await self._again_transactionally(lane, message, payload, handling)
            else:
                outcome = (await handling.outcomes([message], [payload], None))[0]
        finally:
            chosen.counts.in_flight -= 1
        if outcome is None or outcome is ACK:
            chosen.counts.processed += 1
        else:
            chosen.counts.failed += 1
        return outcome, handling

    def _is_deadly(self, due: Due, handling: Handling) -> bool:
        """Whether attempts have begun and never ended: each time the process died."""
        if due.last_error == _SUSPICION:
            return due.message.attempt >= _GUILTY
        return due.message.attempt > (handling.max_attempts or self._max_attempts)

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
        if told[0] in ("done", "dead", "lost") and not lane.strand.is_lost:
            self._waiting.remove(message.id)
        if told[0] != "released":  # the next one of the key is due
            self._retry_soon.set()
        self._tell(told[0], message, error or reason)

    # transactional handlers

    async def _handle_transactionally(self, lane: HeldLane, work: _Work) -> None:
        """Handle messages in the transaction in which the cursor moves behind them."""
        entry = work.entry
        assert entry is not None
        strand = entry.strand
        chosen = await self._choose_each(strand, work.parts)
        await self._settle_now(strand)
        if chosen and not strand.is_lost:
            failed = await self._in_transaction(lane, entry, chosen)
            if failed is None:
                return
            for member, outcomes in failed.items():
                places = [(segment, index) for segment, index, _ in chosen[member][0]]
                member.counts.failed += len(places)
                for place, outcome in zip(places, outcomes, strict=True):
                    await self._set_aside(strand, *place, outcome, self._handling_of(member))
        entry.done()
        if strand.is_putting_off:
            await self._settle_now(strand)
            self._have_put_off(strand)

    async def _in_transaction(
        self, lane: HeldLane, entry: Entry, chosen: _Chosen
    ) -> dict[Member, Sequence[Outcome]] | None:
        """The outcomes of what has to be set aside: nothing if all is done, or lost; None if it was not even tried."""
        backoff = Backoff()
        while True:
            outcomes: dict[Member, Sequence[Outcome]] = {}
            try:
                async with self._slots, self._handler_store.transaction() as conn:
                    if not await self._store.hold_lane(lane.token, conn):
                        raise LeaseLost(f"lane {lane.lane} of group {self.group.name} is lost")
                    for member, (parts, payloads) in chosen.items():
                        messages = [segment.message(index) for segment, index, _ in parts]
                        outcomes[member] = await self._outcomes(member, messages, payloads, conn)
                        if any(outcome is not ACK for outcome in outcomes[member]):
                            raise _RolledBack
                    if await self._store.advance([entry.strand.step_after(entry)], conn):
                        raise LeaseLost(f"lane {lane.lane} of group {self.group.name} is lost")
                lane.number += 1
                entry.strand.was_advanced(entry)
                for member, succeeded in outcomes.items():
                    member.counts.processed += len(succeeded)
                return {}
            except _RolledBack:
                return {
                    member: [Retry() if outcome is ACK else outcome for outcome in outcomes[member]]
                    if member in outcomes
                    else [Release()] * len(parts)
                    for member, (parts, _) in chosen.items()
                }
            except (LeaseLost, CommitUnknown) as error:  # if unknown, the ledger tells where to go on
                event(logging.WARNING, "message.undone", topic=self.group.topic, group=self.group.name,
                      error=error.message)  # fmt: skip
                self.lose(entry.strand)
                return {}
            except Exception as error:
                if outcomes or not _is_away(error):
                    again = Retry(error=self._handling_of(next(iter(chosen))).described(error))
                    return {member: [again] * len(parts) for member, (parts, _) in chosen.items()}
                # No handler was called: it is as if nothing had been read yet.
                if entry.strand.is_ending:
                    return None
                await asyncio.sleep(backoff.next())

    async def _outcomes(
        self, member: Member, messages: Sequence[Message], payloads: list[Any], conn: Any
    ) -> Sequence[Outcome]:
        count = len(payloads)  # the handler may change the list
        member.counts.in_flight += count
        try:
            return await self._handling_of(member).outcomes(messages, payloads, conn)
        finally:
            member.counts.in_flight -= count

    async def _again_transactionally(
        self, lane: HeldLane, message: Message, payload: Any, handling: Handling
    ) -> Outcome | None:
        """The outcome of a message that is tried again; None if it is settled."""
        outcome: Outcome | None = None
        try:
            async with self._slots, self._handler_store.transaction() as conn:
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
        except Exception as error:
            return Release() if outcome is None and _is_away(error) else Retry(error=handling.described(error))
        if not lane.strand.is_lost:
            self._waiting.remove(message.id)
        self._retry_soon.set()
        return None


def _is_away(error: Exception) -> bool:
    return isinstance(error, DatabaseUnavailable) or isinstance(translate(error), DatabaseUnavailable)


class _RolledBack(Exception):
    """Leaves a transaction whose handler did not succeed."""
