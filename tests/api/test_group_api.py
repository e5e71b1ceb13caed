"""Groups as programs see them: registration, members, filters, counters and states."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from postbus import (
    Bus,
    DuplicateHandler,
    InvalidGroup,
    InvalidHandler,
    InvalidOption,
    InvalidTopicName,
    Message,
    NoActiveSubscriptions,
    Start,
    WrongSemantics,
)
from support.eventually import eventually
from support.grouping import collect, create_log, group_row, has, is_through, publish_numbers
from support.naming import steady
from support.running import running, tasks_are


async def take(n: int) -> None:
    """Do nothing with the message."""


# Registration


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "x" * 201, "ä", "a\0"], ids=steady)
def test_bad_group_names_are_refused(name: str) -> None:
    """Group names follow the rules for topic names, and are checked when the group is made."""
    with pytest.raises(InvalidTopicName, match="bad group name"):
        Bus("postgresql:///none").group(name, "t")


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0b", "\ud800", None, 5], ids=steady)
def test_bad_member_names_are_refused(name: Any) -> None:
    """A member's name is a short text that the database can store."""
    with pytest.raises(InvalidOption, match="bad member name"):
        Bus("postgresql:///none").group("g", "t").add_member(name, take)


def test_names_can_be_used_only_once() -> None:
    """A second group of the same name and topic, or a second member of the same name, is refused."""
    bus = Bus("postgresql:///none")
    group = bus.group("g", "t")
    group.add_member("a", take)

    with pytest.raises(DuplicateHandler, match="'a' already"):
        group.add_member("a", take)
    with pytest.raises(DuplicateHandler, match="exists already"):
        bus.group("g", "t")
    with pytest.raises(DuplicateHandler, match="exists already"):
        bus.subscribe("t", group="g")(take)
    bus.group("g", "other")


def test_handlers_are_checked_when_they_are_added() -> None:
    """A handler that could not be called, or a filter that is no function, is refused at once."""
    group = Bus("postgresql:///none").group("g", "t")

    async def no_payload() -> None: ...

    async def unknown(payload: int, what: str) -> None: ...

    async def with_connection(payload: int, conn: Any) -> None: ...

    async def generator(payload: int) -> Any:
        yield 1

    wrong: Any
    for wrong in (no_payload, unknown, with_connection, generator, 5):
        with pytest.raises(InvalidHandler):
            group.add_member("a", wrong)
    wrong = "key = 'a'"
    with pytest.raises(InvalidOption, match="filter"):
        group.add_member("a", take, filter=wrong)
    assert group.members == {}


def test_failed_registration_leaves_nothing_behind() -> None:
    """After a decorator has refused a handler, the group can be registered properly."""
    bus = Bus("postgresql:///none")

    with pytest.raises(InvalidHandler):

        @bus.subscribe("t", group="g")
        async def bad() -> None: ...

    bus.subscribe("t", group="g")(take)


def test_group_options_are_checked() -> None:
    """Options that a group cannot have, and group options without a group, are refused."""
    bus = Bus("postgresql:///none")
    wrong: Any = 5
    misspelled: Any = "stop"

    with pytest.raises(InvalidOption, match="on_failure"):
        bus.group("g", "t", on_failure=misspelled)
    with pytest.raises(InvalidOption, match="filter"):
        bus.group("g", "t", filter=wrong)
    with pytest.raises(InvalidOption, match="concurrency"):
        bus.group("g", "t", concurrency=0).add_member("a", take)
    with pytest.raises(InvalidOption, match="lease"):
        bus.subscribe("t", group="h", lease="5s")(take)
    options: dict[str, Any]
    for options in ({"start": Start.BEGINNING}, {"filter": bool}, {"on_failure": "pass"}):
        with pytest.raises(InvalidOption, match="belong to a group"):
            bus.subscribe("t", **options)(take)


def test_members_must_all_be_transactional_or_none() -> None:
    """They share a cursor."""
    group = Bus("postgresql:///none").group("g", "t", transactional=True)

    async def with_connection(n: int, conn: Any) -> None: ...

    group.add_member("a", with_connection)
    with pytest.raises(InvalidHandler):
        group.add_member("b", take)


