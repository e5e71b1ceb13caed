"""The wake-ups themselves: rings are gathered, heard by all, and missed by nobody for long."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from api.ear import Ear
from postbus import Bus, DatabaseUnavailable
from postbus._wakeup import waiters
from postbus._wakeup.listener import Listener
from postbus._wakeup.notifier import Notifier
from postbus._wakeup.waiters import TimedWaker, Wakers, topic_id
from support.eventually import eventually
from support.fix_database import Connect


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


class _Store:
    """Counts the rings that would go through the database."""

    def __init__(self) -> None:
        self.rung: list[list[int]] = []
        self.is_away = False

    async def notify(self, topics: list[int]) -> None:
        await asyncio.sleep(0)
        if self.is_away:
            raise DatabaseUnavailable("away")
        self.rung.append(topics)


@pytest.mark.parametrize("name", ["a", "orders", "A.b:c/d-e_f", "x" * 200])
async def test_python_and_sql_agree_on_ids(conn: Any, name: str) -> None:
    """A topic's id follows from its name, in Python as in SQL."""
    assert await conn.fetchval("select postbus.topic_id($1)", name) == topic_id(name)


async def test_many_rings_are_one_statement() -> None:
    """What is rung for while a ring is under way goes with the next one."""
    store: Any = _Store()
    notifier = Notifier(store, Wakers())
    for number in range(1000):
        notifier.notify(f"t{number % 3}")
    await notifier.close()

    assert store.rung == [sorted(topic_id(f"t{number}") for number in range(3))]


async def test_a_ring_reaches_the_own_process_at_once() -> None:
    """Consumers of the same process are woken without the database."""
    wakers = Wakers()
    waker, other = wakers.add("t"), wakers.add("other")
    store: Any = _Store()
    notifier = Notifier(store, wakers)

    notifier.notify("t", commit_notified=True)

    assert await waker.woken_within(0)
    assert not await other.woken_within(0)
    await notifier.close()
    assert store.rung == []


async def test_a_waker_that_rang_before_is_not_waited_for() -> None:
    """Until it is cleared; then it takes the time that was given, or the next ring."""
    waker = TimedWaker()
    waker.set()
    assert await waker.woken_within(60)
    assert await waker.woken_within(60)
    waker.clear()
    assert not await waker.woken_within(0.001)
    asyncio.get_running_loop().call_soon(waker.set)
    assert await waker.woken_within(60)


async def test_a_waker_outlives_that_its_waiter_is_cancelled() -> None:
    waker = TimedWaker()
    waiting = asyncio.create_task(waker.woken_within(60))
    await asyncio.sleep(0)
    waiting.cancel()
    waker.set()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await waker.woken_within(60)


async def test_a_notifier_outlives_a_database_that_is_away() -> None:
    """A ring that fails is forgotten, for consumers poll; the next one is tried."""
    store: Any = _Store()
    notifier = Notifier(store, Wakers())
    store.is_away = True
    notifier.notify("lost")
    await eventually(_has_ended, notifier)
    store.is_away = False
    notifier.notify("t")
    await notifier.close()

    assert store.rung == [[topic_id("t")]]


async def _has_ended(notifier: Notifier) -> None:
    assert notifier._ringing is None


async def test_a_notifier_that_is_closed_starts_nothing() -> None:
    """What is committed after the bus was closed, consumers find by polling."""
    store: Any = _Store()
    notifier = Notifier(store, Wakers())
    await notifier.close()
    notifier.notify("t")

    assert notifier._ringing is None
    assert store.rung == []


def test_wakers_of_consumers_that_are_gone_are_forgotten() -> None:
    """A process that runs consumers again and again does not gather their wakers."""
    wakers = Wakers()
    kept = wakers.add("t")
    for _ in range(10):
        wakers.add("t")
    gc.collect()

    assert [one() for one in wakers._events[topic_id("t")]] == [kept]


async def test_a_ring_is_for_all_topics_that_are_named(conn: Any, ear: Ear, topic: str) -> None:
    """One statement notifies for each of its topics."""
    names = [f"{topic}.{number}" for number in range(3)]
    for name in names:
        ear.listen(name)

    await conn.execute("select postbus.ring($1)", [topic_id(name) for name in names])

    for name in names:
        await ear.hears(name)


async def test_plain_sql_wakes_consumers(conn: Any, ear: Ear, topic: str) -> None:
    """The commit rings by itself: nobody else has to."""
    async with conn.transaction():
        await conn.execute("select postbus.publish($1, 'x'::text)", topic)
        await conn.execute("select 1")

    await ear.hears(topic)


