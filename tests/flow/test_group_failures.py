"""Failures in groups: retried aside from other messages, given up per group, redriven to that group alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from postbus import Ack, Bus, DeadLetter, Message, Outgoing, Release, Retry, RetryPolicy, Start
from postbus._db.store import Store
from postbus._group import redelivery
from support.eventually import eventually
from support.grouping import SOON, are_shared, create_log, group_row, has, in_order, is_through, publish_numbers
from support.running import running

LATER = RetryPolicy(initial=3600, factor=1, maximum=3600, jitter=0)  # when the test says so


async def make_due(conn: Any) -> None:
    """Make all failed messages due."""
    await conn.execute("update postbus.deferred set due_at = clock_timestamp() where not parked")


async def waits(conn: Any, *, retrying: int, parked: int) -> None:
    """Wait until a group has passed all messages, with so many of them deferred."""

    async def as_many() -> None:
        row = await group_row(conn)
        assert (row["lag"], row["retrying"], row["parked"]) == (0, retrying, parked)

    await eventually(as_many)


async def dead_of(conn: Any, group: str = "g") -> list[tuple[int, str, int]]:
    rows = await conn.fetch(
        "select convert_from(payload, 'utf8')::int as n, reason, attempts from postbus.dead_letters "
        "where group_name = $1 order by id",
        group,
    )
    return [tuple(row) for row in rows]


async def test_failing_message_holds_up_no_other_key(bus: Bus, conn: Any) -> None:
    """Other messages of its lane and work queue are handled at once, and those of its key wait behind it."""
    await create_log(bus, lanes=1)
    got: list[tuple[int, int]] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING, retry=LATER)
    async def handle(n: int, message: Message) -> None:
        if n == 0 and message.attempt == 1:
            raise ValueError("not now")
        got.append((n, message.attempt))

    await publish_numbers(bus, range(20), keys=5)
    async with running(bus):
        await waits(conn, retrying=1, parked=3)
        assert [n for n, _ in got] == [n for n in range(20) if n % 5]
        await make_due(conn)
        await is_through(conn, passed=20)
    assert got[16:] == [(0, 2), (5, 1), (10, 1), (15, 1)]


async def test_on_failure_pass_lets_the_key_go_on(bus: Bus, conn: Any) -> None:
    """Later messages of the key do not wait."""
    await create_log(bus, lanes=1)
    got: list[int] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING, retry=LATER, on_failure="pass")
    async def handle(n: int, message: Message) -> None:
        if n == 0 and message.attempt == 1:
            raise ValueError("not now")
        got.append(n)

    await publish_numbers(bus, range(4), keys=1)
    async with running(bus):
        await waits(conn, retrying=1, parked=0)
        assert got == [1, 2, 3]
        await make_due(conn)
        await is_through(conn, passed=4)
    assert got == [1, 2, 3, 0]


@pytest.mark.parametrize("options", [{}, {"batch": 3}, {"transactional": True}], ids=str)
async def test_handler_outcomes_settle_the_message(bus: Bus, conn: Any, options: dict[str, Any]) -> None:
    """Retry waits and keeps its error, DeadLetter gives up at once, and Release counts no attempt."""
    await create_log(bus)
    calls: list[tuple[int, int]] = []
    released = False

    def outcome(n: int, attempt: int) -> Any:
        nonlocal released
        calls.append((n, attempt))
        if n == 1 and attempt == 1:
            return Retry(delay=0.01, error="busy")
        if n == 2:
            return DeadLetter("unwanted", error="because")
        if n == 3 and not released:
            released = True
            return Release()
        return None

    async def one(n: int, message: Message) -> Any:
        return outcome(n, message.attempt)

    async def batch(ns: list[int], messages: list[Message]) -> Any:
        return [outcome(n, message.attempt) for n, message in zip(ns, messages, strict=True)]

    async def in_transaction(n: int, message: Message, conn: Any) -> Any:
        return outcome(n, message.attempt)

    handler = batch if "batch" in options else in_transaction if options else one
    bus.subscribe("t", group="g", start=Start.BEGINNING, **options)(handler)
    await publish_numbers(bus, range(5))
    async with running(bus):
        await is_through(conn, passed=5, dead=1)
    assert Counter(n for n, _ in calls) == {0: 1, 1: 2, 2: 1, 3: 2, 4: 1}
    assert [attempt for n, attempt in calls if n == 1] == [1, 2]
    assert [attempt for n, attempt in calls if n == 3] == [1, 1]
    assert await dead_of(conn) == [(2, "unwanted", 1)]


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_messages_behind_a_failure_in_a_batch_come_again(bus: Bus, conn: Any, concurrency: int) -> None:
    """Messages of the failed key wait behind it although the batch acked them; other keys are settled."""
    await create_log(bus, lanes=1)
    got: list[tuple[str | None, bytes]] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING, batch=50, retry=LATER, concurrency=concurrency)
    async def handle(messages: list[Message]) -> list[Ack | Retry]:
        got.extend((one.key, one.payload) for one in messages)
        return [Retry() if one.payload == b"3" and one.attempt == 1 else Ack() for one in messages]

    await publish_numbers(bus, range(9), keys=3)
    async with running(bus):
        await waits(conn, retrying=1, parked=1)
        assert Counter(got) == {(f"k{n % 3}", b"%d" % n): 1 for n in range(9)}
        await make_due(conn)
        await is_through(conn, passed=9)
    assert got[9:] == [("k0", b"3"), ("k0", b"6")]


async def test_nothing_waits_behind_a_dead_letter_of_a_batch(bus: Bus, conn: Any) -> None:
    """With `on_failure="pass"` nothing waits behind a failure either."""
    await create_log(bus, lanes=1)
    got: list[bytes] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING, batch=50, retry=LATER)
    async def give_up(messages: list[Message]) -> list[Ack | DeadLetter]:
        got.extend(one.payload for one in messages)
        return [DeadLetter("no") if one.payload == b"0" else Ack() for one in messages]

    @bus.subscribe("t", group="other", start=Start.BEGINNING, batch=50, retry=LATER, on_failure="pass")
    async def fail(messages: list[Message]) -> list[Ack | Retry]:
        return [Retry() if one.payload == b"0" else Ack() for one in messages]

    await publish_numbers(bus, range(3), keys=1)
    async with running(bus):
        await is_through(conn, passed=3, dead=1)
        await is_through(conn, "other", passed=3, retrying=1)
    assert got == [b"0", b"1", b"2"]


async def test_message_is_given_up_by_one_group_only(bus: Bus, conn: Any) -> None:
    """The dead letter belongs to that group, and neither it nor its redrive affects the other group."""
    await create_log(bus)
    attempts: list[int] = []
    others: list[int] = []
    is_well = False

    @bus.subscribe("t", group="g", start=Start.BEGINNING, retry=SOON)
    async def fail(n: int, message: Message) -> None:
        attempts.append(message.attempt)
        if not is_well:
            raise ValueError("never")

    @bus.subscribe("t", group="other", start=Start.BEGINNING)
    async def handle(n: int) -> None:
        others.append(n)

    await bus.send("t", 7, key="k")
    async with running(bus):
        await is_through(conn, dead=1)
        await is_through(conn, "other", dead=0)
        assert attempts == [1, 2, 3]
        assert [(n, count) for n, _, count in await dead_of(conn)] == [(7, 3)]
        assert ((await bus.admin.dead_letters("t"))[0].last_error or "").endswith("ValueError: never\n")
        is_well = True
        assert await conn.fetchval("select postbus.redrive('t', group_name => 'g')") == 1
        # a wake-up announces it, so that it need not be polled
        await is_through(conn, dead=0, within=redelivery._IDLE_POLL - 1)
    assert attempts == [1, 2, 3, 1]
    assert others == [7]
    assert (await group_row(conn))["failed"] == 3


@pytest.mark.parametrize("transactional", [False, True])
async def test_short_retry_delay_is_not_rounded_up_to_a_poll(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    """A failed message is retried when it is due, the first time and each time after."""
    monkeypatch.setattr("postbus._group.redelivery.POLL", 3600)
    await create_log(bus)
    attempts: list[int] = []
    subscribe = bus.subscribe(
        "t",
        group="g",
        start=Start.BEGINNING,
        retry=RetryPolicy(initial=0.02, factor=1, maximum=0.02),
        transactional=transactional,
    )

    async def handle(n: int, message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 4:
            raise ValueError("once more")

    async def handle_in_transaction(n: int, message: Message, conn: Any) -> None:
        await handle(n, message)

    subscribe(handle_in_transaction if transactional else handle)
    await publish_numbers(bus, range(2), keys=1)
    async with running(bus):
        await is_through(conn, dead=0)

    assert attempts == [1, 2, 3, 4] * 2


async def test_topics_retry_policy_applies_without_one_of_the_group(bus: Bus, conn: Any) -> None:
    """The topic's attempts and delays are used."""
    await create_log(bus, max_attempts=2, retry_initial="1ms", retry_max="1ms")
    attempts: list[int] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING)
    async def fail(n: int, message: Message) -> None:
        attempts.append(message.attempt)
        raise ValueError

    await bus.send("t", 1)
    async with running(bus):
        await is_through(conn, dead=1)
    assert attempts == [1, 2]


