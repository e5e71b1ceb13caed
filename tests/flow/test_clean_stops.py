"""A stop: messages that a handler has finished do not come again, at whatever speed other messages run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from postbus import Ack, Bus, CatchUp, DatabaseUnavailable, DeadLetter, Outgoing, Start
from postbus._db.store import Store
from postbus._group.work_queues import Work, WorkQueues
from postbus.message import Outcome
from support.eventually import eventually
from support.grouping import create_log, is_through, publish_numbers
from support.running import running, tasks_are

MESSAGES = 200
KEYS = 10
SLOW = 0.3  # seconds for a message of the slow key, once the gate is open


class Uneven:
    """Handlers that wait at a gate with messages of one key, and take no time for others."""

    def __init__(self) -> None:
        self.returned: Counter[int] = Counter()
        self.gate = asyncio.Event()
        self.waiting = 0

    async def one(self, n: int) -> None:
        await self._work([n])

    async def many(self, numbers: list[int]) -> None:
        await self._work(numbers)

    async def in_transaction(self, n: int, conn: Any) -> None:
        await self._work([n])

    async def _work(self, numbers: list[int]) -> None:
        if any(n % KEYS == 0 for n in numbers) and not self.is_open_for_all:
            self.waiting += 1
            try:
                await self.gate.wait()
                await asyncio.sleep(SLOW)
            finally:
                self.waiting -= 1
        for n in numbers:
            self.returned[n] += 1

    is_open_for_all = False

    async def are_fast_ones_done(self) -> None:
        assert sum(1 for n in self.returned if n % KEYS) >= MESSAGES * (KEYS - 1) // KEYS

    async def is_waiting(self) -> None:
        assert self.waiting


HANDLERS: dict[str, tuple[dict[str, Any], Callable[[Uneven], Any]]] = {
    "single": ({"concurrency": 16}, lambda uneven: uneven.one),
    "batch with keys": ({"concurrency": 16, "batch": 1}, lambda uneven: uneven.many),
    "history": ({"concurrency": 16, "catch_up": CatchUp(beside_from=10, batch_size=1000)}, lambda uneven: uneven.one),
}


async def run_again(bus: Bus, conn: Any, uneven: Uneven, handler: Any, **options: Any) -> None:
    """Let another process finish the messages."""
    uneven.is_open_for_all = True
    async with Bus.open(bus.dsn) as later:
        later.subscribe("t", **options)(handler)
        async with running(later):
            await all_returned(uneven)
            await is_settled(conn)


async def all_returned(uneven: Uneven) -> None:
    async def as_many() -> None:
        assert len(uneven.returned) == MESSAGES

    await eventually(as_many, within=30)


async def is_settled(conn: Any) -> None:
    async def nothing_is_left() -> None:
        assert await conn.fetchval("select count(*) from postbus.lease") == 0
        assert await conn.fetchval("select count(*) from postbus.queued") == 0

    await eventually(nothing_is_left)


@pytest.mark.parametrize("kind", HANDLERS)
async def test_stop_repeats_nothing_whose_handler_returned(bus: Bus, conn: Any, kind: str) -> None:
    """With one slow key, messages in hand are finished, and the rest of that key is left to the next process."""
    options, choose = HANDLERS[kind]
    await create_log(bus, lanes=2)
    await publish_numbers(bus, range(MESSAGES), keys=KEYS)
    uneven = Uneven()
    subscribed = {"group": "g", "start": Start.BEGINNING, **options}
    bus.subscribe("t", **subscribed)(choose(uneven))
    run = asyncio.create_task(bus.run())
    if kind == "batch with keys":  # some fast keys share the slow one's queue
        await eventually(uneven.is_waiting)
        await eventually(lambda: _has_stood_still(uneven))
    else:
        await eventually(lambda: _has_stood_still(uneven))
    bus.stop()
    uneven.gate.set()
    assert await run is True
    began = len(uneven.returned)
    assert began < MESSAGES, "the slow key was not left to the next process"
    assert await conn.fetchval("select count(*) from postbus.settled_ahead") > 0

    await run_again(bus, conn, uneven, choose(uneven), **subscribed)
    assert set(uneven.returned.values()) == {1}


async def _has_stood_still(uneven: Uneven) -> None:
    """Check that only the slow key is left."""
    before = len(uneven.returned)
    assert uneven.waiting
    await asyncio.sleep(0.3)
    assert before == len(uneven.returned) > 0


@pytest.mark.parametrize("how", ["second stop", "drain_timeout"])
@pytest.mark.parametrize("kind", [*HANDLERS, "transactional", "queue", "batch of a queue"])
async def test_impatient_stop_repeats_only_cancelled_messages(bus: Bus, conn: Any, kind: str, how: str) -> None:
    """Running handlers are cancelled without using up an attempt, and finished messages are settled."""
    options, choose = HANDLERS.get(kind, ({"concurrency": 16}, lambda uneven: uneven.one))
    is_queue = "queue" in kind
    if not is_queue:
        await create_log(bus, lanes=2)
        options = {"group": "g", "start": Start.BEGINNING, **options}
    if kind == "transactional":
        options, choose = {**options, "transactional": True}, lambda uneven: uneven.in_transaction
    if kind == "batch of a queue":
        options, choose = {**options, "batch": 2}, lambda uneven: uneven.many
    await publish_numbers(bus, range(MESSAGES), keys=KEYS)
    uneven = Uneven()
    bus.subscribe("t", **options)(choose(uneven))
    run = asyncio.create_task(bus.run(drain_timeout=0.2 if how == "drain_timeout" else None))
    await eventually(lambda: _has_stood_still(uneven))
    bus.stop()
    if how == "second stop":
        bus.stop()
    assert await asyncio.wait_for(run, 10) is False
    assert uneven.waiting == 0
    leased = await conn.fetchval("select count(*) from postbus.lease")
    assert leased == 0
    if is_queue:
        assert await conn.fetchval("select max(attempts) from postbus.queued") == 0
    else:
        assert await conn.fetchval("select count(holder) from postbus.lane") == 0

    await run_again(bus, conn, uneven, choose(uneven), **options)
    assert set(uneven.returned.values()) == {1}


@pytest.mark.parametrize("kind", ["queue", "group"])
async def test_second_stop_is_clean_when_every_handler_has_returned(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It interrupts a settlement, which is sent once more, and no handler."""
    slow, told = asyncio.Event(), "advance" if kind == "group" else "ack_leases"
    tell = getattr(Store, told)

    async def tell_slowly(store: Store, *args: Any, **options: Any) -> Any:
        if args[0] and not slow.is_set():
            slow.set()
            await asyncio.Event().wait()
        return await tell(store, *args, **options)

    monkeypatch.setattr(Store, told, tell_slowly)
    returned: list[int] = []
    options: dict[str, Any] = {}
    if kind == "group":
        await create_log(bus, lanes=1)
        options = {"group": "g", "start": Start.BEGINNING}

    @bus.subscribe("t", **options)
    async def handle(n: int) -> None:
        returned.append(n)

    await publish_numbers(bus, [7], keys=1)
    run = asyncio.create_task(bus.run())
    await asyncio.wait_for(slow.wait(), 10)
    bus.stop()
    await tasks_are("_drain", 1)
    assert not run.done()
    bus.stop()

    assert await asyncio.wait_for(run, 10) is True
    assert returned == [7]
    if kind == "queue":
        assert await conn.fetchval("select count(*) from postbus.lease") == 0
    else:
        await is_through(conn, passed=1)


