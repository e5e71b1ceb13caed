"""Delivery to groups: every message to every group, as each handler wants it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postbus import Bus, Message, Middleware, Outgoing, Start
from postbus._db.store import Store
from postbus._wakeup.waiters import TimedWaker
from postbus.embedded import EmbeddedPostgres
from postbus.group import stable_hash
from support.eventually import eventually
from support.grouping import (
    SOON,
    are_listed,
    are_shared,
    create_log,
    group_row,
    has,
    in_order,
    is_through,
    look_often,
    publish_numbers,
)
from support.log_sql import cursor_of, read_all
from support.running import Endless, running, tasks_are


class Order(msgspec.Struct):
    id: int
    note: str = ""


async def test_every_group_gets_every_message(bus: Bus, conn: Any) -> None:
    """Groups of all kinds get each message once, whatever the others do."""
    await create_log(bus)
    got: dict[str, list[int]] = {"plain": [], "wide": [], "batch": [], "keyed batch": [], "thread": [], "tx": []}

    @bus.subscribe("t", group="plain")
    async def plain(n: int) -> None:
        got["plain"].append(n)

    @bus.subscribe("t", group="wide", concurrency=20)
    async def wide(n: int) -> None:
        await asyncio.sleep(0)
        got["wide"].append(n)

    @bus.subscribe("t", group="batch", batch=50)
    async def batch(ns: list[int]) -> None:
        got["batch"] += ns

    @bus.subscribe("t", group="keyed-batch", batch=50, concurrency=4)
    async def keyed_batch(ns: list[int]) -> None:
        got["keyed batch"] += ns

    @bus.subscribe("t", group="thread", concurrency=3)
    def thread(n: int) -> None:
        got["thread"].append(n)

    @bus.subscribe("t", group="tx", transactional=True, concurrency=8)
    async def tx(n: int, conn: Any) -> None:
        got["tx"].append(n)

    async with running(bus):
        await are_listed(conn, 6)
        await publish_numbers(bus, range(300), keys=7)
        for n in range(300, 320):
            await bus.send("t", n)
        for name in ("plain", "wide", "batch", "keyed-batch", "thread", "tx"):
            await is_through(conn, name, passed=320)
    assert {name: Counter(numbers) for name, numbers in got.items()} == {name: Counter(range(320)) for name in got}


async def test_open_transaction_delays_only_its_own_messages(bus: Bus, conn: Any, connect: Any) -> None:
    """A late commit is delivered late, and nothing is skipped."""
    await create_log(bus)
    got: list[int] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING)
    async def handle(n: int) -> None:
        got.append(n)

    other = await connect()
    await other.execute("begin")
    await bus.publish(other, "t", 1)
    async with running(bus):
        await bus.send("t", 2)
        await has(got, 1)
        await other.execute("commit")
        await has(got, 2)
        await bus.send("t", 3)
        await has(got, 3)
    assert got == [2, 1, 3]


async def test_messages_arrive_as_they_were_published(bus: Bus, conn: Any) -> None:
    """Key, headers, correlation id, content type, id and time are kept, for single messages and in segments."""
    await create_log(bus)
    got: dict[int, Message] = {}

    @bus.subscribe("t", group="g")
    async def handle(message: Message) -> None:
        got[message.id] = message

    async with running(bus):
        await are_listed(conn)
        one = await bus.send("t", Order(1), key="k", headers={"a": "b"}, correlation_id="c")
        async with bus.transaction() as tx:
            many = await bus.publish_many(
                tx, "t", [Outgoing(payload=b"\0", key="x"), Outgoing(payload="text"), Outgoing(payload=[1], key="x")]
            )
        await is_through(conn)
    message = got[one]
    assert (message.topic, message.key, message.headers, message.correlation_id) == ("t", "k", {"a": "b"}, "c")
    assert (message.payload, message.content_type, message.attempt) == (b'{"id":1,"note":""}', "application/json", 1)
    assert [got[one].payload for one in many] == [b"\0", b"text", b"[1]"]
    assert [got[one].content_type for one in many][:1] == ["application/octet-stream"]
    assert [got[one].key for one in many] == ["x", None, "x"]


async def test_payloads_are_decoded_to_each_groups_type(bus: Bus, conn: Any) -> None:
    """One message can have another type in each group."""
    await create_log(bus)
    typed: list[Order] = []
    plain: list[dict[str, Any]] = []
    changed: list[dict[str, Any]] = []

    @bus.subscribe("t", group="typed", batch=10)
    async def take_typed(orders: list[Order], messages: list[Message]) -> None:
        assert [order.id for order in orders] == [msgspec.json.decode(one.payload)["id"] for one in messages]
        typed.extend(orders)

    @bus.subscribe("t", group="changes")
    async def change(order: dict[str, Any]) -> None:
        order["id"] = "changed"
        changed.append(order)

    @bus.subscribe("t", group="plain")
    async def take_plain(order: dict[str, Any]) -> None:
        plain.append(order)

    async with running(bus):
        await are_listed(conn, 3)
        async with bus.transaction() as tx:
            await bus.publish_many(tx, "t", [Order(n) for n in range(20)])
        for name in ("typed", "plain", "changes"):
            await is_through(conn, name)
    assert sorted(order.id for order in typed) == list(range(20))
    assert sorted(order["id"] for order in plain) == list(range(20))


@pytest.mark.parametrize("options", [{}, {"batch": 10}, {"batch": 10, "transactional": True}, {"transactional": True}],
                         ids=str)  # fmt: skip
async def test_undecodable_message_is_a_dead_letter_of_that_group(bus: Bus, conn: Any, options: dict[str, Any]) -> None:
    """The group that cannot decode a payload gives it up at once, and the others are handled."""
    await create_log(bus)
    got: list[int] = []
    raw: list[bytes] = []

    if options.get("transactional") and options.get("batch"):

        async def handle_both(orders: list[Order], conn: Any) -> None:
            got.extend(order.id for order in orders)

        bus.subscribe("t", group="g", **options)(handle_both)
    elif options.get("transactional"):

        async def handle_tx(order: Order, conn: Any) -> None:
            got.append(order.id)

        bus.subscribe("t", group="g", **options)(handle_tx)
    elif options.get("batch"):

        async def handle_batch(orders: list[Order]) -> None:
            got.extend(order.id for order in orders)

        bus.subscribe("t", group="g", **options)(handle_batch)
    else:

        async def handle_one(order: Order) -> None:
            got.append(order.id)

        bus.subscribe("t", group="g", **options)(handle_one)

    @bus.subscribe("t", group="raw")
    async def take(payload: bytes) -> None:
        raw.append(payload)

    async with running(bus):
        await are_listed(conn, 2)
        async with bus.transaction() as tx:
            await bus.publish_many(tx, "t", [{"id": 1}, {"id": 2}, {"id": "two"}, {"id": 3}])
        await is_through(conn, dead=1)
        await is_through(conn, "raw", dead=0)
    assert sorted(got) == [1, 2, 3]
    assert len(raw) == 4
    dead = (await bus.admin.dead_letters("t"))[0]
    assert "does not decode" in (dead.reason or "")
    row = await group_row(conn)
    assert (row["processed"], row["failed"]) == (3, 1)


async def test_sync_handlers_run_in_threads(bus: Bus, conn: Any) -> None:
    """Messages of different keys run in as many threads as the concurrency allows."""
    await create_log(bus)
    both = threading.Barrier(2, timeout=10)
    threads: set[str] = set()

    @bus.subscribe("t", group="g", concurrency=2)
    def handle(n: int) -> None:
        threads.add(threading.current_thread().name)
        both.wait()

    async with running(bus):
        await are_listed(conn)
        odd, even = (next(key for key in "abcdefgh" if stable_hash(key) % 2 == rest) for rest in (0, 1))
        async with bus.transaction() as tx:
            await bus.publish_many(tx, "t", [Outgoing(payload=1, key=odd), Outgoing(payload=2, key=even)])
        await is_through(conn, failed=0)
    assert len(threads) == 2
    assert all(name.startswith("postbus-t") for name in threads)


async def test_handler_beyond_its_timeout_is_cancelled(bus: Bus, conn: Any) -> None:
    """The attempt fails with the reason, and the next one may succeed."""
    await create_log(bus)
    attempts: list[int] = []

    @bus.subscribe("t", group="g", timeout=0.05, retry=SOON)
    async def handle(n: int, message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            await asyncio.Event().wait()

    async with running(bus):
        await are_listed(conn)
        await bus.send("t", 1)
        await is_through(conn, passed=1)
    assert attempts == [1, 2]


async def test_middleware_surrounds_handlers_of_groups(bus: Bus, conn: Any) -> None:
    """It sees single messages and batches, first attempts and later ones."""
    await create_log(bus)
    seen: list[list[tuple[bytes, int]]] = []

    class Watch(Middleware):
        async def handling(self, messages: Sequence[Message], call_next: Callable[[], Awaitable[Any]]) -> Any:
            seen.append([(message.payload, message.attempt) for message in messages])
            return await call_next()

    bus.use(Watch())
    failed = False

    @bus.subscribe("t", group="g", batch=2, retry=SOON)
    async def handle(ns: list[int]) -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise ValueError

    async with running(bus):
        await are_listed(conn)
        async with bus.transaction() as tx:
            await bus.publish_many(tx, "t", [1, 2])
        await is_through(conn, passed=2)
    assert seen[0] == [(b"1", 1), (b"2", 1)]
    assert sorted(seen[1:]) == [[(b"1", 2)], [(b"2", 2)]]


# Stopping


async def test_stop_drains_a_group(bus: Bus, conn: Any) -> None:
    """Running handlers finish and settle, and other messages are left to the next process."""
    await create_log(bus, lanes=1)
    begun, finish = asyncio.Event(), asyncio.Event()
    got: list[int] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING)
    async def handle(n: int) -> None:
        begun.set()
        await finish.wait()
        got.append(n)

    await publish_numbers(bus, range(10))
    run = asyncio.create_task(bus.run())
    await begun.wait()
    bus.stop()
    await tasks_are("postbus-read-g", 0)  # messages that have not begun are dropped, before running ones are waited for
    finish.set()
    assert await asyncio.wait_for(run, 5) is True
    row = await group_row(conn)
    assert (got, row["passed"], row["lanes_held"], row["processed"]) == ([0], 1, 0, 1)
    async with running(bus):
        await has(got, 10)
    assert got == list(range(10))


async def test_second_stop_aborts_a_group(bus: Bus, conn: Any) -> None:
    """A handler that does not end is cancelled, and its message comes again."""
    await create_log(bus)
    endless = Endless()
    bus.subscribe("t", group="g", start=Start.BEGINNING)(endless.handle)
    await bus.send("t", 1)

    assert await endless.is_stopped_twice(bus) is False
    assert endless.cancelled.is_set()
    assert (await group_row(conn))["passed"] == 0


async def test_slow_group_delays_no_other_group(bus: Bus, conn: Any) -> None:
    """While a handler of a stopping group takes its time, other groups start, pause, resume and go on."""
    await create_log(bus)
    begun, finish = asyncio.Event(), asyncio.Event()
    got: list[int] = []

    async def slow(n: int) -> None:
        begun.set()
        await finish.wait()

    async def fast(n: int) -> None:
        got.append(n)

    stuck, lively = bus.group("stuck", "t"), bus.group("lively", "t")
    stuck.add_member("m", slow)
    lively.add_member("m", fast)
    await stuck.start()
    async with running(bus):
        await bus.send("t", 1)
        await begun.wait()
        await stuck.pause()
        await asyncio.wait_for(lively.start(Start.BEGINNING), 5)
        await has(got, 1)
        stopping = asyncio.create_task(stuck.stop())
        await bus.send("t", 2)
        await has(got, 2)
        await asyncio.wait_for(lively.stop(), 5)
        assert not stopping.done()
        finish.set()
        await stopping


# Shared reads, memory, idle processes


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record the calls of `read_log` that returned messages: topic and count."""
    calls: list[tuple[str, int]] = []
    original = Store.read_log

    async def counted(self: Store, topic: str, *args: Any, **options: Any) -> Any:
        result = await original(self, topic, *args, **options)
        if result.segments:
            calls.append((topic, result.count))
        return result

    monkeypatch.setattr(Store, "read_log", counted)
    return calls