@pytest.mark.parametrize("options", [{}, {"transactional": True}], ids=str)
async def test_restart_between_failure_and_retry_keeps_the_order(
    bus: Bus, conn: Any, dsn: str, options: dict[str, Any]
) -> None:
    """The next process retries the message, and other messages of its key wait for it there too."""
    await create_log(bus)
    got: list[tuple[int, int]] = []

    async def handle(n: int, message: Message) -> None:
        if n == 0 and message.attempt == 1:
            raise ValueError("not now")
        got.append((n, message.attempt))

    async def in_transaction(n: int, message: Message, conn: Any) -> None:
        await handle(n, message)

    handler = in_transaction if options else handle
    bus.subscribe("t", group="g", start=Start.BEGINNING, retry=LATER, **options)(handler)
    await publish_numbers(bus, range(4), keys=2)
    async with running(bus):
        await waits(conn, retrying=1, parked=1)
    async with Bus.open(dsn) as again:
        again.subscribe("t", group="g", retry=LATER, **options)(handler)
        async with running(again):
            await publish_numbers(bus, range(4, 6), keys=2)
            await waits(conn, retrying=1, parked=2)
            assert [n for n, _ in got if n % 2 == 0] == []
            await make_due(conn)
            await is_through(conn, passed=6)
    assert [one for one in got if one[0] % 2 == 0] == [(0, 2), (2, 1), (4, 1)]
    assert [one for one in got if one[0] % 2] == [(1, 1), (3, 1), (5, 1)]


