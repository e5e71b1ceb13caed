"""The wake-ups themselves: they are gathered, reach every consumer, and a missed one is made up for by polling."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from api.ear import Ear
from postbus import Bus, DatabaseUnavailable
from postbus._wakeup import listener
from postbus._wakeup.listener import Listener
from postbus._wakeup.notifier import Notifier
from postbus._wakeup.waiters import TimedWaker, Wakers, topic_id
from support.eventually import eventually
from support.fix_database import Connect


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


class _Store:
    """Counts the wake-ups that would go through the database."""

    def __init__(self) -> None:
        self.rung: list[list[int]] = []
        self.is_away = False

    async def notify(self, topics: list[int]) -> None:
        await asyncio.sleep(0)
        if self.is_away:
            raise DatabaseUnavailable("away")
        self.rung.append(topics)


@pytest.mark.parametrize("name", ["a", "orders", "A.b:c/d-e_f", "x" * 200])
async def test_python_and_sql_agree_on_topic_ids(conn: Any, name: str) -> None:
    """A topic's id follows from its name, in Python and in SQL."""
    assert await conn.fetchval("select postbus.topic_id($1)", name) == topic_id(name)


async def test_many_wake_ups_are_one_statement() -> None:
    """Topics notified while a statement is under way go with the next one."""
    store: Any = _Store()
    notifier = Notifier(store, Wakers())
    for number in range(1000):
        notifier.notify(f"t{number % 3}")
    await notifier.close()

    assert store.rung == [sorted(topic_id(f"t{number}") for number in range(3))]


async def test_wake_up_reaches_the_own_process_at_once() -> None:
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


async def test_waker_that_was_set_before_is_not_waited_for() -> None:
    """Once cleared, it takes the given time or the next wake-up."""
    waker = TimedWaker()
    waker.set()
    assert await waker.woken_within(60)
    assert await waker.woken_within(60)
    waker.clear()
    assert not await waker.woken_within(0.001)
    asyncio.get_running_loop().call_soon(waker.set)
    assert await waker.woken_within(60)


async def test_waker_survives_the_cancellation_of_its_waiter() -> None:
    """A wake-up in the moment of the cancellation is not lost."""
    waker = TimedWaker()
    waiting = asyncio.create_task(waker.woken_within(60))
    await asyncio.sleep(0)
    waiting.cancel()
    waker.set()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await waker.woken_within(60)


async def test_notifier_survives_an_unreachable_database() -> None:
    """A failed notification is dropped, because consumers poll, and the next one is tried."""
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
    assert notifier._notifying is None


async def test_closed_notifier_starts_nothing() -> None:
    """Consumers find later commits by polling."""
    store: Any = _Store()
    notifier = Notifier(store, Wakers())
    await notifier.close()
    notifier.notify("t")

    assert notifier._notifying is None
    assert store.rung == []


def test_wakers_of_vanished_consumers_are_forgotten() -> None:
    """A process that runs consumers repeatedly does not gather their wakers."""
    wakers = Wakers()
    kept = wakers.add("t")
    for _ in range(10):
        wakers.add("t")
    gc.collect()

    assert [one() for one in wakers._events[topic_id("t")]] == [kept]


async def test_one_statement_notifies_all_named_topics(conn: Any, ear: Ear, topic: str) -> None:
    """Each of the topics gets its own notification."""
    names = [f"{topic}.{number}" for number in range(3)]
    for name in names:
        ear.listen(name)

    await conn.execute("select postbus.wake($1)", [topic_id(name) for name in names])

    for name in names:
        await ear.hears(name)


async def test_plain_sql_wakes_consumers(conn: Any, ear: Ear, topic: str) -> None:
    """The commit itself notifies."""
    async with conn.transaction():
        await conn.execute("select postbus.publish($1, 'x'::text)", topic)
        await conn.execute("select 1")

    await ear.hears(topic)


async def test_only_one_commit_at_a_time_notifies(connect: Connect, bus: Bus, ear: Ear, topic: str) -> None:
    """Commits that notify would wait for each other, so the second one is notified afterwards and waits for nobody."""
    first, second = await connect(), await connect()
    other = f"{topic}.other"
    ear.listen(other)
    before = first.transaction()
    await before.start()
    await bus.publish(first, topic, 1)

    async with second.transaction():
        await bus.publish(second, other, 2)
        assert await second.fetchval("select current_setting('postbus.woken')") == "0"

    await ear.hears(other)
    assert not await ear.has_heard(topic)
    await before.commit()
    await ear.hears(topic)


async def test_rolled_back_publish_notifies_nobody(connect: Connect, ear: Ear, topic: str) -> None:
    """A savepoint that is undone gives up its turn, so that others can notify."""
    first, second = await connect(), await connect()
    await first.execute("begin; savepoint s")
    await first.execute("select postbus.publish($1, 'x'::text)", topic)
    await first.execute("rollback to s")
    async with second.transaction():
        await second.execute("select postbus.publish('other', 'x'::text)")
        assert await second.fetchval("select current_setting('postbus.woken')") == "1"
    await first.execute("commit")

    assert not await ear.has_heard(topic)


async def test_topic_option_notify_makes_every_commit_notify(connect: Connect, bus: Bus, ear: Ear, topic: str) -> None:
    """With the option it notifies beside other commits that do."""
    await bus.admin.create_topic(topic, notify=True)
    first, second = await connect(), await connect()
    async with first.transaction():
        await first.execute("select postbus.publish('other', 'x'::text)")
        async with second.transaction():
            await second.execute("select postbus.publish($1, 'x'::text)", topic)
            await second.execute("select postbus.publish('other', 'x'::text)")
            assert await second.fetchval("select current_setting('postbus.woken')") == "0"

        await ear.hears(topic)


async def test_no_commit_notifies_where_transactions_may_be_prepared(connect_alone: Connect) -> None:
    """PREPARE TRANSACTION refuses a transaction that has notified."""
    conn = await connect_alone()
    await conn.execute("begin; select postbus.publish('t', 'x'::text)")
    await conn.execute("prepare transaction 'ring'")
    await conn.execute("commit prepared 'ring'")

    assert await conn.fetchval("select count(*) from postbus.messages") == 1


async def test_commit_that_notified_is_not_notified_again(
    bus: Bus, connect: Connect, ear: Ear, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for `send` and `publish`, unless another transaction has the turn."""
    store = await bus.connect()
    rung: list[Sequence[int]] = []
    original = store.notify

    async def notify(topics: Sequence[int]) -> None:
        rung.append(topics)
        await original(topics)

    monkeypatch.setattr(store, "notify", notify)
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


async def test_listener_reconnects_after_losing_its_connection(
    dsn: str, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes all topics afterwards, because it may have missed something."""
    monkeypatch.setattr(listener, "_CHECK_EVERY", 0.01)
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


async def test_foreign_notifications_are_ignored(conn: Any, ear: Ear, topic: str) -> None:
    """Anybody may notify on the channel, and a payload that is no topic id does no harm."""
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    for payload in ("", "text", "1.5", "--1", "5-5", "²", "9" * 30):
        await conn.execute("select pg_notify('postbus', $1)", payload)

    assert not await ear.has_heard(topic)
    assert errors == []
