"""Managing groups: what operators query and do, as methods of `bus.admin`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postbus import Bus, Start
from postbus.errors import (
    GroupNotFound,
    InvalidGroup,
    InvalidInput,
    InvalidOption,
    MessageNotFound,
    PostbusError,
    TopicNotEmpty,
    TopicNotFound,
    WrongSemantics,
)
from support.eventually import eventually
from support.grouping import bury
from support.running import running


async def subscribed(bus: Bus, topic: str = "events", *groups: str, start: Start = Start.BEGINNING) -> None:
    """Create a PUB_SUB topic with groups that nobody works for."""
    await bus.admin.create_topic(topic, semantics="PUB_SUB", lanes=2)
    store = await bus.connect()
    for group in groups or ("mail",):
        await store.subscribe(topic, group, start, "block")


async def lag(bus: Bus, group: str = "mail", topic: str = "events") -> int:
    """Return what a group has before it, counted exactly."""
    await (await bus.connect()).sweep_log()
    return (await bus.admin.group(topic, group)).lag or 0


async def test_groups_can_be_listed_by_topic_and_name(bus: Bus) -> None:
    """All groups, those of one topic, or those of one name are listed with their lag."""
    await subscribed(bus, "events", "mail", "stock")
    await subscribed(bus, "other", "mail")
    await bus.send("events", 1)

    every, of_topic, of_name = (
        await bus.admin.groups(),
        await bus.admin.groups("events"),
        await bus.admin.groups(group="mail"),
    )

    assert [(one.topic, one.group_name) for one in every] == [
        ("events", "mail"),
        ("events", "stock"),
        ("other", "mail"),
    ]
    assert [(one.group_name, one.state, one.lag, one.lanes) for one in of_topic] == [
        ("mail", "ACTIVE", 1, 2),
        ("stock", "ACTIVE", 1, 2),
    ]
    assert [one.topic for one in of_name] == ["events", "other"]


async def test_one_group_can_be_queried(bus: Bus) -> None:
    """A group shows its start and its options."""
    await subscribed(bus, start=Start.from_message(1024))

    group = await bus.admin.group("events", "mail")

    assert (group.start, group.start_id, group.on_failure) == ("FROM_MESSAGE_ID", 1024, "block")


async def test_members_counters_outlive_their_process(bus: Bus) -> None:
    """The counts of each member remain when its process has ended."""
    await subscribed(bus)
    seen: list[int] = []
    group = bus.group("mail", "events")
    group.add_member("odd", lambda payload: seen.append(payload), filter=lambda message: message.payload == b"1")
    group.add_member("even", lambda payload: seen.append(payload), filter=lambda message: message.payload != b"1")
    await group.start()
    for number in (1, 2, 2):
        await bus.send("events", number)

    async def all_are_seen() -> None:
        assert len(seen) == 3

    async with running(bus):
        await eventually(all_are_seen)

    members = await bus.admin.members("events", "mail")
    assert {one.name: one.processed for one in members} == {"even": 2, "odd": 1}


async def test_group_can_be_paused_resumed_and_cancelled(bus: Bus) -> None:
    """A paused group keeps its position; a cancelled one is listed only on request."""
    await subscribed(bus)
    await bus.admin.pause_group("events", "mail")
    paused = await bus.admin.group("events", "mail")
    await bus.send("events", 1)
    await bus.admin.resume_group("events", "mail")
    resumed = await bus.admin.group("events", "mail")

    await bus.admin.cancel_group("events", "mail")

    assert (paused.state, resumed.state, resumed.lag) == ("PAUSED", "ACTIVE", 1)
    assert await bus.admin.groups() == []
    assert [one.state for one in await bus.admin.groups(cancelled=True)] == ["CANCELLED"]
    with pytest.raises(GroupNotFound, match="group 'mail' has no subscription"):
        await bus.admin.group("events", "mail")


async def test_seek_moves_a_group_to_any_start(bus: Bus) -> None:
    """The group continues at the given start; a dry run only counts."""
    await subscribed(bus)
    ids = [await bus.send("events", number) for number in range(3)]
    between = (await bus.admin.log("events"))[1].published_at
    places: list[tuple[Any, int]] = [
        (Start.NOW, 0),
        ("FROM_BEGINNING", 3),
        (ids[1], 2),
        (between, 2),
        (datetime.now(UTC) + timedelta(days=1), 0),
        (Start.BEGINNING, 3),
    ]
    for place, count in places:
        before = await lag(bus)

        would = await bus.admin.seek("events", "mail", place, dry_run=True)
        unchanged = await lag(bus)
        did = await bus.admin.seek("events", "mail", place)

        assert (would, did, unchanged) == (count, count, before)
        assert await lag(bus) == count


async def test_group_moved_back_gets_its_messages_again(bus: Bus) -> None:
    """This works while the group is at work."""
    await subscribed(bus)
    seen: list[int] = []

    @bus.subscribe("events", group="mail", start=Start.BEGINNING)
    async def note(number: int) -> None:
        seen.append(number)

    async def has_seen(*numbers: int) -> None:
        assert seen == list(numbers)

    for number in (1, 2):
        await bus.send("events", number, key="k")
    async with running(bus):
        await eventually(has_seen, 1, 2)
        assert await bus.admin.seek("events", "mail", Start.BEGINNING) == 2
        await eventually(has_seen, 1, 2, 1, 2, within=20)


async def test_redrive_goes_to_one_group(bus: Bus) -> None:
    """A dead letter goes back to the group that gave it up, and the other group's stays."""
    await subscribed(bus, "events", "mail", "stock")
    first, _second = await bury(bus, 1, 2, groups=("mail", "stock"))

    would = await bus.admin.redrive("events", group="mail", dry_run=True)
    did = await bus.admin.redrive("events", group="mail", ids=[first])

    assert (would, did) == (2, 1)
    left = await bus.admin.dead_letters("events")
    assert sorted((one.group_name, one.id == first) for one in left) == [
        ("mail", False),
        ("stock", False),
        ("stock", True),
    ]
    assert [one.id for one in await bus.admin.dead_letters("events", group="mail")] == [_second]
    assert (await bus.admin.group("events", "mail")).retrying == 1