async def test_groups_at_the_same_position_read_once(bus: Bus, conn: Any, reads: list[tuple[str, int]]) -> None:
    """Twenty groups in one process read the log about as often as one."""
    await create_log(bus)
    got: Counter[str] = Counter()
    for number in range(20):

        async def handle(n: int, name: str = f"g{number}") -> None:
            got[name] += 1

        bus.subscribe("t", group=f"g{number}")(handle)

    async with running(bus):
        await are_listed(conn, 20)
        for round_number in range(1, 31):
            await bus.send("t", round_number)

            async def all_have_it(count: int = round_number) -> None:
                assert set(got.values()) == {count}
                assert len(got) == 20

            await eventually(all_have_it)
    read = sum(count for _, count in reads)
    assert read <= 3 * 30, f"{read} messages read for 30"


async def test_groups_with_different_starts_come_to_share_reads(
    bus: Bus, conn: Any, reads: list[tuple[str, int]]
) -> None:
    """Groups from different positions share their reads once they have caught up."""
    await create_log(bus, lanes=2)
    await publish_numbers(bus, range(50))
    got: Counter[int] = Counter()
    third = await bus.send("t", -1)
    for number, start in enumerate([Start.BEGINNING, Start.NOW, Start.from_message(third), Start.NOW]):

        async def handle(n: int, number: int = number) -> None:
            got[number] += 1

        bus.subscribe("t", group=f"g{number}", start=start)(handle)
    async with running(bus):
        for number in range(4):
            await is_through(conn, f"g{number}")
        await publish_numbers(bus, [100])
        for number in range(4):
            await is_through(conn, f"g{number}")
        reads.clear()
        for n in range(101, 131):
            await publish_numbers(bus, [n])

            async def all_have_it(count: int = n - 99) -> None:
                assert got[1] == got[3] == count
                assert (got[0], got[2]) == (count + 51, count + 1)

            await eventually(all_have_it)
    # Groups with an explicit start keep it in their cursors: at most two positions beside the common one.
    assert sum(count for _, count in reads) <= 3 * 30 + 10