@pytest.mark.parametrize(
    "start",
    ["FROM_NOWHERE", "FROM_TIMESTAMP", datetime(2020, 1, 1), -1, True, 1.5],
    ids=steady,
)
def test_bad_starts_are_refused(start: Any) -> None:
    """The start is checked when the handler is registered."""
    with pytest.raises(InvalidOption, match="start"):
        Bus("postgresql:///none").subscribe("t", group="g", start=start)


async def test_group_needs_a_member_to_start(bus: Bus) -> None:
    """A group without members cannot start; a started one keeps its last member, a stopped one need not."""
    await create_log(bus)
    group = bus.group("g", "t")
    with pytest.raises(InvalidGroup, match="no members"):
        await group.start()

    group.add_member("a", take)
    group.add_member("b", take)
    await group.start()
    group.remove_member("a")
    with pytest.raises(InvalidGroup, match="last member"):
        group.remove_member("b")
    with pytest.raises(InvalidGroup, match="no member 'a'"):
        group.remove_member("a")
    await group.stop()
    group.remove_member("b")


# Semantics


async def test_group_on_a_queue_is_refused(bus: Bus) -> None:
    """It is refused when the group starts, and when the bus runs."""
    await bus.admin.create_topic("q")
    group = bus.group("g", "q")
    group.add_member("a", take)
    with pytest.raises(WrongSemantics, match="is a QUEUE"):
        await group.start()

    bus.subscribe("q", group="h")(take)
    with pytest.raises(WrongSemantics, match="is a QUEUE") as refused:
        await asyncio.wait_for(bus.run(), 10)
    assert "topics migrate q --to PUB_SUB --group h" in refused.value.remedy


async def test_handler_without_a_group_is_refused_on_pub_sub(bus: Bus) -> None:
    """It would get no messages, so running it is an error."""
    await create_log(bus)
    bus.subscribe("t")(take)

    with pytest.raises(WrongSemantics, match="belongs to no group") as refused:
        await asyncio.wait_for(bus.run(), 10)
    assert "group=" in refused.value.remedy


async def test_group_that_cannot_be_joined_does_not_end_others(bus: Bus) -> None:
    """If the topic of one group is a QUEUE, another group of the process gets its messages all the same."""
    await create_log(bus)
    await bus.admin.create_topic("q")
    got = collect(bus, "right", start=Start.BEGINNING)
    bus.subscribe("q", group="wrong")(take)

    async with running(bus):
        await publish_numbers(bus, range(3))
        await has(got, 3)


# Where groups start


async def test_groups_start_where_they_are_told(bus: Bus, conn: Any) -> None:
    """Starts may be objects, names and plain values."""
    await create_log(bus)
    await publish_numbers(bus, [0, 1])
    between = await conn.fetchval("select clock_timestamp()")
    third = await bus.send("t", 2)
    got: dict[str, list[int]] = {}
    starts = {
        "now": Start.NOW,
        "now-name": "FROM_NOW",
        "all": Start.BEGINNING,
        "all-name": "FROM_BEGINNING",
        "time": Start.at(between),
        "time-value": between,
        "message": Start.from_message(third),
        "message-value": third,
        "ever": Start.at(datetime.now(UTC) - timedelta(days=1)),
    }
    for name, start in starts.items():
        numbers: list[int] = []
        got[name] = numbers
        group = bus.group(name, "t")

        async def handle(n: int, numbers: list[int] = numbers) -> None:
            numbers.append(n)

        group.add_member("m", handle)
        await group.start(start)
    await bus.send("t", 3)

    async with running(bus):
        for name in starts:
            await is_through(conn, name)
    sets = {name: sorted(numbers) for name, numbers in got.items()}
    assert sets["now"] == sets["now-name"] == [3]
    assert sets["all"] == sets["all-name"] == sets["ever"] == [0, 1, 2, 3]
    assert sets["time"] == sets["time-value"] == sets["message"] == sets["message-value"] == [2, 3]