@pytest.mark.parametrize("kind", ["queue", "batch", "group"])
async def test_second_stop_does_not_forget_a_finished_call(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The stop comes during slow settlements: one message was given up and another one is done."""
    slow, told = asyncio.Event(), "settle_deferred" if kind == "group" else "dead_letter"
    tell = getattr(Store, told)

    async def tell_slowly(store: Store, *args: Any, **options: Any) -> Any:
        if not slow.is_set():
            slow.set()
            await asyncio.Event().wait()
        return await tell(store, *args, **options)

    monkeypatch.setattr(Store, told, tell_slowly)
    calls: list[int] = []
    if kind == "group":
        await create_log(bus, lanes=1, retry_initial="0s", retry_max="0s")

        @bus.subscribe("t", group="g", start=Start.BEGINNING)
        async def again(n: int) -> None:
            calls.append(n)
            if len(calls) == 1:
                raise ValueError("once more")

    elif kind == "queue":

        @bus.subscribe("t")
        async def give_up(n: int) -> DeadLetter:
            calls.append(n)
            return DeadLetter(reason="no")

    else:

        @bus.subscribe("t", batch=2)
        async def give_up_one(numbers: list[int]) -> list[Outcome]:
            calls.extend(numbers)
            return [DeadLetter(reason="no"), Ack()]

    await publish_numbers(bus, [7, 8] if kind == "batch" else [7], keys=1)
    run = asyncio.create_task(bus.run())
    await asyncio.wait_for(slow.wait(), 10)
    before = len(calls)
    bus.stop()
    await tasks_are("_drain", 1)
    bus.stop()

    assert await asyncio.wait_for(run, 10) is True
    assert len(calls) == before
    for table in ("lease", "queued", "delayed", "deferred"):
        assert await conn.fetchval(f"select count(*) from postbus.{table}") == 0, table
    assert await conn.fetchval("select count(*) from postbus.dead_letter") == (0 if kind == "group" else 1)


async def test_lanes_handed_to_another_process_repeat_nothing(bus: Bus, conn: Any) -> None:
    """A second process joins while the first is far ahead of a slow key, and no message comes twice."""
    await create_log(bus, lanes=2)
    await publish_numbers(bus, range(MESSAGES), keys=KEYS)
    uneven = Uneven()
    options: dict[str, Any] = {"group": "g", "start": Start.BEGINNING, "concurrency": 16}
    bus.subscribe("t", **options)(uneven.one)
    async with Bus.open(bus.dsn) as other, running(bus):
        other.subscribe("t", **options)(uneven.one)
        await eventually(lambda: _has_stood_still(uneven))
        async with running(other):
            uneven.gate.set()

            async def are_shared() -> None:
                assert await conn.fetchval("select count(distinct holder) from postbus.lane") == 2

            await eventually(are_shared)
            uneven.is_open_for_all = True
            await all_returned(uneven)
            await is_through(conn, passed=MESSAGES)
    assert set(uneven.returned.values()) == {1}


@pytest.mark.parametrize("is_cut_short", [False, True])
async def test_stop_while_lanes_are_released_repeats_nothing(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, is_cut_short: bool
) -> None:
    """The release waits while the stop slowly records messages settled ahead; a second stop may interrupt that."""
    await create_log(bus, lanes=1)
    returned: Counter[int] = Counter()
    gates = [asyncio.Event() for _ in range(4)]
    begun: set[int] = set()
    note_done, slow = Store.note_done, asyncio.Event()

    async def handle(n: int) -> None:
        begun.add(n)
        await gates[n].wait()
        returned[n] += 1

    async def note_slowly(store: Store, *args: Any) -> None:
        if not slow.is_set():
            slow.set()
            await asyncio.sleep(100 if is_cut_short else 0.5)
        await note_done(store, *args)

    async def settle_after_the_stop(lane_set: Any) -> None:
        task = asyncio.current_task()
        if task is not None and task.get_name().startswith("postbus-leave"):
            await asyncio.sleep(0.1)
        await settle(lane_set)

    async def all_began() -> None:
        assert begun == {0, 2, 3}

    options: dict[str, Any] = {"group": "g", "start": Start.BEGINNING, "concurrency": 16}
    bus.subscribe("t", **options)(handle)
    for n, key in enumerate("aabc"):
        await bus.send("t", n, key=key)
    run = asyncio.create_task(bus.run())
    await eventually(all_began)
    worker: Any = bus._worker
    [consumer] = worker._started_groups._assigner.consumers.values()
    settle = consumer._cursor_writer.settle
    monkeypatch.setattr(consumer._cursor_writer, "settle", settle_after_the_stop)
    monkeypatch.setattr(Store, "note_done", note_slowly)
    consumer.give_up(consumer.tokens)
    bus.stop()
    await tasks_are("_drain", 1)
    gates[0].set()  # the next message of its key does not begin: all later ones are ahead of it
    await asyncio.sleep(0.2)
    gates[3].set()
    await asyncio.wait_for(slow.wait(), 10)
    gates[2].set()
    gates[1].set()
    if is_cut_short:
        await asyncio.sleep(0.3)
        bus.stop()
    await asyncio.wait_for(run, 10)

    async def all_returned() -> None:
        assert len(returned) == 4

    async with Bus.open(bus.dsn) as later:
        later.subscribe("t", **options)(handle)
        async with running(later):
            await eventually(all_returned)
            await is_through(conn, passed=4)
    assert set(returned.values()) == {1}


async def test_lost_lane_costs_other_lanes_nothing(bus: Bus, conn: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One lane of a lane set is taken away, and messages settled in the others do not come again."""
    await create_log(bus, lanes=4)
    await publish_numbers(bus, range(MESSAGES), keys=KEYS)
    uneven = Uneven()
    bus.subscribe("t", group="g", start=Start.BEGINNING, concurrency=16)(uneven.one)
    async with running(bus):
        await eventually(lambda: _has_stood_still(uneven))
        lane = await conn.fetchval("select postbus.lane_of('k0', 4)")
        await conn.execute("update postbus.lane set token = gen_random_uuid(), holder = null where lane = $1", lane)
        await eventually(lambda: _is_logged(caplog, "lanes.lost"))
        uneven.is_open_for_all = True
        uneven.gate.set()
        await all_returned(uneven)
        await is_through(conn, passed=MESSAGES)
    of_lane = set(
        await conn.fetchval(
            "select array_agg(n) from generate_series(0, $1 - 1) as n where postbus.lane_of('k' || n % $2, 4) = $3",
            MESSAGES,
            KEYS,
            lane,
        )
    )
    assert {n for n, count in uneven.returned.items() if count > 1} <= of_lane


async def _is_logged(caplog: pytest.LogCaptureFixture, name: str) -> None:
    assert name in caplog.text


async def test_cancelled_retry_is_no_attempt(bus: Bus, conn: Any) -> None:
    """A message that is being retried when the process aborts keeps its attempts."""
    await create_log(bus, lanes=1)
    begun = asyncio.Event()

    @bus.subscribe("t", group="g", start=Start.BEGINNING)
    async def handle(n: int) -> None:
        if begun.is_set():
            raise AssertionError("it began a third time")
        if await conn.fetchval("select count(*) from postbus.deferred"):
            begun.set()
            await asyncio.Event().wait()
        raise ValueError("once more")

    await publish_numbers(bus, [1])
    run = asyncio.create_task(bus.run())
    await asyncio.wait_for(begun.wait(), 10)
    bus.stop()
    bus.stop()
    assert await run is False
    assert await conn.fetchval("select attempts from postbus.deferred") == 1


async def test_stop_repeats_only_the_cancelled_member_of_a_batch(bus: Bus) -> None:
    """One member has returned with its part of a batch, and the other one hangs until it is cancelled."""
    await create_log(bus, lanes=1)
    await publish_numbers(bus, range(10))
    hangs, returned = asyncio.Event(), Counter[int]()

    async def even(numbers: list[int]) -> None:
        returned.update(numbers)

    async def odd(numbers: list[int]) -> None:
        if not hangs.is_set():
            hangs.set()
            await asyncio.Event().wait()
        returned.update(numbers)

    async def start(bus: Bus) -> None:
        group = bus.group("g", "t", batch=10)
        group.add_member("even", even, lambda message: int(message.payload) % 2 == 0)
        group.add_member("odd", odd, lambda message: int(message.payload) % 2 == 1)
        await group.start(Start.BEGINNING)

    await start(bus)
    run = asyncio.create_task(bus.run(drain_timeout=0.1))
    await asyncio.wait_for(hangs.wait(), 10)
    bus.stop()
    assert await run is False
    assert sorted(returned) == [0, 2, 4, 6, 8]
    async with Bus.open(bus.dsn) as later:
        await start(later)
        async with running(later):

            async def all_came() -> None:
                assert len(returned) == 10

            await eventually(all_came)
    assert set(returned.values()) == {1}


async def test_key_added_after_a_stop_gets_the_messages_passed_over(bus: Bus) -> None:
    """A group of one key stops with messages of another key behind a slow one, and gets that key from the beginning."""
    await create_log(bus, lanes=1)
    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", [Outgoing(payload=n, key="a" if n == 0 else "b") for n in range(5)])
    hangs, returned = asyncio.Event(), Counter[int]()

    async def handle(n: int) -> None:
        if not hangs.is_set():
            hangs.set()
            await asyncio.Event().wait()
        returned[n] += 1

    bus.subscribe("t", group="g", key="a", start=Start.BEGINNING, concurrency=4)(handle)
    run = asyncio.create_task(bus.run(drain_timeout=0.1))
    await asyncio.wait_for(hangs.wait(), 10)
    bus.stop()
    assert await run is False
    async with Bus.open(bus.dsn) as later:
        await later.admin.subscribe_group("g", "t", key="b", start=Start.BEGINNING)
        later.subscribe("t", group="g", key="a", concurrency=4)(handle)
        async with running(later):

            async def all_came() -> None:
                assert returned == Counter(range(5))

            await eventually(all_came)


async def test_lane_found_lost_at_the_end_leaves_no_task(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted worker learns only from its last statement that others have its lane, and no task of it goes on."""
    await create_log(bus, lanes=1)
    await publish_numbers(bus, [1])
    asked, aborted, close = asyncio.Event(), asyncio.Event(), WorkQueues.close

    def aborts(queues: WorkQueues) -> list[Work]:
        aborted.set()
        return close(queues)

    async def advance(store: Store, steps: Sequence[Any], *_: Any) -> set[int]:
        asked.set()
        if not aborted.is_set():
            raise DatabaseUnavailable("it is away", remedy="wait")
        return set(range(len(steps)))

    monkeypatch.setattr(Store, "advance", advance)

    async def release_lanes(*_: Any) -> None:
        raise DatabaseUnavailable("it is away again", remedy="wait")

    monkeypatch.setattr(Store, "release_lanes", release_lanes)
    monkeypatch.setattr(WorkQueues, "close", aborts)

    @bus.subscribe("t", group="g", start=Start.BEGINNING)
    async def handle(n: int) -> None: ...

    run = asyncio.create_task(bus.run())
    await asyncio.wait_for(asked.wait(), 10)
    bus.stop()
    bus.stop()
    assert await run is True
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("postbus-leave")] == []


async def test_many_messages_settled_ahead_are_recorded_at_once(bus: Bus, conn: Any) -> None:
    """Ten thousand messages ahead of a slow one take one statement, and little time to release and take over."""
    await create_log(bus, lanes=1)
    await bus.send("t", -1, key="slow")
    await conn.execute(
        "select count(postbus.publish('t', n::text, key => 'k' || n)) from generate_series(1, 10000) as n"
    )
    gate, returned = asyncio.Event(), Counter[int]()

    async def handle(n: int) -> None:
        if n < 0 and not gate.is_set():
            await gate.wait()
        returned[n] += 1

    options: dict[str, Any] = {"group": "g", "start": Start.BEGINNING, "concurrency": 1000}
    bus.subscribe("t", **options)(handle)
    run = asyncio.create_task(bus.run())

    async def many_are_ahead() -> None:
        assert len(returned) >= 9000

    await eventually(many_are_ahead, within=60)
    bus.stop()
    bus.stop()
    assert await run is False
    assert await conn.fetchval("select count(*) from postbus.settled_ahead") >= 9000
    gate.set()
    async with Bus.open(bus.dsn) as later:
        later.subscribe("t", **options)(handle)
        async with running(later):
            await is_through(conn, passed=10001, within=30)
    assert set(returned.values()) == {1}
    for storage in await conn.fetch("select id from postbus.log_storage"):
        await conn.execute("select postbus.sweep_log($1)", storage["id"])
    assert await conn.fetchval("select count(*) from postbus.settled_ahead") == 0