async def test_stop_gives_back_a_retry_that_is_being_claimed(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop waits for the answer to the last claim, and releases the message at once."""
    await create_log(bus, lease="1 hour", lanes=1)
    claimed, answer = asyncio.Event(), asyncio.Event()
    claim = Store.claim_deferred

    async def claim_slowly(*args: Any, **options: Any) -> Any:
        if due := await claim(*args, **options):
            claimed.set()
            await answer.wait()
        return due

    monkeypatch.setattr(Store, "claim_deferred", claim_slowly)

    @bus.subscribe("t", group="g", start=Start.BEGINNING, retry=SOON)
    async def handle(n: int) -> None:
        raise ValueError

    await publish_numbers(bus, [1])
    run = asyncio.create_task(bus.run())
    await asyncio.wait_for(claimed.wait(), 10)
    bus.stop()
    await eventually(_nothing_is_read)
    assert not run.done()
    answer.set()
    await asyncio.wait_for(run, 5)

    assert await conn.fetchval("select attempts from postbus.deferred where due_at <= clock_timestamp()") == 1


async def _nothing_is_read() -> None:
    assert not any(task.get_name().startswith("postbus-read-") for task in asyncio.all_tasks())


async def test_stop_gives_back_claimed_retries(bus: Bus, conn: Any, dsn: str) -> None:
    """The next process tries at once a claimed retry that had not begun."""
    await create_log(bus, lease="1 hour", lanes=1)
    begun, finish = asyncio.Event(), asyncio.Event()
    got: list[tuple[int, int]] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING, retry=SOON)
    async def handle(n: int, message: Message) -> None:
        if n < 3:
            raise ValueError
        if n == 3:
            begun.set()
            await finish.wait()
        got.append((n, message.attempt))

    await publish_numbers(bus, range(4))
    run = asyncio.create_task(bus.run())
    await begun.wait()

    async def are_claimed() -> None:
        assert await conn.fetchval("select sum(attempts) from postbus.deferred") == 6

    await eventually(are_claimed)
    bus.stop()

    async def are_given_back() -> None:
        assert await conn.fetchval("select sum(attempts) from postbus.deferred where due_at <= clock_timestamp()") == 3

    await eventually(are_given_back)
    finish.set()
    await asyncio.wait_for(run, 5)
    await are_given_back()

    async with Bus.open(dsn) as again:

        @again.subscribe("t", group="g")
        async def take(n: int, message: Message) -> None:
            got.append((n, message.attempt))

        async with running(again):
            await is_through(conn)
    assert sorted(got) == [(0, 2), (1, 2), (2, 2), (3, 1)]


@pytest.mark.parametrize("transactional", [False, True])
async def test_retry_longer_than_its_lease_is_one_attempt(bus: Bus, conn: Any, transactional: bool) -> None:
    """Its lease is extended while the handler runs, so that it is not begun again and counts once."""
    await create_log(bus, max_attempts=3)
    begun: list[int] = []
    finish = asyncio.Event()

    async def handle(n: int, message: Message) -> None:
        begun.append(message.attempt)
        if message.attempt == 1:
            raise ValueError
        await finish.wait()
        if message.attempt == 2:
            raise ValueError

    async def in_transaction(n: int, message: Message, conn: Any) -> None:
        await handle(n, message)

    chosen: Any = in_transaction if transactional else handle
    bus.subscribe("t", group="g", start=Start.BEGINNING, concurrency=4, transactional=transactional, retry=SOON)(chosen)

    async def is_prolonged_beyond(time: Any) -> None:
        assert await conn.fetchval("select due_at from postbus.deferred") > time

    await bus.send("t", 1)
    async with running(bus):
        await has(begun, 2)
        first = await conn.fetchval("select due_at from postbus.deferred")
        await eventually(is_prolonged_beyond, first + timedelta(seconds=3), within=60)
        assert await conn.fetchval("select attempts from postbus.deferred") == 2
        finish.set()
        await is_through(conn, passed=1, dead=0)
    assert begun == [1, 2, 3]


@pytest.mark.parametrize("options", [{}, {"batch": 10}, {"transactional": True}], ids=str)
async def test_messages_behind_a_failed_one_of_their_key_are_parked(
    bus: Bus, conn: Any, options: dict[str, Any]
) -> None:
    """This holds for messages read or handled together with the failed one, and for much later ones."""
    await create_log(bus, lanes=1)
    got: list[int] = []
    is_well = False

    async def fail(given: Any) -> None:
        ns = given if isinstance(given, list) else [given]
        if not is_well and 0 in ns:
            raise ValueError
        got.extend(ns)

    async def fail_in_transaction(given: Any, conn: Any) -> None:
        await fail(given)

    handler = fail_in_transaction if "transactional" in options else fail
    bus.subscribe("t", group="g", start=Start.BEGINNING, retry=LATER, **options)(handler)
    await publish_numbers(bus, range(10), keys=2)
    async with running(bus):
        # In a batch all fail together: the first of each key is retried, and the others wait behind it.
        together = "batch" in options
        await waits(conn, retrying=2 if together else 1, parked=8 if together else 4)
        await publish_numbers(bus, range(10, 12), keys=2)
        await waits(conn, retrying=2 if together else 1, parked=10 if together else 5)
        attempts = await conn.fetch("select parked, attempts from postbus.deferred order by id")
        assert all(row["attempts"] == (0 if row["parked"] else 1) for row in attempts)
        is_well = True
        await make_due(conn)
        await is_through(conn, passed=12, dead=0)
    assert Counter(got) == Counter(range(12))
    assert in_order(got, 2)


async def test_parked_keys_are_forgotten_with_the_lane(bus: Bus, conn: Any, dsn: str) -> None:
    """A key that failed here and recovered elsewhere is not held up when its lane comes back."""
    await create_log(bus, lanes=2)
    got: list[tuple[str, int]] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING, retry=LATER)
    async def handle(n: int, message: Message) -> None:
        if n == 0 and message.attempt == 1:
            raise ValueError
        got.append(("first", n))

    keys = [f"k{n}" for n in range(8)]

    async def publish(n: int) -> None:
        async with bus.transaction() as tx:
            await bus.publish_many(tx, "t", [Outgoing(payload=n, key=key) for key in keys])

    await publish(0)
    async with Bus.open(dsn) as second, running(bus):

        @second.subscribe("t", group="g", retry=LATER)
        async def take(n: int) -> None:
            got.append(("second", n))

        await waits(conn, retrying=8, parked=0)
        async with running(second):
            await are_shared(conn, 1, 1)
            await make_due(conn)
            await is_through(conn)
            assert {name for name, _ in got} == {"first", "second"}
        await are_shared(conn, 2)
        await publish(1)
        await is_through(conn, passed=16)  # with nothing parked: nobody would make that due
    assert got[8:] == [("first", 1)] * 8


async def test_hundred_failing_messages_block_nothing_else(bus: Bus, conn: Any) -> None:
    """Messages without keys that all fail do not keep others from being handled."""
    await create_log(bus)
    got: list[int] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING, retry=LATER)
    async def handle(n: int, message: Message) -> None:
        if n < 100 and message.attempt == 1:
            raise ValueError
        got.append(n)

    await publish_numbers(bus, range(200))
    async with running(bus):
        await waits(conn, retrying=100, parked=0)
        assert sorted(got) == list(range(100, 200))
        await make_due(conn)
        await is_through(conn, passed=200)
    assert sorted(got) == list(range(200))