async def test_subscribing_again_keeps_the_position(bus: Bus, conn: Any, dsn: str) -> None:
    """The start counts once: a returning group continues where it was."""
    await create_log(bus)
    await publish_numbers(bus, [0, 1])
    got: list[int] = []

    async def handle(n: int) -> None:
        got.append(n)

    bus.subscribe("t", group="g", start=Start.BEGINNING)(handle)
    async with running(bus):
        await is_through(conn)
    await publish_numbers(bus, [2])
    async with Bus.open(dsn) as again:
        again.subscribe("t", group="g", start=Start.BEGINNING)(handle)
        async with running(again):
            await is_through(conn)
    assert sorted(got) == [0, 1, 2]


# Members and filters


async def test_group_filter_precedes_member_filters(bus: Bus, conn: Any) -> None:
    """A message that all filters reject is settled, and counted as filtered."""
    await create_log(bus)
    got: dict[str, list[int]] = {"even": [], "three": []}
    group = bus.group("g", "t", filter=lambda message: message.headers.get("skip") != "yes")

    async def even(n: int) -> None:
        got["even"].append(n)

    async def three(n: int) -> None:
        got["three"].append(n)

    group.add_member("even", even, filter=lambda message: int(message.payload) % 2 == 0)
    group.add_member("three", three, filter=lambda message: int(message.payload) == 3)
    await group.start()
    async with running(bus):
        for n in range(6):
            await bus.send("t", n)
        await bus.send("t", 8, headers={"skip": "yes"})
        await is_through(conn, passed=7)
    assert sorted(got["even"]) == [0, 2, 4]
    assert got["three"] == [3]
    assert (group.counts.processed, group.counts.filtered, group.counts.in_flight) == (4, 3, 0)
    row = await group_row(conn)
    assert (row["processed"], row["failed"], row["filtered"], row["in_flight"]) == (4, 0, 3, 0)
    members = await conn.fetch("select name, processed from postbus.members order by name")
    assert [tuple(one) for one in members] == [("even", 3), ("three", 1)]


@pytest.mark.parametrize("options", [{"batch": 10}, {"batch": 10, "transactional": True}], ids=str)
async def test_filters_apply_to_each_message_of_a_batch(bus: Bus, conn: Any, options: dict[str, Any]) -> None:
    """Within a batch, each message goes to the member that accepts it, or to none."""
    await create_log(bus)
    got: dict[str, list[int]] = {"even": [], "three": []}
    group = bus.group("g", "t", **options)

    def member(name: str) -> Any:
        async def plain(ns: list[int]) -> None:
            got[name] += ns

        async def in_transaction(ns: list[int], conn: Any) -> None:
            got[name] += ns

        return in_transaction if "transactional" in options else plain

    group.add_member("even", member("even"), filter=lambda message: int(message.payload) % 2 == 0)
    group.add_member("three", member("three"), filter=lambda message: int(message.payload) % 3 == 0)
    await group.start()
    async with running(bus):
        await publish_numbers(bus, [1, 2, 3, 4, 5, 8, 9])
        await is_through(conn)
    assert sorted(got["even"]) == [2, 4, 8]
    assert sorted(got["three"]) == [3, 9]
    assert (group.counts.processed, group.counts.filtered) == (5, 2)


async def test_failing_filter_is_a_failure_of_the_message(bus: Bus, conn: Any) -> None:
    """The message is retried by the topic's policy, and others go on."""
    await create_log(bus, retry_initial="1ms", retry_max="1ms", max_attempts=3)
    got: list[int] = []
    calls = 0

    def picky(message: Message) -> bool:
        nonlocal calls
        if message.payload == b"1":
            calls += 1
            raise ValueError("cannot say")
        return True

    @bus.subscribe("t", group="g", filter=picky)
    async def handle(n: int) -> None:
        got.append(n)

    async with running(bus):
        await eventually(_is_listed, conn)
        await publish_numbers(bus, [0, 1, 2])
        await is_through(conn, dead=1)
    assert sorted(got) == [0, 2]
    assert calls == 3
    assert "cannot say" in ((await bus.admin.dead_letters("t"))[0].last_error or "")


async def _is_listed(conn: Any, group: str = "g") -> None:
    await group_row(conn, group)


