"""bus.pop(wait=…): many pops wait at little cost, and are woken at once."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postbus import Bus, DatabaseUnavailable
from postbus._db.store import Store
from postbus._pull import shared_listener, waiters
from support.eventually import eventually
from support.fix_proxy import Proxy, proxy
from support.pulling import leased, lose, send_numbers, states_of
from support.running import tasks_are

__all__ = ["proxy"]  # a fixture

NEVER = 3600.0


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[Bus]:
    """Open a bus that counts as another process for wake-ups."""
    async with Bus.open(dsn) as opened:
        yield opened


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pop search without a reason."""
    monkeypatch.setattr(waiters, "_SOON", NEVER)
    monkeypatch.setattr(waiters, "_POLL", NEVER)


async def waiting(
    bus: Bus, count: int = 1, *, listening: int = 1, at_once: bool = False, **options: Any
) -> list[asyncio.Task[Any]]:
    """Start pops that wait and have found nothing, with so many listening connections."""

    async def pop() -> Any:
        return await bus.pop("t", **{"wait": 60, **options})

    tasks = []
    for _ in range(count):
        tasks.append(asyncio.create_task(pop()))
        if not at_once:
            await asyncio.sleep(0)
    await eventually(listen, bus, listening)
    await eventually(all_wait, bus, count)
    return tasks


async def all_wait(bus: Bus, count: int) -> None:
    assert bus._puller is not None
    queues = [pops for waiters in bus._puller._waiters.values() for pops in waiters._by_key.values()]
    assert sum(len(pops.turns) for pops in queues) == count
    assert not any(pops.polling for pops in queues)


async def listeners(bus: Bus) -> int:
    store = await bus.connect()
    rows = await store._rows(
        "select count(*) as n from pg_stat_activity where datname = current_database() and query ilike 'listen %'"
    )
    return int(rows[0]["n"])


async def listen(bus: Bus, count: int) -> None:
    assert await listeners(bus) == count


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_waiting_pop_returns_an_available_message_at_once(bus: Bus) -> None:
    """A pop searches before it waits."""
    await bus.send("t", 1)

    async with asyncio.timeout(10):
        popped = await bus.pop("t", wait=NEVER)

    assert popped.payloads == [1]


async def test_pop_returns_empty_when_its_wait_is_over(bus: Bus) -> None:
    """A pop waits as long as it says, and not longer."""
    began = time.monotonic()

    popped = await bus.pop("t", wait="300ms")

    assert not popped
    assert 0.3 <= time.monotonic() - began < 10


async def test_publishing_in_the_same_process_wakes_a_pop(bus: Bus, no_polling: None) -> None:
    """The notifier wakes it without any poll."""
    (task,) = await waiting(bus)

    await bus.send("t", 1)

    assert (await asyncio.wait_for(task, 10)).payloads == [1]


async def test_publishing_in_another_process_wakes_a_pop(bus: Bus, other: Bus, no_polling: None) -> None:
    """The wake-up comes through the database, without any poll."""
    (task,) = await waiting(bus)

    await other.send("t", 1)

    assert (await asyncio.wait_for(task, 10)).payloads == [1]


async def test_waking_takes_milliseconds(bus: Bus, other: Bus) -> None:
    """From the commit to the popped message takes a small part of the time between two polls."""
    took = []
    for number in range(20):
        (task,) = await waiting(bus)
        began = time.monotonic()
        await other.send("t", number)
        sent = time.monotonic()
        popped = await asyncio.wait_for(task, 10)
        took.append(time.monotonic() - sent)
        assert time.monotonic() - began < 10
        await popped.ack()

    assert statistics.median(took) < waiters._POLL / 10


async def test_message_without_a_wake_up_is_found_by_polling(bus: Bus, conn: Any) -> None:
    """Plain SQL in a topic without the option `notify` wakes nobody."""
    (task,) = await waiting(bus)

    await conn.execute("select postbus.publish('t', 'x'::text)")

    assert (await asyncio.wait_for(task, 10)).payloads == ["x"]


async def test_delayed_message_is_popped_when_due(bus: Bus, no_polling: None) -> None:
    """A waiting pop knows when the message is due."""
    (task,) = await waiting(bus)
    began = time.monotonic()

    await bus.send("t", 1, delay=0.5)

    assert (await asyncio.wait_for(task, 10)).payloads == [1]
    assert time.monotonic() - began >= 0.5


async def test_released_or_retried_message_wakes_a_pop(bus: Bus, other: Bus, no_polling: None) -> None:
    """This works within a process and from another process."""
    await bus.send("t", 1)
    popped = await bus.pop("t")
    (task,) = await waiting(other)
    await popped.release()
    popped = await asyncio.wait_for(task, 10)
    (task,) = await waiting(bus, listening=2)
    await popped.retry(delay=0.2)

    assert (await asyncio.wait_for(task, 10))[0].message.attempt == 2