async def test_dead_letters_of_several_groups_are_kept_apart(bus: Bus) -> None:
    """One message may be a dead letter of several groups: a page never separates them, and a lookup needs the group."""
    await subscribed(bus, "events", "mail", "stock")
    first, second = await bury(bus, 1, 2, groups=("mail", "stock"))

    page = await bus.admin.dead_letters(limit=1)
    rest = await bus.admin.dead_letters(after_id=first, limit=1)

    assert [(one.id, one.group_name) for one in page] == [(first, "mail"), (first, "stock")]
    assert [one.id for one in rest] == [second, second]
    assert (await bus.admin.dead_letter(first, group="stock")).group_name == "stock"
    with pytest.raises(InvalidInput, match="there are 2 dead letters .*: mail of events, stock of events"):
        await bus.admin.dead_letter(first, topic="events")
    with pytest.raises(MessageNotFound, match="of group 'nobody'"):
        await bus.admin.dead_letter(first, group="nobody")


async def test_log_can_be_paged_from_both_ends(bus: Bus) -> None:
    """Retained messages can be read in pages."""
    await subscribed(bus)
    async with bus.transaction() as conn:
        ids = await bus.publish_many(conn, "events", range(5))
    ids.append(await bus.send("events", 5, key="k"))

    async def read(**options: Any) -> list[int]:
        return [one.id for one in await bus.admin.log("events", **options)]

    third = (await bus.admin.log("events"))[2]
    assert await read() == ids
    assert await read(limit=2) == ids[:2]
    assert await read(limit=2, newest=True) == ids[-2:]
    assert await read(after_id=ids[3]) == ids[4:]
    assert await read(after=(third.sequence, third.index), limit=2) == ids[3:5]
    assert await read(after=(third.sequence, third.index), newest=True, limit=1) == ids[-1:]
    assert await bus.admin.log("nothing") == []


async def test_rebase_lets_groups_of_a_restored_database_continue(bus: Bus, conn: Any) -> None:
    """Groups of a restored database are refused until the rebase, and none loses a message."""
    await subscribed(bus)
    await bus.send("events", 1)
    await conn.execute("update postbus.cluster set identifier = identifier + 1")

    store = await bus.connect()
    with pytest.raises(PostbusError, match="restored from a dump") as refused:
        await store.subscribe("events", "mail", Start.NOW, "block")
    moved = await bus.admin.rebase()

    assert refused.value.remedy == (
        "run: postbus rebase; for a copy that runs beside the original: postbus rebase --as-copy"
    )
    assert moved == 2
    await store.subscribe("events", "mail", Start.NOW, "block")
    assert await lag(bus) == 1