async def test_key_stays_with_its_member(bus: Bus, conn: Any) -> None:
    """Members share the keys by a hash that is the same in every process."""
    await create_log(bus)
    got: dict[str, set[str | None]] = {"a": set(), "b": set(), "c": set()}
    group = bus.group("g", "t", concurrency=4)
    for name in list(got):

        async def handle(n: int, message: Message, name: str = name) -> None:
            got[name].add(message.key)

        group.add_member(name, handle)
    await group.start()
    async with running(bus):
        await publish_numbers(bus, range(200), keys=40)
        await is_through(conn)
    assert sum(len(keys) for keys in got.values()) == 40
    assert all(got.values())
    chosen = {key: name for name, keys in got.items() for key in keys}
    assert [chosen[f"k{n}"] for n in range(6)] == ["a", "b", "a", "c", "c", "b"]


async def test_members_can_be_added_and_removed_while_running(bus: Bus, conn: Any) -> None:
    """An added member gets messages and a removed one gets none; the counters of both stay."""
    await create_log(bus)
    got: dict[str, list[int]] = {"a": [], "b": []}
    group = bus.group("g", "t")

    async def handle_a(n: int) -> None:
        got["a"].append(n)

    async def handle_b(n: int) -> None:
        got["b"].append(n)

    group.add_member("a", handle_a)
    await group.start()
    async with running(bus):
        await publish_numbers(bus, range(20))
        await is_through(conn)
        group.add_member("b", handle_b)
        group.remove_member("a")
        await publish_numbers(bus, range(20, 40))
        await is_through(conn)
        group.add_member("a", handle_a)
        group.remove_member("b")
        await publish_numbers(bus, range(40, 60))
        await is_through(conn)
    assert sorted(got["a"]) == [*range(20), *range(40, 60)]
    assert sorted(got["b"]) == list(range(20, 40))
    assert group.counts.processed == 60
    members = await conn.fetch("select name, processed from postbus.members order by name")
    assert [tuple(one) for one in members] == [("a", 40), ("b", 20)]


async def test_counters_count_each_message_once_over_restarts(bus: Bus, conn: Any) -> None:
    """Failures are counted too."""
    await create_log(bus, retry_initial="1ms", retry_max="1ms")
    group = bus.group("g", "t")

    async def handle(n: int, message: Message) -> None:
        if n == 0 and message.attempt == 1:
            raise ValueError

    group.add_member("a", handle)
    await group.start()
    for begin in (0, 10, 20):
        async with running(bus):
            await publish_numbers(bus, range(begin, begin + 10))
            await is_through(conn)
    row = await group_row(conn)
    assert (row["processed"], row["failed"], row["members"]) == (30, 1, ["a"])
    assert (group.counts.processed, group.counts.failed) == (30, 1)


async def test_messages_in_hand_are_counted(bus: Bus, conn: Any) -> None:
    """Messages whose handlers run count as in flight, for the member and for the group."""
    await create_log(bus)
    go_on = asyncio.Event()
    group = bus.group("g", "t", concurrency=3)

    async def handle(n: int) -> None:
        await go_on.wait()

    group.add_member("a", handle)
    await group.start()
    async with running(bus):
        await publish_numbers(bus, range(9), keys=9)

        async def all_busy() -> None:
            assert group.counts.in_flight == group.members["a"].counts.in_flight >= 2

        await eventually(all_busy)
        go_on.set()
        await is_through(conn)
    assert group.counts.in_flight == 0


# States


async def test_group_can_start_and_stop_while_the_bus_runs(bus: Bus, conn: Any) -> None:
    """It keeps its position when it stops, and continues when it starts again."""
    await create_log(bus)
    got: list[int] = []
    group = bus.group("g", "t")

    async def handle(n: int) -> None:
        got.append(n)

    group.add_member("a", handle)
    async with running(bus):
        await eventually(_works, bus)
        await group.start()
        await group.start()  # again changes nothing
        await publish_numbers(bus, [0])
        await has(got, 1)
        await asyncio.wait_for(group.stop(), 5)
        assert (await group_row(conn))["lanes_held"] == 0
        await publish_numbers(bus, [1])
        await group.start()
        await is_through(conn)
    assert got == [0, 1]


async def _works(bus: Bus) -> None:
    assert await bus.admin.workers()