async def test_slow_group_buffers_little(bus: Bus, conn: Any, reads: list[tuple[str, int]]) -> None:
    """A group that makes no progress stops reading, and a group beside it gets everything."""
    await create_log(bus)
    go_on = asyncio.Event()
    got: list[int] = []

    @bus.subscribe("t", group="slow", start=Start.BEGINNING)
    async def wait(n: int) -> None:
        await go_on.wait()

    async with running(bus):
        await are_shared(conn, 8)
        beginning = await cursor_of(conn, (await group_row(conn, "slow"))["subscription_id"])
        await publish_numbers(bus, range(20_000), at_once=1000)
        everything, _ = await read_all(conn, beginning, 500, lanes=tuple(range(8)))
        assert len(everything) == 20_000
        # As many reads as it would have needed, one after the other, have been made beside it.
        assert 0 < sum(count for _, count in reads) <= 4000
        group = bus.group("fast", "t", batch=1000)

        async def take(ns: list[int]) -> None:
            got.extend(ns)

        group.add_member("m", take)
        await group.start(Start.BEGINNING)
        await has(got, 20_000)
        go_on.set()
        await is_through(conn, "slow", within=20)


async def test_separate_lanes_are_joined_into_one_lane_set_again(bus: Bus, conn: Any) -> None:
    """After a takeover lanes are read one by one, and in one read once they are at the same position."""
    await create_log(bus)

    @bus.subscribe("t", group="g", start=Start.BEGINNING)
    async def handle(n: int) -> None: ...

    await publish_numbers(bus, range(10))
    lane_sets: list[int] = []
    original = Store.read_log

    async def noted(self: Store, topic: str, lanes: Sequence[int], *args: Any, **options: Any) -> Any:
        lane_sets.append(len(lanes))
        return await original(self, topic, lanes, *args, **options)

    async with running(bus):
        await is_through(conn)
    await conn.execute("update postbus.lane set deaths = 1, careful_until = 1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "read_log", noted)
        async with running(bus):
            await publish_numbers(bus, range(10, 20))

            async def all_in_one() -> None:
                await bus.send("t", 1)
                assert lane_sets[-3:] == [8, 8, 8]

            await eventually(all_in_one)
            await is_through(conn)
    assert 1 in lane_sets


async def test_woken_lane_set_reads_messages_published_before_the_wake_up(
    bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another lane set's read is no position to read up to, because it was taken before the wake-up."""
    monkeypatch.setattr("postbus._group.consumer.GroupConsumer.join_lane_sets", lambda _: None)
    await create_log(bus, lanes=2)
    keys = {await conn.fetchval("select postbus.lane_of($1, 2)", key): key for key in "abcdef"}
    got: list[int] = []

    polls: dict[int, float] = {}
    woken_within = TimedWaker.woken_within

    async def noted(self: TimedWaker, seconds: float) -> bool:
        polls[id(self)] = asyncio.get_running_loop().time() + seconds
        return await woken_within(self, seconds)

    async def no_poll_is_near() -> None:
        latest = sorted(polls.values())[-2:]
        assert len(latest) == 2
        assert min(latest) > asyncio.get_running_loop().time() + 1

    @bus.subscribe("t", group="g", start=Start.BEGINNING, poll=60)
    async def handle(n: int) -> None:
        got.append(n)

    async with running(bus):
        await is_through(conn)
    await conn.execute("update postbus.lane set deaths = 1, careful_until = 1")  # so that they are read separately
    monkeypatch.setattr(TimedWaker, "woken_within", noted)
    async with running(bus):
        for number, lane in enumerate((0, 1, 1, 0)):  # whichever lane set is woken first
            if number % 2 == 0:
                await eventually(no_poll_is_near)
            await conn.execute("select postbus.publish('t', to_jsonb($1::integer), $2)", number, keys[lane])
            await has(got, number + 1, within=0.5)


async def test_batches_keep_order_after_a_death(bus: Bus, conn: Any) -> None:
    """After the death of a process, batches with messages of the same key come one after the other."""
    await create_log(bus, lanes=1)
    got: list[int] = []

    @bus.subscribe("t", group="g", start=Start.BEGINNING, batch=5, concurrency=4)
    async def handle(messages: list[Message]) -> None:
        numbers = [int(one.payload) for one in messages]
        await asyncio.sleep(0.01 if numbers[0] % 2 else 0)  # the next batch would overtake it
        got.extend(numbers)

    async with running(bus):
        await is_through(conn)
    await publish_numbers(bus, range(200), keys=7, at_once=3)
    await conn.execute("update postbus.lane set deaths = 1, careful_until = null")
    async with running(bus):
        await is_through(conn, passed=200, dead=0, retrying=0)
    assert len(got) == 200
    assert in_order(got, 7)


_AT_REST = ("read_log", "lease_lanes", "deferred_of", "sweep_log", "sweep", "return_expired")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the database calls of this process, for idle work and for heartbeats."""
    count: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Awaitable[Any]]:
        original = getattr(Store, name)

        async def ask(*args: Any, **options: Any) -> Any:
            answer = await original(*args, **options)
            count[name] += 1
            return answer

        return ask

    for name in (*_AT_REST, "heartbeat", "group_heartbeat"):
        monkeypatch.setattr(Store, name, counted(name))
    return count


async def test_idle_process_writes_nothing(
    own_folder: Path, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose groups are idle uses transaction ids for heartbeats only, and stops at once."""
    look_often(monkeypatch)
    monkeypatch.setattr("postbus._group.redelivery._IDLE_POLL", 0.1)
    for name in ("SWEEP", "RETURN_EXPIRED"):
        monkeypatch.setattr(f"postbus._maintenance.sweeper.{name}", 0.1)
    next_xid = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    settings = {"autovacuum": "off"}
    with EmbeddedPostgres.start(own_folder / "pg", settings=settings) as server:
        async with Bus(server.dsn(), migrate=True) as bus, bus.transaction() as conn:
            await create_log(bus, lease="1 hour")
            for number in range(5):

                async def handle(n: int) -> None: ...

                bus.subscribe("t", group=f"g{number}", start=Start.BEGINNING, poll=0.1)(handle)
            async with running(bus) as run:
                await bus.send("t", 1)
                for number in range(5):
                    await is_through(conn, f"g{number}")

                async def have_all_looked(since: Counter[str]) -> None:
                    assert all(asked[name] >= since[name] + 5 for name in _AT_REST), asked - since

                async def only_heartbeats_write() -> None:
                    before, xid = Counter(asked), await conn.fetchval(next_xid)
                    await eventually(have_all_looked, before)
                    taken = await conn.fetchval(next_xid) - xid  # a heartbeat of each kind may not have returned yet
                    beats = sum((asked - before)[name] for name in ("heartbeat", "group_heartbeat"))
                    assert taken <= beats + 2, f"{taken} transaction ids for {beats} heartbeats"

                await eventually(only_heartbeats_write)
                began = asyncio.get_running_loop().time()
                bus.stop()
                await run
                assert asyncio.get_running_loop().time() - began < 1.5