async def test_pub_sub_topic_can_be_neither_purged_nor_paused(bus: Bus) -> None:
    """Each group has its own backlog, so the remedy names the command for a group."""
    await subscribed(bus)
    with pytest.raises(WrongSemantics) as purged:
        await bus.admin.purge_topic("events", dry_run=True)
    with pytest.raises(WrongSemantics) as paused:
        await bus.admin.pause_topic("events")

    assert "postbus groups seek events GROUP" in purged.value.remedy
    assert "postbus groups pause events GROUP" in paused.value.remedy


async def test_topic_with_groups_is_deleted_by_force_only(bus: Bus) -> None:
    """Its groups and dead letters are deleted with it."""
    await subscribed(bus)
    with pytest.raises(TopicNotEmpty, match="has groups") as refused:
        await bus.admin.delete_topic("events")

    await bus.admin.delete_topic("events", force=True)

    assert "--force" in refused.value.remedy
    assert (await bus.admin.topics(), await bus.admin.groups(cancelled=True)) == ([], [])


Ask = Callable[[Bus], Coroutine[Any, Any, Any]]


@pytest.mark.parametrize(
    ("ask", "kind", "why"),
    [
        (lambda bus: bus.admin.group("events", "gone"), GroupNotFound, "group 'gone' has no subscription"),
        (lambda bus: bus.admin.members("events", "gone"), GroupNotFound, "group 'gone' has no subscription"),
        (lambda bus: bus.admin.pause_group("events", "gone"), GroupNotFound, "group 'gone' has no subscription"),
        (lambda bus: bus.admin.cancel_group("events", "gone"), GroupNotFound, "group 'gone' has no subscription"),
        (lambda bus: bus.admin.seek("events", "gone", Start.NOW), GroupNotFound, "group 'gone' has no subscription"),
        (lambda bus: bus.admin.redrive("events", group="gone"), GroupNotFound, "group 'gone' has no subscription"),
        (lambda bus: bus.admin.group("nowhere", "mail"), TopicNotFound, "there is no topic 'nowhere'"),
        (lambda bus: bus.admin.resume_group("nowhere", "mail"), TopicNotFound, "there is no topic 'nowhere'"),
        (lambda bus: bus.admin.seek("nowhere", "mail", Start.NOW), TopicNotFound, "there is no topic 'nowhere'"),
        (lambda bus: bus.admin.group("jobs", "mail"), WrongSemantics, "topic 'jobs' is a QUEUE"),
        (lambda bus: bus.admin.pause_group("jobs", "mail"), WrongSemantics, "topic 'jobs' is a QUEUE"),
        (lambda bus: bus.admin.seek("jobs", "mail", Start.NOW), WrongSemantics, "topic 'jobs' is a QUEUE"),
        (lambda bus: bus.admin.seek("events", "mail", "yesterday"), InvalidOption, "start 'yesterday' is not known"),
        (lambda bus: bus.admin.seek("events", "mail", -1), InvalidOption, "start -1 is not a message id"),
        (lambda bus: bus.admin.seek("events", "mail", datetime(2030, 1, 1)), InvalidOption, "time with a time zone"),
        (lambda bus: bus.admin.redrive("events"), InvalidOption, "its dead letters belong to groups"),
        (lambda bus: bus.admin.redrive("jobs", group="mail"), InvalidOption, "is a QUEUE and has no groups"),
        (lambda bus: bus.admin.move_topic("jobs", groups="legacy"), InvalidInput, "'legacy' is one name"),
        (lambda bus: bus.admin.import_outbox(only="orders"), InvalidInput, "'orders' is one name"),
        (lambda bus: bus.admin.message("events", 2**64), InvalidInput, "out of int64 range"),
        (lambda bus: bus.admin.resume_topic("events"), WrongSemantics, "topic 'events' is PUB_SUB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_mistakes_are_refused_with_a_remedy(bus: Bus, ask: Ask, kind: type[PostbusError], why: str) -> None:
    """A missing or unsuitable argument is refused with the reason, and nothing changes."""
    await subscribed(bus)
    await bus.admin.create_topic("jobs")
    before = await bus.admin.groups()

    with pytest.raises(kind, match=why) as refused:
        await ask(bus)

    assert refused.value.remedy
    after = await bus.admin.groups()
    assert [(one.state, one.lag) for one in after] == [(one.state, one.lag) for one in before]


async def test_impossible_state_change_is_refused(bus: Bus, conn: Any) -> None:
    """A DEAD group cannot be paused, and the remedy says how it returns."""
    await subscribed(bus)
    await conn.execute("update postbus.subscription set state = 'DEAD'")

    with pytest.raises(InvalidGroup, match="DEAD cannot become PAUSED") as refused:
        await bus.admin.pause_group("events", "mail")

    assert "groups resurrect events mail" in refused.value.remedy