async def _holds_lanes(conn: Any, topic: str = "t") -> None:
    assert (await group_row(conn, topic=topic))["lanes_held"] > 0


async def test_running_group_can_be_paused_resumed_and_cancelled(bus: Bus, conn: Any) -> None:
    """Resumed, it gets the messages published meanwhile; cancelled and started again, it is a new group."""
    await create_log(bus)
    got: list[int] = []
    group = bus.group("g", "t")

    async def handle(n: int) -> None:
        got.append(n)

    async def lanes_are(count: int) -> None:
        assert (await group_row(conn))["lanes_held"] == count

    group.add_member("a", handle)
    await group.start()
    async with running(bus):
        await eventually(lanes_are, 8)
        await group.pause()
        await eventually(lanes_are, 0)
        await publish_numbers(bus, [1, 2])
        assert got == []
        await group.resume()
        await is_through(conn)
        assert sorted(got) == [1, 2]

        await asyncio.wait_for(group.cancel(), 5)
        await publish_numbers(bus, [3])
        assert (await group_row(conn))["state"] == "CANCELLED"
        await group.start()
        await publish_numbers(bus, [4])
        await is_through(conn, state="ACTIVE")
    assert sorted(got) == [1, 2, 4]


async def test_group_cancelled_elsewhere_stops(bus: Bus, conn: Any) -> None:
    """Its process learns of that, stops working for it, and can start it anew."""
    await create_log(bus)
    group = bus.group("g", "t")
    group.add_member("a", take)
    await group.start()
    async with running(bus):
        await eventually(_holds_lanes, conn)  # before that, it would have subscribed anew
        await conn.execute("select postbus.set_group_state('t', 'g', 'CANCELLED')")

        async def has_stopped() -> None:
            assert not group.is_started

        await eventually(has_stopped)
        await group.start()
        await publish_numbers(bus, [1])
        await is_through(conn, state="ACTIVE", passed=1)


async def test_deleted_topic_ends_only_its_own_groups(bus: Bus, conn: Any) -> None:
    """Groups of other topics in the same process go on."""
    await create_log(bus, "gone")
    await create_log(bus, "stays")
    gone = bus.group("g", "gone")
    gone.add_member("a", take)
    await gone.start()
    got = collect(bus, topic="stays")

    async def has_ended() -> None:
        assert not gone.is_started

    async with running(bus) as run:
        await eventually(_holds_lanes, conn, "gone")
        await bus.send("gone", 1)
        await bus.send("stays", 1)
        await bus.admin.delete_topic("gone", force=True)
        await eventually(has_ended)
        await tasks_are("postbus-stop-g", 0)
        await bus.send("stays", 2)
        await is_through(conn, topic="stays", passed=2)
        assert not run.done()
    assert got == [1, 2]


# Publishing


async def test_publishing_without_active_groups_can_be_refused(bus: Bus, conn: Any, dsn: str) -> None:
    """Where the topic says so, every way of publishing raises NoActiveSubscriptions."""
    await create_log(bus, block_writes_on_zero_subscriptions=True)

    async def publish_all() -> None:
        with psycopg.connect(dsn) as other:
            bus.publish(other, "t", 4)
        async with bus.transaction() as tx:
            await bus.publish(tx, "t", 1)
        async with bus.transaction() as tx:
            await bus.publish_many(tx, "t", [2])
        await bus.send("t", 3)

    for publish in (
        lambda tx: bus.publish(tx, "t", 1),
        lambda tx: bus.publish_many(tx, "t", [1, 2]),
    ):
        with pytest.raises(NoActiveSubscriptions, match="no ACTIVE subscription"):
            async with bus.transaction() as tx:
                await publish(tx)
    with pytest.raises(NoActiveSubscriptions):
        await bus.send("t", 1)
    with psycopg.connect(dsn) as sync, pytest.raises(NoActiveSubscriptions):
        bus.publish(sync, "t", 1)

    group = bus.group("g", "t")
    group.add_member("a", take)
    await group.start()
    await publish_all()
    await group.pause()
    with pytest.raises(NoActiveSubscriptions):
        await bus.send("t", 1)
    await group.resume()
    async with running(bus):
        await is_through(conn, passed=4)
