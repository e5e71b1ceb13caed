"""The history of a message: where it is, who has it, and which groups have settled it, with the reasons."""

from __future__ import annotations

from typing import Any

import pytest

from postbus import Bus, DeadLetter, MessageNotFound, Retry, Start, TopicNotFound
from postbus.results import DeliveryInfo, MessageStory, QueueMessage
from support.eventually import eventually
from support.grouping import SOON, create_log
from support.log_sql import rotate
from support.running import running


def by_group(story: MessageStory) -> dict[str, DeliveryInfo]:
    return {one.group_name: one for one in story.deliveries}


async def story_of(bus: Bus, message_id: int) -> MessageStory:
    """The story of a message of the topic t."""
    found = await bus.admin.message("t", message_id)
    assert isinstance(found, MessageStory)
    return found


async def queued(bus: Bus, message_id: int) -> QueueMessage:
    """A message of the topic jobs."""
    found = await bus.admin.message("jobs", message_id)
    assert isinstance(found, QueueMessage)
    return found


async def test_message_of_the_log_shows_its_delivery_to_each_group(bus: Bus, conn: Any) -> None:
    """It shows the required groups and, for each, the worker, the time, the attempts and the error."""
    await create_log(bus, lanes=1)
    store = await bus.connect()
    for group in ("done", "failing", "giving-up", "later", "nobody"):
        if group != "later":
            await store.subscribe("t", group, Start.NOW, "block")

    @bus.subscribe("t", group="done")
    async def handle(n: int) -> None: ...

    @bus.subscribe("t", group="failing", retry=SOON)
    async def fail(n: int) -> Retry:
        return Retry(delay=3600, error="not now")

    @bus.subscribe("t", group="giving-up")
    async def give_up(n: int) -> DeadLetter:
        return DeadLetter(reason="never", error="ValueError: no")

    id = await bus.send("t", 1, key="k", headers={"tenant": "acme"})
    await store.subscribe("t", "later", Start.NOW, "block")

    async def is_dealt_with() -> MessageStory:
        story = await story_of(bus, id)
        statuses = {name: one.status for name, one in by_group(story).items()}
        assert statuses == {
            "done": "COMPLETED",
            "failing": "RETRYING",
            "giving-up": "DEAD",
            "later": "SKIPPED",
            "nobody": "PENDING",
        }
        return story

    async with running(bus):
        story = await eventually(is_dealt_with)
        [worker] = await bus.admin.workers()

    assert (story.id, story.key, story.payload, story.topic) == (id, "k", b"1", "t")
    assert (story.status, story.completed) == ("PROCESSING", ["done"])
    assert story.required == ["done", "failing", "giving-up", "nobody"]
    groups = by_group(story)
    assert (groups["done"].worker, groups["done"].attempts) == (worker.name, 1)
    assert groups["done"].settled_at is not None
    assert groups["done"].settled_at >= story.published_at
    assert (groups["failing"].attempts, groups["failing"].last_error) == (1, "not now")
    assert (groups["giving-up"].attempts, groups["giving-up"].last_error) == (1, "ValueError: no")
    assert (groups["nobody"].holder, groups["nobody"].settled_at) == (None, None)
    assert not groups["later"].required


async def test_message_dropped_from_the_log_is_described_by_its_copies(bus: Bus, conn: Any) -> None:
    """Groups that retry it, or have given it up, keep copies with the history."""
    await create_log(bus, lanes=1)
    store = await bus.connect()
    for group in ("failing", "giving-up"):
        await store.subscribe("t", group, Start.NOW, "block")

    @bus.subscribe("t", group="failing")
    async def fail(n: int) -> Retry:
        return Retry(delay=3600, error="not now")

    @bus.subscribe("t", group="giving-up")
    async def give_up(n: int) -> DeadLetter:
        return DeadLetter(reason="never")

    id = await bus.send("t", 1, key="k")
    async with running(bus):
        await eventually(has_one, bus, "failing", "retrying")
        await eventually(has_one, bus, "giving-up", "dead")
    retained = await story_of(bus, id)
    await conn.execute("delete from postbus.segment")

    story = await story_of(bus, id)

    assert (retained.retained, story.retained) == (True, False)
    assert by_group(retained)["giving-up"].last_error == "never"
    for name in ("id", "key", "payload", "published_at", "status", "required", "completed"):
        assert getattr(story, name) == getattr(retained, name)
    assert {one.group_name: (one.status, one.attempts, one.last_error) for one in story.deliveries} == {
        "failing": ("RETRYING", 1, "not now"),
        "giving-up": ("DEAD", 1, "never"),
    }
    await bus.admin.purge_dead_letters("t")
    assert list(by_group(await story_of(bus, id))) == ["failing"]
    await bus.admin.cancel_group("t", "failing")
    with pytest.raises(MessageNotFound):
        await bus.admin.message("t", id)


async def has_one(bus: Bus, group: str, count: str) -> None:
    assert getattr(await bus.admin.group("t", group), count) == 1


async def test_unsettled_message_names_the_reader_of_its_lane(bus: Bus) -> None:
    """The `holder` of a delivery is the process that reads the lane."""
    await create_log(bus, lanes=1)
    store = await bus.connect()
    subscription = await store.subscribe("t", "g", Start.NOW, "block")
    id = await bus.send("t", 1)
    await store.heartbeat("reader", "host", 1, [])
    await store.lease_lanes("reader", [subscription.id], [])
    assert by_group(await story_of(bus, id))["g"].holder == "reader"


async def test_each_message_of_many_is_found(bus: Bus, conn: Any) -> None:
    """Messages are found within segments, over several partitions, beside other topics."""
    await create_log(bus)
    await create_log(bus, "other")
    storage = await conn.fetchval("select storage_id from postbus.topic where name = 't'")
    ids: list[int] = []
    for partition in range(2):
        for topic in ("t", "other"):
            async with bus.transaction() as tx:
                found = await bus.publish_many(tx, topic, [partition * 3 + n for n in range(3)])
            ids += found if topic == "t" else []
        await rotate(conn, storage)
    assert [(await bus.admin.message("t", id)).payload for id in ids] == [str(n).encode() for n in range(6)]
    with pytest.raises(MessageNotFound):
        await bus.admin.message("other", ids[0])


async def test_message_of_a_queue_shows_its_state(bus: Bus, conn: Any) -> None:
    """It is waiting, leased with its member or retrying with its error, and finally gone."""
    id = await bus.send("jobs", 1, key="k")
    assert (await queued(bus, id)).state == "waiting"
    claimed = await conn.fetchrow("select * from postbus.claim('jobs', 'worker-1', 1)")
    story = await queued(bus, id)
    assert (story.state, story.member, story.attempts) == ("leased", "worker-1", 1)
    await conn.execute("select postbus.retry($1, $2, error => 'not now')", claimed["token"], [id])
    story = await queued(bus, id)
    assert (story.state, story.last_error) == ("retrying", "not now")
    await bus.admin.purge_topic("jobs")
    with pytest.raises(MessageNotFound) as gone:
        await bus.admin.message("jobs", id)
    assert "postbus tail jobs --once" in gone.value.remedy


async def test_missing_message_is_not_found(bus: Bus) -> None:
    """A missing topic has another error class."""
    await create_log(bus)
    for topic, kind in (("t", MessageNotFound), ("nowhere", TopicNotFound)):
        with pytest.raises(kind):
            await bus.admin.message(topic, 4711)
