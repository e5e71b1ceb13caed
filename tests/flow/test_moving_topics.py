"""Topics that change while producers and consumers run: from QUEUE to PUB_SUB, and between kinds of tracking."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from typing import Any

import pytest

from postbus import Bus, Message, WrongSemantics
from support.eventually import eventually
from support.grouping import are_listed, create_log, is_through, look_often
from support.queue_sql import claim
from support.running import running

KEYS = 12


class Producer:
    """Sends numbers that rise within each key, until it is stopped: some alone, some in long transactions."""

    def __init__(self, bus: Bus, keys: range) -> None:
        self._bus = bus
        self._keys = keys
        self.sent: dict[int, int] = dict.fromkeys(keys, 0)
        self.stopped = False

    async def run(self) -> None:
        while not self.stopped:
            for key in self._keys:
                await self._bus.send("t", self._next(key), key=str(key))
            async with self._bus.transaction() as conn:
                for key in self._keys:
                    await self._bus.publish(conn, "t", self._next(key), key=str(key))
                    await asyncio.sleep(0.001)

    def _next(self, key: int) -> int:
        self.sent[key] += 1
        return self.sent[key]


def by_key(handled: list[tuple[str, int]]) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for key, n in handled:
        found[int(key)].append(n)
    return dict(found)


async def count(conn: Any, query: str) -> int:
    return int(await conn.fetchval(query))


def note_all(bus: Bus, handled: list[tuple[str, int]], **options: Any) -> None:
    @bus.subscribe("t", concurrency=4, **options)
    async def handle(message: Message) -> None:
        handled.append((str(message.key), int(message.payload)))


async def test_queue_becomes_a_log_under_load(
    bus: Bus, dsn: str, conn: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message is handled once in the order of its key, by the queue's consumers and then by the group in their
    place.

    Meanwhile a consumer vanishes with messages in hand, and a transaction that has published stays open. Another named
    group gets all messages of the log, in order as well.
    """
    look_often(monkeypatch)
    await bus.admin.create_topic("t", ordered=True, lease="3s")
    producers = [Producer(bus, range(start, start + KEYS // 3)) for start in range(0, KEYS, KEYS // 3)]
    legacy: list[tuple[str, int]] = []
    audit: list[tuple[str, int]] = []
    note_all(bus, legacy)
    async with running(bus), Bus.open(dsn) as groups:
        producing = [asyncio.create_task(producer.run()) for producer in producers]
        await eventually(at_least, legacy, 300)
        gone = await connect()
        await eventually(holds_some, gone)
        gone.terminate()
        slow = await connect()
        transaction = slow.transaction()
        await transaction.start()
        await bus.publish(slow, "t", 1, key="99")

        await bus.admin.move_topic("t", groups=["legacy", "audit"])
        note_all(groups, legacy, group="legacy")
        note_all(groups, audit, group="audit")
        before = len(legacy)
        async with running(groups):
            await eventually(in_log, conn, 500, within=20)
            moving = await bus.admin.continue_move("t")
            assert moving is None or moving.ended_at is None
            assert not audit, "nobody has begun while a transaction may still send to the queue"
            await bus.publish(slow, "t", 2, key="99")
            await transaction.commit()
            await eventually(at_least, audit, 500, within=20)
            for producer in producers:
                producer.stopped = True
            await asyncio.gather(*producing)
            await is_through(conn, "legacy", within=20)
            await is_through(conn, "audit", within=20)
    sent = {key: number for producer in producers for key, number in producer.sent.items()} | {99: 2}
    assert len(legacy) > before
    assert by_key(legacy) == {key: list(range(1, last + 1)) for key, last in sent.items()}
    logged = await conn.fetch("select key, array_agg(payload_json::text::int order by sequence, index) as numbers "
                              "from postbus.log group by key")  # fmt: skip
    assert by_key(audit) == {int(row["key"]): row["numbers"] for row in logged}
    assert await count(conn, "select count(*) from postbus.messages where state <> 'finished'") == 0


async def at_least(handled: list[Any], number: int) -> None:
    assert len(handled) >= number


async def holds_some(conn: Any) -> None:
    assert (await claim(conn, 3))["ids"]


async def in_log(conn: Any, number: int) -> None:
    assert await count(conn, "select coalesce(sum(count), 0) from postbus.segment") >= number


async def test_queue_consumers_log_once_that_the_topic_has_moved(
    bus: Bus, dsn: str, conn: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """They stay idle, and one that starts when the queue is empty is refused."""
    await bus.admin.create_topic("t")
    handled: list[tuple[str, int]] = []
    note_all(bus, handled)

    async def was_told() -> None:
        assert [record.message for record in caplog.records if "queue.moved" in record.message]

    with caplog.at_level(logging.WARNING, "postbus"):
        async with running(bus):
            await bus.send("t", 1)
            await eventually(at_least, handled, 1)
            await bus.admin.move_topic("t", groups=["g"])
            await eventually(was_told)
            for _ in range(3):
                await bus.send("t", 2)
    told = [record.message for record in caplog.records if "queue.moved" in record.message]
    assert len(told) == 1
    assert "group=" in told[0]
    assert len(handled) == 1
    async with Bus.open(dsn) as late:
        note_all(late, handled)
        with pytest.raises(WrongSemantics, match="belongs to no group"):
            await late.run()


async def test_queue_consumer_may_start_while_messages_are_left(bus: Bus, conn: Any) -> None:
    """The worker empties the queue, and then the group becomes ACTIVE."""
    await bus.admin.create_topic("t")
    await bus.send("t", 1, key="k")
    await bus.admin.move_topic("t", groups=["g"])
    handled: list[tuple[str, int]] = []
    note_all(bus, handled)

    async def went_on() -> None:
        await bus.admin.continue_move("t")
        assert (await bus.admin.group("t", "g")).state == "ACTIVE"

    async with running(bus):
        await eventually(went_on)
    assert handled == [("k", 1)]


async def test_first_group_handles_handed_over_messages(bus: Bus, conn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a consumer of the queue, the group handles all its messages in order, before those of the log."""
    look_often(monkeypatch)
    await bus.admin.create_topic("t", ordered=True)
    for n in range(1, 61):
        await bus.send("t", n, key=str(n % 3))
    await bus.admin.move_topic("t", groups=["g"], hand_over=True)
    for n in range(61, 121):
        await bus.send("t", n, key=str(n % 3))
    handled: list[tuple[str, int]] = []
    note_all(bus, handled, group="g")

    async def all_are_done() -> None:
        await bus.admin.continue_move("t")
        assert len(handled) >= 120

    async with running(bus):
        await eventually(all_are_done, within=20)
    assert by_key(handled) == {key: [n for n in range(1, 121) if n % 3 == key] for key in range(3)}


async def test_tracking_can_change_under_load(bus: Bus, conn: Any) -> None:
    """Tracking changes back and forth while messages come, and each message is handled once, in order."""
    await create_log(bus)
    producer = Producer(bus, range(4))
    handled: list[tuple[str, int]] = []
    note_all(bus, handled, group="g")
    async with running(bus):
        await are_listed(conn)
        producing = asyncio.create_task(producer.run())
        for round in range(1, 7):
            await eventually(at_least, handled, 50 * round)
            await bus.admin.set_topic("t", tracking=("OFFSET_WATERMARK", "REFERENCE_COUNTING")[round % 2])
        producer.stopped = True
        await producing
        await is_through(conn)
    assert by_key(handled) == {key: list(range(1, last + 1)) for key, last in producer.sent.items()}
    assert max(Counter(handled).values()) == 1
