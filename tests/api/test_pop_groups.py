"""bus.pop() for groups: a PUB_SUB topic, popped in order per key."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from postbus import Bus, GroupNotFound, Heartbeat, LeaseLost, Start, WrongSemantics
from support.eventually import eventually
from support.grouping import create_log, publish_numbers


@pytest.fixture
def dsn(module_dsn: str) -> str:
    return module_dsn


@pytest.fixture
async def log(bus: Bus, topic: str) -> str:
    """Create a PUB_SUB topic with the groups g and h."""
    await create_log(bus, topic, lease="30s")
    store = await bus.connect()
    for group in ("g", "h"):
        await store.subscribe(topic, group, Start.NOW, "block")
    return topic


async def pending(conn: Any, topic: str, group: str = "g") -> int:
    """Return how many messages a group has before it or in hand."""
    count = await conn.fetchval("select pending from postbus.groups where topic = $1 and group_name = $2", topic, group)
    return int(count)


async def test_each_group_pops_each_message(bus: Bus, conn: Any, log: str) -> None:
    """A message that one group has acknowledged is still there for another."""
    await publish_numbers(bus, range(5), log)

    async with bus.pop(log, group="g", batch=10) as first:
        assert first.payloads == [0, 1, 2, 3, 4]
    async with bus.pop(log, group="h", batch=3) as second:
        assert second.payloads == [0, 1, 2]

    assert (await pending(conn, log, "g"), await pending(conn, log, "h")) == (0, 2)


async def test_waiting_pop_is_woken_by_publishing(bus: Bus, log: str) -> None:
    """A waiting group is woken, and so is a pop that waits for one key."""
    waiting = asyncio.gather(_pop(bus, log, group="g"), _pop(bus, log, group="h", key="k1"))
    await asyncio.sleep(0)
    await publish_numbers(bus, [0, 1], log, keys=2)

    of_g, of_h = await asyncio.wait_for(waiting, 10)

    assert (of_g.payloads, of_h.payloads) == ([0], [1])


async def _pop(bus: Bus, topic: str, **options: Any) -> Any:
    return await bus.pop(topic, wait=30, **options)


async def test_key_is_in_one_hand_at_a_time(bus: Bus, log: str) -> None:
    """The next message of a key wakes a waiting pop when the one before is settled."""
    await publish_numbers(bus, [0, 1], log, keys=1)
    first = await bus.pop(log, group="g")
    assert not await bus.pop(log, group="g")
    waiting = asyncio.create_task(_pop(bus, log, group="g"))
    await asyncio.sleep(0)

    await first.ack()

    assert (await asyncio.wait_for(waiting, 10)).payloads == [1]


async def test_pop_with_a_key_gets_only_its_messages(bus: Bus, log: str) -> None:
    """Other messages stay for other pops."""
    await publish_numbers(bus, range(6), log, keys=2)

    async with bus.pop(log, group="g", batch=10, key="k1") as popped:
        assert popped.payloads == [1, 3, 5]
    async with bus.pop(log, group="g", batch=10) as popped:
        assert popped.payloads == [0, 2, 4]


async def test_retried_message_takes_its_key_along(bus: Bus, conn: Any, log: str) -> None:
    """Messages of its key behind it are closed and come again after it; others are acknowledged."""
    await publish_numbers(bus, range(6), log, keys=2)

    async with bus.pop(log, group="g", batch=6) as popped:
        by_number = {one.payload: one for one in popped}
        await by_number[0].ack()
        await by_number[2].retry(delay=0)
        assert sorted(number for number, one in by_number.items() if one.is_open) == [1, 3, 5]
        with pytest.raises(LeaseLost):
            await by_number[4].ack()

    async with bus.pop(log, group="g", batch=6) as again:
        assert [(one.payload, one.message.attempt) for one in again] == [(2, 2), (4, 1)]
    assert await pending(conn, log) == 0


async def test_messages_behind_a_failure_can_be_acked_with_on_failure_pass(bus: Bus, conn: Any, topic: str) -> None:
    """They stay in hand, and only unacknowledged ones are released."""
    await create_log(bus, topic)
    await (await bus.connect()).subscribe(topic, "g", Start.NOW, "pass")
    await publish_numbers(bus, range(3), topic, keys=1)

    async with bus.pop(topic, group="g", batch=3) as popped:
        await popped[0].retry(delay=timedelta(minutes=1))
        await popped[1].ack()

    rows = await conn.fetch(
        "select payload, attempts, token from postbus.deferred r "
        "join postbus.subscription s on s.id = r.subscription_id where s.topic_id = postbus.topic_id($1) order by r.id",
        topic,
    )
    assert [tuple(row) for row in rows] == [(b"0", 1, None), (b"2", 0, None)]


async def test_error_returns_all_messages_in_order(bus: Bus, conn: Any, log: str) -> None:
    """Leaving the block by an exception counts an attempt of the first open message."""
    await bus.admin.set_topic(log, retry_initial="1ms", retry_max="1ms")
    await publish_numbers(bus, range(4), log, keys=1)

    with pytest.raises(ZeroDivisionError):
        async with bus.pop(log, group="g", batch=4) as popped:
            await popped[0].ack()
            raise ZeroDivisionError

    async with bus.pop(log, group="g", batch=4, wait=10) as again:
        assert again.payloads == [1, 2, 3]
        assert again[0].message.attempt == 2


async def test_auto_ack_works_for_a_group(bus: Bus, conn: Any, log: str) -> None:
    """Each message comes at most once."""
    await publish_numbers(bus, range(3), log)

    popped = await bus.pop(log, group="g", batch=10, auto_ack=True)

    assert popped.payloads == [0, 1, 2]
    assert await pending(conn, log) == 0


async def test_group_leases_can_be_extended_and_lost(bus: Bus, conn: Any, log: str) -> None:
    """They behave like leases of queues."""
    await publish_numbers(bus, range(2), log)
    first = await bus.pop(log, group="g", lease=5)
    await first.extend("1h")
    assert first[0].remaining > timedelta(minutes=59)
    ends = "select due_at - clock_timestamp() from postbus.deferred where token = $1"
    assert await conn.fetchval(ends, first[0].token) > timedelta(minutes=59)

    await conn.execute("update postbus.deferred set due_at = clock_timestamp() where token = $1", first[0].token)
    again = []
    for _ in range(2):  # either may have ended the program that had both: each comes alone
        async with bus.pop(log, group="g", batch=2) as popped:
            again += popped.payloads

    assert sorted(again) == [0, 1]
    for settle in (first.extend, first[0].ack, first[0].extend):
        with pytest.raises(LeaseLost):
            await settle()


async def test_pop_for_a_cancelled_group_is_refused(bus: Bus, log: str) -> None:
    """The refusal comes at once, also for a waiting pop; a group on a queue is refused too."""
    await bus.pop(log, group="g")
    await bus.admin.cancel_group(log, "g")
    for wait in (0, 30):
        with pytest.raises(GroupNotFound):
            await bus.pop(log, group="g", wait=wait)
    with pytest.raises(WrongSemantics):
        await bus.pop("a.queue", group="g")


async def test_message_freed_by_a_long_transaction_is_found_soon(bus: Bus, conn: Any, log: str) -> None:
    """It became due long before that transaction's commit, below the scan floor of other pops."""
    await publish_numbers(bus, range(2), log, keys=1)
    first = await bus.pop(log, group="g")
    assert not await bus.pop(log, group="g")
    await first.ack()
    await conn.execute("update postbus.deferred set due_at = due_at - interval '1 minute' where attempts = 0")

    async def is_found() -> None:
        assert [one.payload for one in await bus.pop(log, group="g")] == [1]

    await eventually(is_found)