async def test_one_commit_at_a_time_rings(connect: Connect, bus: Bus, ear: Ear, topic: str) -> None:
    """Commits that notify would wait for one another; so who comes second rings afterwards, and waits for nobody."""
    first, second = await connect(), await connect()
    other = f"{topic}.other"
    ear.listen(other)
    before = first.transaction()
    await before.start()
    await bus.publish(first, topic, 1)

    async with second.transaction():
        await bus.publish(second, other, 2)
        assert await second.fetchval("select current_setting('postbus.told')") == "0"

    await ear.hears(other)
    assert not await ear.has_heard(topic)
    await before.commit()
    await ear.hears(topic)


async def test_what_is_rolled_back_rings_for_nobody(connect: Connect, ear: Ear, topic: str) -> None:
    """Nor does it keep others from it: whose savepoint is undone, his turn is over."""
    first, second = await connect(), await connect()
    await first.execute("begin; savepoint s")
    await first.execute("select postbus.publish($1, 'x'::text)", topic)
    await first.execute("rollback to s")
    async with second.transaction():
        await second.execute("select postbus.publish('other', 'x'::text)")
        assert await second.fetchval("select current_setting('postbus.told')") == "1"
    await first.execute("commit")

    assert not await ear.has_heard(topic)


async def test_a_topic_may_want_every_commit_to_ring(connect: Connect, bus: Bus, ear: Ear, topic: str) -> None:
    """With the option notify, also beside others that do."""
    await bus.admin.create_topic(topic, notify=True)
    first, second = await connect(), await connect()
    async with first.transaction():
        await first.execute("select postbus.publish('other', 'x'::text)")
        async with second.transaction():
            await second.execute("select postbus.publish($1, 'x'::text)", topic)
            await second.execute("select postbus.publish('other', 'x'::text)")
            assert await second.fetchval("select current_setting('postbus.told')") == "0"

        await ear.hears(topic)


async def test_where_transactions_may_be_prepared_no_commit_rings(connect_alone: Connect) -> None:
    """PREPARE TRANSACTION refuses what has notified; so nobody does."""
    conn = await connect_alone()
    await conn.execute("begin; select postbus.publish('t', 'x'::text)")
    await conn.execute("prepare transaction 'ring'")
    await conn.execute("commit prepared 'ring'")

    assert await conn.fetchval("select count(*) from postbus.messages") == 1


async def test_whose_commit_rang_is_not_rung_for_again(
    bus: Bus, connect: Connect, ear: Ear, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent or published; while somebody else's transaction has its turn, it is."""
    store = await bus.connect()
    rung: list[Sequence[int]] = []
    original = store.notify

    async def notify(topics: Sequence[int]) -> None:
        rung.append(topics)
        await original(topics)

    monkeypatch.setattr(store, "ring", notify)
    await bus.send(topic, 1)
    await ear.hears(topic)
    await bus.send_many(topic, [1, 2])
    await ear.hears(topic)
    conn = await connect()
    async with conn.transaction():
        await bus.publish(conn, topic, 1)
    await ear.hears(topic)
    assert rung == []

    async with conn.transaction():
        await bus.publish(conn, "other", 1)
        await bus.send(topic, 1)
        await ear.hears(topic)
    assert rung == [[topic_id(topic)]]


async def test_a_listener_that_lost_its_connection_listens_again(
    dsn: str, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes a new connection, and rings for all topics, since it may have missed something."""
    monkeypatch.setattr(waiters, "_STILL_THERE", 0.01)
    wakers = Wakers()
    waker = wakers.add("t")
    stop = asyncio.Event()
    listening = asyncio.create_task(Listener(dsn, wakers).run(stop))
    assert await waker.woken_within(5)
    waker.clear()

    async def it_has_looked_whether_the_server_is_there() -> int:
        pid = await conn.fetchval(
            "select pid from pg_stat_activity where datname = current_database() and query = 'select 1' "
            "and pid <> pg_backend_pid()"
        )
        assert pid is not None
        return int(pid)

    pid = await eventually(it_has_looked_whether_the_server_is_there)
    await conn.execute("select pg_terminate_backend($1, 5000)", pid)

    assert await waker.woken_within(5)
    stop.set()
    await listening


async def test_what_is_not_an_id_is_not_heard(conn: Any, ear: Ear, topic: str) -> None:
    """Anybody may notify on the channel: what is not ours is passed over, and harms nobody."""
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    for payload in ("", "text", "1.5", "--1", "5-5", "²", "9" * 30):
        await conn.execute("select pg_notify('postbus', $1)", payload)

    assert not await ear.has_heard(topic)
    assert errors == []
