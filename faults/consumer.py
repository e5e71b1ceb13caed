"""A process that consumes, and writes down what its handlers do. It can be told to die at a certain point."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any

import msgspec

from faults.arguments import parser
from faults.failpoint import (
    AFTER_CLAIM,
    AFTER_EFFECT,
    AFTER_PUTTING_OFF,
    DURING_SETTLEMENT,
    FAILPOINTS,
    IN_HANDLER,
    Failpoint,
)
from faults.journal import Disruption, HandlerBegan, HandlerEnded, Journal, SettlementAccepted, now
from faults.modes import RELAY, Mode
from faults.puller import Pullers
from postbus import Bus, DatabaseUnavailable, Delivery, Message, Start
from postbus._db.store import Store
from postbus._runtime.loop import patiently
from postbus.inbox import Inbox
from postbus.relay import Envelope, NatsSink, PostbusSink

SETTLE_FIRST = "settlement before the effect"
NO_FENCE = "no fencing"
BY_POSITION = "a position is the last one read"
NO_INBOX = "no inbox"
NOTE_FIRST = "the inbox's note before the effect"
BARE_ID = "a stream knows messages by their bare ids"
FORGETFUL = "what is done ahead is forgotten"
CONTROLS = (SETTLE_FIRST, NO_FENCE, BY_POSITION, NO_INBOX, NOTE_FIRST, BARE_ID, FORGETFUL)

INBOX = Inbox()


_STALL = 500_000_000  # nanoseconds, of a lease of two seconds that is prolonged three times


class Order(msgspec.Struct):
    key: str
    n: int
    is_poison: bool


class StoreObserver:
    """Notes which settlements the database accepts, and dies where it is told to. Put around the methods of `Store`."""

    def __init__(self, journal: Journal, failpoint: Failpoint, database: str) -> None:
        self._journal = journal
        self._failpoint = failpoint
        self._database = database
        self._leases: dict[Any, tuple[str, list[int]]] = {}

    def install(self) -> None:
        for name in ("claim", "claim_suspects", "read_log", "claim_deferred"):
            is_claim = name in ("claim", "claim_suspects")
            _replace(name, self._dying_after(AFTER_CLAIM, getattr(Store, name), is_claim=is_claim))
        for name in ("retry", "defer"):
            _replace(name, self._dying_after(AFTER_PUTTING_OFF, getattr(Store, name)))
        for name in ("ack", "ack_within", "settle", "settle_deferred"):
            _replace(name, self._dying_during(getattr(Store, name)))
        for name in ("ack", "ack_within", "retry", "dead_letter", "release"):
            _replace(name, self._taking_out(getattr(Store, name)))
        _replace("ack_leases", self._noting_leases(self._dying_during(Store.ack_leases)))
        _replace("advance", self._noting_steps(self._dying_during(Store.advance)))

    def _dying_after(
        self, point: str, method: Callable[..., Awaitable[Any]], *, is_claim: bool = False
    ) -> Callable[..., Awaitable[Any]]:
        @wraps(method)
        async def claimed(*args: Any, **options: Any) -> Any:
            got = await method(*args, **options)
            if is_claim and got is not None and got.token is not None:
                self._leases[got.token] = got.messages[0].topic, [one.id for one in got.messages]
            if getattr(got, "messages", got):
                self._failpoint.reach(point)
            return got

        return claimed

    def _dying_during(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(method)
        async def settled(*args: Any, **options: Any) -> Any:
            if not self._failpoint.is_reached(DURING_SETTLEMENT):
                return await method(*args, **options)
            under_way = asyncio.ensure_future(method(*args, **options))
            await asyncio.wait([under_way], timeout=random.uniform(0, 0.002))
            self._failpoint.die()
            raise AssertionError("unreachable")

        return settled

    def _taking_out(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """A message that was settled by itself is not settled with its lease."""

        @wraps(method)
        async def settled(store: Store, token: Any, ids: Sequence[int], *args: Any, **options: Any) -> Any:
            topic, leased = self._leases.get(token, ("", []))
            self._leases[token] = topic, [one for one in leased if one not in ids]
            return await method(store, token, ids, *args, **options)

        return settled

    def _noting_leases(self, method: Callable[..., Awaitable[set[Any]]]) -> Callable[..., Awaitable[set[Any]]]:
        @wraps(method)
        async def settled(store: Store, tokens: Sequence[Any]) -> set[Any]:
            lost = await method(store, tokens)
            for token in tokens:
                topic, ids = self._leases.pop(token, ("", []))
                if token not in lost:
                    self._note(topic, [str(one) for one in ids], str(token))
            return lost

        return settled

    def _noting_steps(self, method: Callable[..., Awaitable[set[int]]]) -> Callable[..., Awaitable[set[int]]]:
        @wraps(method)
        async def advanced(store: Store, steps: Sequence[Any], conn: Any = None, mark: str | None = None) -> set[int]:
            lost = await method(store, steps, conn, mark)
            if conn is None:  # else it counts only if that commits
                kept = [step for place, step in enumerate(steps) if place not in lost]
                self._note("log", [f"{one.subscription_id}:{one.lane}:{one.number}" for one in kept], str(os.getpid()))
            return lost

        return advanced

    def _note(self, mode: str, what: Sequence[str], by: str) -> None:
        if what:
            self._journal.note(*(SettlementAccepted(mode, f"{self._database} {one}", os.getpid(), by) for one in what))


def _replace(name: str, method: Callable[..., Awaitable[Any]]) -> None:
    setattr(Store, name, method)


class StallRecorder:
    """Notes when this process, or a statement that says it is alive, took so long that leases may have ended."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def install(self) -> None:
        for name in ("heartbeat", "group_heartbeat", "extend", "lease_lanes"):
            _replace(name, self._timed(getattr(Store, name)))

    async def watch(self) -> None:
        """Looks at the clock all the time."""
        while True:
            since = now()
            await asyncio.sleep(0.1)
            self._note("stalled", since)

    def _timed(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(method)
        async def timed(*args: Any, **options: Any) -> Any:
            since = now()
            try:
                return await method(*args, **options)
            finally:
                self._note("slow database", since)

        return timed

    def _note(self, what: str, since: int) -> None:
        if now() - since > _STALL:
            self._journal.note(Disruption(what, since, now() + _STALL, excuses=True))


class HandlerRegistry:
    """Registers a handler for each mode and group."""

    def __init__(
        self, bus: Bus, journal: Journal, failpoint: Failpoint, control: str, seed: str, *, uneven: bool
    ) -> None:
        self._bus = bus
        self._journal = journal
        self._failpoint = failpoint
        self._control = control
        self._is_uneven = uneven
        self._random = random.Random(seed)
        self._later: set[asyncio.Task[None]] = set()
        self.are_there = False

    def add(self, mode: Mode, group: str) -> None:
        self.are_there = True
        options: dict[str, Any] = {"group": group, "start": Start.BEGINNING} if group else {}
        concurrency = 4 if mode.once else 16
        if mode.transactional:

            async def handle_in_transaction(order: Order, message: Message, conn: Any) -> None:
                await self._handle(mode, group, order, message, conn)

            handler: Callable[..., Awaitable[None]] = handle_in_transaction
        elif mode.inbox:

            async def handle_once(order: Order, message: Message) -> None:
                await self._handle_once(mode, group, order, message)

            handler = handle_once
        else:

            async def handle(order: Order, message: Message) -> None:
                await self._handle(mode, group, order, message)

            handler = handle
        self._bus.subscribe(
            mode.topic, concurrency=concurrency, transactional=mode.transactional, name="faults", **options
        )(handler)

    async def pulled(self, mode: Mode, group: str, delivery: Delivery, conn: Any) -> None:
        """Handle a message that was popped; what a transactional handler does, in the transaction of `conn`."""
        await self._handle(mode, group, delivery.decode(Order), delivery.message, conn)

    async def _handle_once(self, mode: Mode, group: str, order: Order, message: Message) -> None:
        """In a transaction of the handler's own: when that commits, the message is not settled yet."""
        if self._control == NO_INBOX:
            async with self._bus.transaction() as conn:
                await self._handle(mode, group, order, message, conn)
            return
        if self._control == NOTE_FIRST:
            async with self._bus.transaction() as conn, INBOX.once(conn, "faults", message) as first:
                pass
            if first:
                async with self._bus.transaction() as conn:
                    await self._handle(mode, group, order, message, conn)
            return
        async with self._bus.transaction() as conn, INBOX.once(conn, "faults", message) as first:
            if first:
                await self._handle(mode, group, order, message, conn)

    async def _handle(self, mode: Mode, group: str, order: Order, message: Message, conn: Any = None) -> None:
        what = (mode.name, group, order.key, order.n, os.getpid())
        self._journal.note(HandlerBegan(*what, now(), message.id, message.attempt))
        if order.is_poison:
            self._journal.note(Disruption("poison", now(), now(), excuses=True))
            os.kill(os.getpid(), signal.SIGKILL)
        self._failpoint.reach(IN_HANDLER)
        if self._control == SETTLE_FIRST:
            task = asyncio.create_task(self._end_later(what))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
            return
        if self._is_uneven and order.n % 23 == 3:  # those of other keys go far ahead meanwhile
            await asyncio.sleep(self._random.uniform(0.1, 0.8))
        await asyncio.sleep(self._random.uniform(0, 0.01 if group == "slow" or mode.once else 0.002))
        if conn is not None:
            await conn.execute("insert into effect values ($1, $2, $3, $4)", mode.name, group, order.key, order.n)
        if order.n % 29 == 7 and message.attempt == 1:
            raise RuntimeError("once more")
        self._journal.note(HandlerEnded(*what, now()))
        self._failpoint.reach(AFTER_EFFECT)

    async def _end_later(self, what: tuple[str, str, str, int, int]) -> None:
        await asyncio.sleep(0.2)
        self._journal.note(HandlerEnded(*what, now()))


def remove_fences() -> None:
    """A control: nobody notices that a lease or a lane is lost."""
    ack = Store.ack

    async def accepted(store: Store, token: Any, ids: Sequence[int], conn: Any = None, *_: Any) -> set[int]:
        await ack(store, token, ids, conn)
        return set()

    async def held(store: Store, token: Any, conn: Any) -> bool:
        return True

    _replace("ack", accepted)
    _replace("ack_within", accepted)
    _replace("hold_lane", held)


def forget_what_is_ahead() -> None:
    """A control: a process that leaves a lane remembers only how far the group is past in order."""

    async def noted(*args: Any) -> None:
        return None

    _replace("note_done", noted)


def forget_open_transactions() -> None:
    """A control: a cursor says that all transactions which began before it were seen, also those that were open."""
    read_log = Store.read_log

    async def read(*args: Any, **options: Any) -> Any:
        result = await read_log(*args, **options)
        result.next_cursor = re.sub(r"\d+:(\d+):[\d,]*", r"\1:\1:", result.next_cursor)
        return result

    _replace("read_log", read)


async def _opened(dsn: str) -> Bus:
    """Open a bus. If the server is away just then, try again, as a supervisor of workers would."""
    bus = Bus.open(dsn)
    while True:
        with suppress(DatabaseUnavailable):
            await bus.connect()
            return bus
        await asyncio.sleep(0.2)


async def consume(args: argparse.Namespace) -> bool:
    """Consume until SIGTERM. Returns whether that ended well."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _tell_tasks)
    with Journal(args.journal) as journal:
        failpoint = Failpoint(args.failpoint, args.count, journal)
        StoreObserver(journal, failpoint, args.modes[0].database).install()
        stalls = StallRecorder(journal)
        stalls.install()
        watching = asyncio.create_task(stalls.watch())
        if args.control == NO_FENCE:
            remove_fences()
        if args.control == FORGETFUL:
            forget_what_is_ahead()
        if args.control == BY_POSITION:
            forget_open_transactions()
        if args.control == BARE_ID:
            Envelope._deduplication_id = lambda self, message, event_id: str(message.id)  # type: ignore[method-assign]
        async with await _opened(args.dsn) as bus:
            handlers = HandlerRegistry(bus, journal, failpoint, args.control, args.seed, uneven=args.uneven)
            pullers = Pullers(bus, journal, failpoint, handlers.pulled, args.seed, rhythm=args.rhythm, hold=args.hold)
            for mode in args.modes:
                for group in mode.groups:
                    if mode.is_streamed:
                        handlers.are_there = True
                        await patiently(partial(_stream, bus, args.stream, mode, group))
                        continue
                    (pullers if mode.pulled else handlers).add(mode, group)
                if mode.is_relayed:
                    await patiently(partial(_relay, bus, args.dsn, mode))
            try:
                return await (bus.run() if handlers.are_there else _until_told())
            finally:
                await pullers.end()
                watching.cancel()


async def _until_told() -> bool:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
    return True


async def _relay(bus: Bus, dsn: str, mode: Mode) -> None:
    """Into another topic of the same server, as into that of another one: the sink goes away together with it."""
    await bus.relay(mode.entry, PostbusSink(dsn), name=RELAY, target=mode.topic, batch=10, concurrency=4)


async def _stream(bus: Bus, address: str, mode: Mode, group: str) -> None:
    """A route into the stream that all share."""
    await bus.relay(mode.topic, NatsSink(address), name=group or None, target=mode.subject(group), batch=10)


def _tell_tasks() -> None:
    """Describe what this process is waiting for, when it does not end."""
    for task in asyncio.all_tasks():
        task.print_stack(limit=4, file=sys.stderr)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--failpoint", choices=("", *FAILPOINTS), default="")
    options.add_argument("--count", type=int, default=1, help="dies when it comes there for this time")
    options.add_argument("--rhythm", type=float, default=0.0, help="pops come so many seconds apart")
    options.add_argument("--hold", type=float, default=0.0, help="seconds that a batch is worked at")
    options.add_argument("--uneven", type=int, default=0, help="whether some handlers take much longer than others")
    options.add_argument("--control", choices=("", *CONTROLS), default="")
    sys.exit(0 if asyncio.run(consume(options.parse_args())) else 1)


if __name__ == "__main__":
    main()