async def test_ack_of_all_reports_messages_popped_elsewhere(bus: Bus, conn: Any, log: str) -> None:
    """Of two messages with an expired lease one was popped again: it is lost, and the other one is acknowledged."""
    await publish_numbers(bus, range(2), log, keys=2)
    first = await bus.pop(log, group="g", batch=2)
    await conn.execute("update postbus.deferred set due_at = clock_timestamp() where token = $1", first[0].token)
    second = await bus.pop(log, group="g")

    with pytest.raises(LeaseLost) as lost:
        await first.ack()

    assert lost.value.ids == [second[0].message.id]
    await second.ack()
    assert await pending(conn, log) == 0


async def die(conn: Any) -> None:
    """Make all groups DEAD."""
    await conn.execute("update postbus.subscription set state = 'DEAD'")


async def test_pop_without_waiting_revives_a_dead_group(bus: Bus, conn: Any, log: str) -> None:
    """A job too rare for heartbeats gets messages by each of its pops, of all keys or of one."""
    await publish_numbers(bus, range(4), log, keys=2)
    await die(conn)
    assert (await bus.pop(log, group="g", key="k1")).payloads == [1]
    await die(conn)
    assert (await bus.pop(log, group="g", batch=9)).payloads == [0, 2]


async def test_pop_of_a_pattern_revives_a_dead_group(bus: Bus, conn: Any, topic: str) -> None:
    """This works for a scope of several topics."""
    for name in (f"{topic}.a", f"{topic}.b"):
        await create_log(bus, name)
    assert not await bus.pop(f"{topic}.*", group="g")
    await bus.send(f"{topic}.b", 1)
    await die(conn)

    assert (await bus.pop(f"{topic}.*", group="g")).payloads == [1]


async def test_kept_lease_keeps_a_group_alive(bus: Bus, conn: Any, log: str) -> None:
    """A consumer that works for long with `keep` is not taken for DEAD."""
    await publish_numbers(bus, [0], log)
    async with bus.pop(log, group="g", lease=1, keep=True):
        await conn.execute("update postbus.subscription set seen_at = clock_timestamp() - interval '3 minutes'")

        async def is_seen() -> None:
            row = await conn.fetchrow("select * from postbus.groups where topic = $1 and group_name = 'g'", log)
            assert row["heartbeat_age"] < 60

        await eventually(is_seen)


async def test_heartbeat_revives_a_group(bus: Bus, conn: Any, log: str) -> None:
    """A consumer that will not pop for a while sends a heartbeat, and learns how many messages it missed."""
    await publish_numbers(bus, range(3), log)
    await die(conn)

    assert await bus.heartbeat(log, group="g") == [Heartbeat(log, "ACTIVE", missed=3, skipped=0)]
    assert await bus.heartbeat(log, group="g") == [Heartbeat(log, "ACTIVE")]
    with pytest.raises(GroupNotFound):
        await bus.heartbeat(log, group="stranger")