async def test_expired_lease_wakes_a_pop(bus: Bus, conn: Any) -> None:
    """In a program that only pops, a waiting pop gets the message of an expired lease."""
    await bus.send("t", 1)
    first = await bus.pop("t")
    (task,) = await waiting(bus)

    await conn.execute("update postbus.lease set ends_at = clock_timestamp()")

    assert (await asyncio.wait_for(task, 10))[0].message.id == first[0].message.id


async def test_longest_waiting_pop_is_served_first(bus: Bus, no_polling: None) -> None:
    """Pops of one process get messages in the order in which they came."""
    tasks = await waiting(bus, 5)
    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", [0, 1, 2])

    popped = await asyncio.wait_for(asyncio.gather(*tasks[:3]), 10)

    assert [one.payloads for one in popped] == [[0], [1], [2]]
    await eventually(all_wait, bus, 2)
    await end(tasks)


async def test_thousand_waiting_pops_query_as_rarely_as_one(
    dsn: str, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share one listening connection and one poll, and a message wakes only the first of them."""
    calls: list[str] = []
    ask = Store.pop

    async def asked(store: Store, topic: str, **options: Any) -> Any:
        calls.append(topic)
        return await ask(store, topic, **options)

    monkeypatch.setattr(Store, "pop", asked)
    async with Bus.open(dsn) as bus:
        began = time.monotonic()
        tasks = await waiting(bus, 1000, at_once=True)
        joining = time.monotonic() - began
        connections = await conn.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        )
        joined = len(calls)
        began = time.monotonic()
        for number in range(10):
            await bus.send("t", number)
        done, _ = await asyncio.wait(tasks, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        await eventually(_are_done, tasks, 10)
        await eventually(all_wait, bus, 990)
        called = len(calls) - joined
        seconds = time.monotonic() - began
        assert done
        await end(tasks)

    assert connections <= 12
    assert joined <= 10 + 2 * joining
    # For each message one pop finds it and the next does not, nor does the one that our own wake-up reaches;
    # then they poll, soon at first. All together query as often as one would.
    assert called <= 6 * 10 + 2 * seconds


async def _are_done(tasks: list[asyncio.Task[Any]], count: int) -> None:
    assert sum(task.done() for task in tasks) == count


async def test_many_messages_go_to_many_waiting_pops(bus: Bus, no_polling: None) -> None:
    """One wake-up for many messages serves as many pops as there are messages."""
    tasks = await waiting(bus, 50)
    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", list(range(50)))

    popped = await asyncio.wait_for(asyncio.gather(*tasks), 20)

    assert sorted(one.payloads[0] for one in popped) == list(range(50))


async def test_listening_ends_when_no_pop_waits(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stays a while after the last pop, and is opened again when it is needed."""
    monkeypatch.setattr(shared_listener, "_LINGER", 0.05)
    await bus.pop("t")
    assert await listeners(bus) == 0

    for _ in range(2):
        tasks = await waiting(bus, 3)
        await end(tasks)
        await eventually(listen, bus, 0)


async def test_cancelled_waiting_pop_takes_no_message(bus: Bus, conn: Any, no_polling: None) -> None:
    """The message goes to the next pop in line, or stays in its queue."""
    first, second = await waiting(bus, 2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

    await bus.send("t", 1)
    popped = await asyncio.wait_for(second, 10)
    await bus.send("t", 2)

    assert popped.payloads == [1]
    assert await states_of(conn, "t") == {"leased": 1, "waiting": 1}


@pytest.mark.parametrize("wait", [0, 60])
async def test_pop_cancelled_during_its_query_releases_the_message(
    bus: Bus, conn: Any, connect: Any, wait: float
) -> None:
    """The attempt does not count, and the next pop gets the message."""
    blocker = await connect()
    await bus.send("t", 1)
    async with blocker.transaction():
        await blocker.execute("lock table postbus.lease in access exclusive mode")

        async def pop() -> Any:
            return await bus.pop("t", wait=wait)

        task = asyncio.create_task(pop())
        await eventually(_a_pop_waits_for, conn, blocker.get_server_pid())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    await tasks_are("postbus-give-back", 0)
    assert await states_of(conn, "t") == {"waiting": 1}
    assert (await bus.pop("t"))[0].message.attempt == 1


async def test_cancelled_pop_ends_after_the_release(bus: Bus, conn: Any, connect: Any) -> None:
    """A later pop finds the message that the cancelled one took in its last moment."""
    blocker = await connect()
    await bus.send("t", 1)
    async with blocker.transaction():
        await blocker.execute("lock table postbus.lease in access exclusive mode")
        task = asyncio.create_task(bus.pop("t").__aenter__())
        await eventually(_a_pop_waits_for, conn, blocker.get_server_pid())
        task.cancel()
        await asyncio.sleep(0.1)
        assert not task.done()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (await bus.pop("t")).payloads == [1]


async def _a_pop_waits_for(conn: Any, pid: int) -> None:
    assert await conn.fetchval(
        "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)) and query like '%.pop(%')",
        pid,
    )


async def test_closing_the_bus_ends_waiting_pops(dsn: str, conn: Any) -> None:
    """They return empty at once, and leave nothing leased."""
    bus = Bus(dsn)
    tasks = await waiting(bus, 3)

    await bus.close()

    assert [len(await asyncio.wait_for(task, 5)) for task in tasks] == [0, 0, 0]
    assert await leased(conn, "t") == 0


async def test_waiting_pop_survives_broken_connections(bus: Bus, conn: Any) -> None:
    """It goes on waiting while the database is away for a moment."""
    (task,) = await waiting(bus)
    await conn.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )

    await conn.execute("select postbus.publish('t', 'x'::text)")

    assert (await asyncio.wait_for(task, 20)).payloads == ["x"]


async def test_waiting_pop_raises_when_the_database_stays_away(proxy: Proxy) -> None:
    """When the wait is over without an answer, the result is an error and not an empty pop."""
    bus = Bus(proxy.dsn)
    (task,) = await waiting(bus, wait=3)
    await proxy.stop()

    with pytest.raises(DatabaseUnavailable):
        await asyncio.wait_for(task, 20)
    await bus.close()


async def test_two_programs_share_the_messages(bus: Bus, other: Bus, conn: Any) -> None:
    """Each message goes to one waiting pop, in whichever program."""
    tasks = [*await waiting(bus, 10), *await _waiting_beside(other, 10)]
    await send_numbers(bus, "t", 20)

    popped = await asyncio.wait_for(asyncio.gather(*tasks), 20)

    assert sorted(one.payloads[0] for one in popped) == list(range(20))
    await lose(conn, popped[0])


async def _waiting_beside(other: Bus, count: int) -> list[asyncio.Task[Any]]:
    async def pop() -> Any:
        return await other.pop("t", wait=60)

    tasks = [asyncio.create_task(pop()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_pops_begin_where_the_last_one_ended(bus: Bus, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside an old transaction finished rows stay, and the scan floor keeps pops from searching them."""
    store = await bus.connect()
    given: list[str | None] = []
    original = store.pop

    async def pop(topic: str, **options: Any) -> Any:
        given.append(options["floor"])
        return await original(topic, **options)

    monkeypatch.setattr(store, "pop", pop)
    old = await connect()
    await old.execute("begin")
    await old.execute("select pg_current_xact_id()")
    async with bus.transaction() as tx:
        await bus.publish_many(tx, "t", list(range(100)))

    for _ in range(10):
        await (await bus.pop("t", batch=10)).ack()
    late = await bus.pop("t")
    await old.execute("select postbus.publish('t', 'late'::text)")
    await old.execute("commit")

    assert given[0] is None
    assert all(floor is not None for floor in given[1:])
    assert not late
    assert (await bus.pop("t")).payloads == ["late"]


async def test_search_time_excludes_waiting_for_a_connection(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow network must not delay the next search from the beginning."""
    store = await bus.connect()
    lend = store._connections.lend

    async def late() -> Any:
        await asyncio.sleep(0.5)
        return await lend()

    monkeypatch.setattr(store._connections, "lend", late)

    claim = await store.claim("t", member="m", max_count=1)
    pop = await store.pop("t", group=None, member="m", max_count=1, lease=None, key=None, auto_ack=False, floor=None)

    assert 0 < claim.took < 0.4
    assert 0 < pop.took < 0.4


@pytest.mark.parametrize("seed", range(4))
async def test_no_wake_up_gets_lost(bus: Bus, no_polling: None, seed: int) -> None:
    """Whatever the order of pops and cancellations, no message stays while a pop waits."""
    chance = random.Random(seed)
    got: list[int] = []
    sent = 0
    tasks: set[asyncio.Task[None]] = set()

    async def pop() -> None:
        async with bus.pop("t", wait=chance.choice([0.001, 0.01, 60]), batch=chance.choice([1, 2])) as popped:
            got.extend(popped.payloads)

    async def nobody_waits_in_vain() -> None:
        tasks.difference_update([task for task in tasks if task.done()])
        assert not tasks or len(set(got)) == sent

    for _ in range(60):
        match chance.choice(["pop", "pop", "cancel", "send", "look"]):
            case "pop":
                tasks.add(asyncio.create_task(pop()))
            case "cancel" if tasks:
                chance.choice(sorted(tasks, key=lambda task: task.get_name())).cancel()
            case "send":
                await bus.send("t", sent)
                sent += 1
            case "look":
                await eventually(nobody_waits_in_vain)
        if chance.random() < 0.5:
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.005]))
    await eventually(nobody_waits_in_vain)
    await end(list(tasks))

    async with bus.pop("t", batch=100) as left:
        got.extend(left.payloads)
    assert set(got) <= set(range(sent))
