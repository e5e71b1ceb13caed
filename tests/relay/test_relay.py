"""The promises of a relay, with sinks of our own that fail as they are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from postbus import (
    Ack,
    Bus,
    DeadLetter,
    InvalidOption,
    Outcome,
    Release,
    Retry,
    SinkUnavailable,
    Start,
    TopicNotFound,
)
from postbus.events import Registry
from postbus.options import Semantics
from postbus.relay import NotNow, Parcel
from postbus.relay.settings import Alerts, Route
from postbus.relay.status import RelayStatus, statuses
from support.eventually import eventually
from support.grouping import create_log, has, is_through, publish_numbers
from support.running import running


class OwnSink:
    """Takes numbers as `tell` says, and records them; `calls` are its batches."""

    keeps_order = False

    def __init__(self, tell: Callable[[Parcel], Outcome] = lambda parcel: Ack()) -> None:
        self.tell = tell
        self.is_away = False
        self.opened = self.closed = 0
        self.calls: list[list[int]] = []
        self.got: list[int] = []

    async def open(self) -> None:
        self.opened += 1
        if self.is_away:
            raise SinkUnavailable("it is away")

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        if self.is_away:
            raise SinkUnavailable("it is away")
        self.calls.append([int(one.body) for one in parcels])
        told = [self.tell(one) for one in parcels]
        self.got += [int(one.body) for one, outcome in zip(parcels, told, strict=True) if isinstance(outcome, Ack)]
        return told

    async def close(self) -> None:
        self.closed += 1


async def test_batch_has_one_message_per_key_for_an_unordered_sink(bus: Bus, conn: Any) -> None:
    """The next message of a key is sent after the one before it was accepted."""
    await create_log(bus, lanes=1)
    await publish_numbers(bus, range(30), keys=3, at_once=30)
    sink = OwnSink()
    relay = await bus.relay("t", sink)
    async with running(bus):
        await is_through(conn, "relay-ownsink", passed=30)
    assert relay.name == "relay-ownsink"
    assert sink.calls == [[n, n + 1, n + 2] for n in range(0, 30, 3)]
    assert sink.closed == 1


async def test_ordered_sink_gets_whole_batches(bus: Bus, conn: Any) -> None:
    """They are as large as the option says."""
    await create_log(bus, lanes=1)
    await publish_numbers(bus, range(30), keys=3, at_once=30)
    sink = OwnSink()
    sink.keeps_order = True
    await bus.relay("t", sink, name="relay-x", batch=20)
    async with running(bus):
        await is_through(conn, "relay-x", passed=30)
    assert sink.calls == [list(range(20)), list(range(20, 30))]


class OrderedSink(OwnSink):
    """Keeps the order by itself: it skips messages behind a refused one of their key in the same call."""

    keeps_order = True

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        told: list[Outcome] = []
        refused: set[str | None] = set()
        for one in parcels:
            told.append(Release() if one.key in refused else (await super().send([one]))[0])
            if not isinstance(told[-1], Ack):
                refused.add(one.key)
        return told


@pytest.mark.parametrize("kind", [OwnSink, OrderedSink])
async def test_failure_holds_up_its_key_only(bus: Bus, conn: Any, kind: type[OwnSink]) -> None:
    """The failed message is sent again before later ones of its key, and all others are sent meanwhile, once."""
    await create_log(bus, lanes=1)
    await publish_numbers(bus, range(12), keys=3, at_once=12)
    failed: set[int] = set()

    def tell(parcel: Parcel) -> Outcome:
        if parcel.body == b"3" and 3 not in failed:
            failed.add(3)
            return Retry(delay=0.05, error="not now")
        return Ack()

    sink = kind(tell)
    await bus.relay("t", sink, name="relay-x")
    async with running(bus):
        await is_through(conn, "relay-x", passed=12)
    assert sorted(sink.got) == list(range(12))
    assert [n for n in sink.got if n % 3 == 0] == [0, 3, 6, 9]
    assert sink.got.index(11) < sink.got.index(3)


async def test_unavailable_sink_costs_no_attempt(bus: Bus, conn: Any) -> None:
    """The relay waits and then sends everything in order; no message was deferred meanwhile."""
    await create_log(bus, lanes=1)
    attempts: set[int] = set()

    def tell(parcel: Parcel) -> Outcome:
        attempts.add(parcel.message.attempt)
        return Ack()

    sink = OwnSink(tell)
    sink.is_away = True
    await bus.relay("t", sink, name="relay-x", max_attempts=1)
    await publish_numbers(bus, range(100), keys=1)
    async with running(bus):

        async def tried_often() -> None:
            assert sink.opened >= 4

        await eventually(tried_often)
        assert await conn.fetchval("select count(*) from postbus.deferred") == 0
        sink.is_away = False
        await is_through(conn, "relay-x", passed=100, dead=0)
    assert sink.got == list(range(100))
    assert attempts == {1}


@pytest.mark.parametrize("semantics", ["PUB_SUB", "QUEUE"])
async def test_unavailable_sink_is_shown_with_its_reason(bus: Bus, semantics: Semantics) -> None:
    """The status, the group's row and its health show it until the sink is back."""
    await bus.admin.create_topic("t", semantics=semantics)
    sink = OwnSink()
    sink.is_away = True
    relay = await bus.relay("t", sink, name="relay-x")
    route = Route("t", "relay-x", None)

    async def shown() -> RelayStatus:
        [status] = await statuses(bus.admin, [route], Alerts())
        return status

    async def is_told() -> None:
        status = await shown()
        assert (status.sink, status.error) == ("ownsink", "it is away")
        assert status.away_since is not None
        assert any("its sink ownsink has been away since" in one for one in status.alerts)

    async def is_back() -> None:
        status = await shown()
        assert (status.sink, status.away_since, status.error, status.backlog) == (None, None, None, 0)

    async with running(bus):
        await bus.send("t", 1)
        await eventually(is_told)
        if semantics == "PUB_SUB":
            row = await bus.admin.group("t", relay.name)
            assert (row.sink, row.sink_error, row.problem_kind) == ("ownsink", "it is away", "sink")
            [found] = [one for one in await bus.admin.group_findings() if one.kind == "sink"]
            assert "away" in found.text
            assert "not beyond the topic's zombie_time and max_retention: postbus topics show t" in found.remedy
        sink.is_away = False
        await eventually(is_back)
    assert await bus.admin.sinks_away() == []


async def test_sink_that_does_not_answer_is_shown(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some clients wait for their broker forever without an error."""
    monkeypatch.setattr("postbus.relay.sink_monitor._SLOW", 0.05)
    await bus.admin.create_topic("t", semantics="PUB_SUB")
    sink, may_answer = OwnSink(), asyncio.Event()
    send = sink.send

    async def slow(parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        await may_answer.wait()
        return await send(parcels)

    monkeypatch.setattr(sink, "send", slow)
    await bus.relay("t", sink, name="relay-x")

    async def is_told() -> None:
        assert [one.error[:13] for one in await bus.admin.sinks_away()] == ["no answer for"]

    async def is_back() -> None:
        assert await bus.admin.sinks_away() == []

    async with running(bus):
        await bus.send("t", 1)
        await eventually(is_told)
        may_answer.set()
        await eventually(is_back)


async def test_report_of_a_dead_relay_expires(bus: Bus, conn: Any) -> None:
    """It is hidden after at most thirty seconds, and its row is removed after a day."""
    store = await bus.connect()
    await store.note_sink_away("t", "g", "p", "nats://host", "refused")
    assert len(await bus.admin.sinks_away()) == 1
    await conn.execute("update postbus.sink_away set told_at = told_at - interval '30 s'")
    assert await bus.admin.sinks_away() == []
    await conn.execute("update postbus.sink_away set told_at = told_at - interval '1 day'")
    await conn.execute("select postbus.sweep()")
    assert await conn.fetchval("select count(*) from postbus.sink_away") == 0


async def test_process_can_end_while_its_sink_is_unavailable(bus: Bus, conn: Any) -> None:
    """Unsent messages are released, and the next process sends them in order, without an attempt."""
    await create_log(bus, lanes=1)
    sink = OwnSink()
    sink.is_away = True
    await bus.relay("t", sink, name="relay-x")
    await publish_numbers(bus, range(60), keys=2, at_once=60)
    async with running(bus):

        async def waits() -> None:
            assert sink.opened >= 2

        await eventually(waits)
    assert sink.got == []
    sink.is_away = False
    async with running(bus):
        await is_through(conn, "relay-x", passed=60, dead=0)
    for key in range(2):
        assert [n for n in sink.got if n % 2 == key] == list(range(key, 60, 2))


@pytest.mark.parametrize("keeps_order", [False, True])
async def test_message_that_breaks_the_sink_is_given_up(bus: Bus, conn: Any, keeps_order: bool) -> None:
    """The sink opens, and fails again with this message; all others are sent in order."""
    await create_log(bus, lanes=1, retry_initial="10ms", retry_max="10ms")

    def tell(parcel: Parcel) -> Outcome:
        if parcel.body == b"13":
            raise SinkUnavailable("it broke")
        return Ack()

    sink = OwnSink(tell)
    sink.keeps_order = keeps_order
    await bus.relay("t", sink, name="relay-x", max_attempts=2)
    await publish_numbers(bus, range(30), keys=5, at_once=30)
    async with running(bus):
        await is_through(conn, "relay-x", passed=30, dead=1)
    assert sorted(set(sink.got)) == [n for n in range(30) if n != 13]
    for key in range(5):
        of_key = [n for n in dict.fromkeys(sink.got) if n % 5 == key]
        assert of_key == [n for n in range(key, 30, 5) if n != 13]
    [dead] = await bus.admin.dead_letters("t", group="relay-x")
    assert dead.last_error == "the sink goes away when it gets this: it broke"
    assert dead.attempts == 2


async def test_sink_that_accepts_nothing_for_now_costs_no_attempt(bus: Bus, conn: Any) -> None:
    """It refuses everything, as with a full disk; each message arrives with its first attempt."""
    await create_log(bus, lanes=4, retry_initial="10ms", retry_max="10ms")
    refusals = 0

    def tell(parcel: Parcel) -> Outcome:
        nonlocal refusals
        refusals += 1
        return NotNow("the disk is full") if refusals <= 15 else Ack()

    sink = OwnSink(tell)
    await bus.relay("t", sink, name="relay-x", max_attempts=1, concurrency=4, batch=5)
    await publish_numbers(bus, range(60), keys=5, at_once=60)
    async with running(bus):
        await is_through(conn, "relay-x", passed=60, dead=0)
    assert sorted(sink.got) == list(range(60))


class OneConnection(OwnSink):
    """Fails with an unknown error if it is closed while something is being sent."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False
        self.broken = False

    async def open(self) -> None:
        await super().open()
        self.is_open = True

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        numbers = [int(one.body) for one in parcels]
        if not self.broken and 0 in numbers:
            self.broken = True
            raise SinkUnavailable("the connection broke")
        await asyncio.sleep(0.01)
        assert self.is_open
        return await super().send(parcels)

    async def close(self) -> None:
        await super().close()
        self.is_open = False
        await asyncio.sleep(0.02)


async def test_call_that_closes_the_sink_costs_other_calls_no_attempt(bus: Bus, conn: Any) -> None:
    """Four calls share a connection, one closes it as broken, and the messages of the others are sent again."""
    await create_log(bus, lanes=4, retry_initial="10ms", retry_max="10ms")
    sink = OneConnection()
    await bus.relay("t", sink, name="relay-x", max_attempts=1, concurrency=4, batch=5)
    await publish_numbers(bus, range(60), keys=8, at_once=60)
    async with running(bus):
        await is_through(conn, "relay-x", passed=60, dead=0)
    assert sink.broken
    assert sorted(sink.got) == list(range(60))


async def test_temporarily_failed_message_is_not_overtaken(bus: Bus, conn: Any) -> None:
    """Sent one by one after two failures of the sink, messages of a key wait behind the failed one."""
    await create_log(bus, lanes=1, retry_initial="10ms", retry_max="10ms")
    left = 4

    def tell(parcel: Parcel) -> Outcome:
        nonlocal left
        if parcel.body == b"3" and left > 0:
            left -= 1
            raise SinkUnavailable("it broke")
        return Ack()

    sink = OwnSink(tell)
    sink.keeps_order = True
    await bus.relay("t", sink, name="relay-x")
    await publish_numbers(bus, range(20), keys=3, at_once=20)
    async with running(bus):
        await is_through(conn, "relay-x", passed=20, dead=0)
    for key in range(3):
        assert [n for n in dict.fromkeys(sink.got) if n % 3 == key] == list(range(key, 20, 3))


async def test_attempts_are_counted_and_a_redrive_sends_again(bus: Bus, conn: Any) -> None:
    """After `max_attempts` a message is a dead letter of the relay, which can be redriven."""
    await create_log(bus, retry_initial="1ms", retry_max="1ms")
    is_well = False
    sink = OwnSink(lambda parcel: Ack() if is_well else Retry(delay=0.001, error="no"))
    await bus.relay("t", sink, name="relay-x", max_attempts=3)
    await publish_numbers(bus, [7])
    async with running(bus):
        await is_through(conn, "relay-x", passed=1, dead=1)
        assert len(sink.calls) == 3
        is_well = True
        assert await bus.admin.redrive("t", group="relay-x") == 1
        await has(sink.got, 1)


registry = Registry()


@registry.event("placed", topic="t", aggregate="order")
class Placed(msgspec.Struct):
    n: int


class Bodies(OwnSink):
    """Records bodies as they are."""

    async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
        self.bodies = [one.body for one in parcels]
        self.headers = [dict(one.headers) for one in parcels]
        return [Ack()] * len(parcels)


async def test_event_refused_by_the_registry_is_given_up_at_once(bus: Bus, conn: Any) -> None:
    """An unknown type or a bad payload is a dead letter with the reason, and never sent."""
    await create_log(bus)
    sink = Bodies()
    await bus.relay("t", sink, name="relay-x", registry=registry)
    headers = {"event-type": "placed", "aggregate-type": "order", "aggregate-id": "7"}
    async with bus.transaction() as tx:
        await bus.emit(tx, Placed(1), aggregate_id=7)
        await bus.publish(tx, "t", {"n": "many"}, headers=headers)
        await bus.publish(tx, "t", {"n": 3}, headers={**headers, "event-type": "lost"})
    async with running(bus):
        await is_through(conn, "relay-x", passed=3, dead=2)
    assert sink.bodies == [b'{"n":1}']
    assert sink.headers[0].items() >= {"event_type": "placed", "aggregate_type": "order", "aggregate_id": "7"}.items()
    dead = await bus.admin.dead_letters("t", group="relay-x")
    assert [one.attempts for one in dead] == [1, 1]
    assert "the registry refused it: the payload of event 'placed' is invalid" in (dead[0].reason or "")
    assert "the registry refused it: event type 'lost' is not in the registry" in (dead[1].reason or "")


async def test_queue_can_be_relayed(bus: Bus, conn: Any) -> None:
    """Its messages go only to the sink, in order if it is ordered, and dead letters belong to the queue."""
    await bus.admin.create_topic("t", ordered=True, retry_initial="1ms", retry_max="1ms")
    sink = OwnSink(lambda parcel: DeadLetter("no") if parcel.body == b"5" else Ack())
    await bus.relay("t", sink)
    await publish_numbers(bus, range(20), keys=4)
    async with running(bus):

        async def through() -> None:
            [row] = await bus.admin.topics()
            assert (row.waiting, row.leased, row.dead) == (0, 0, 1)

        await eventually(through)
    assert sorted(sink.got) == [n for n in range(20) if n != 5]
    for key in range(4):
        assert [n for n in sink.got if n % 4 == key] == [n for n in range(key, 20, 4) if n != 5]
    with pytest.raises(InvalidOption, match="is a QUEUE, which has no position to start at"):
        await bus.relay("t", sink, start=Start.NOW)


async def test_batches_are_sent_concurrently(bus: Bus, conn: Any) -> None:
    """Each of the concurrent batches has its own keys."""
    await create_log(bus, lanes=1)
    waiting = 0
    both = asyncio.Event()

    class Slow(OwnSink):
        async def send(self, parcels: Sequence[Parcel]) -> Sequence[Outcome]:
            nonlocal waiting
            waiting += 1
            if waiting == 2:
                both.set()
            await asyncio.wait_for(both.wait(), 10)
            return await super().send(parcels)

    sink = Slow()
    await bus.relay("t", sink, name="relay-x", concurrency=2)
    await publish_numbers(bus, range(40), keys=8, at_once=40)
    async with running(bus):
        await is_through(conn, "relay-x", passed=40)
    for key in range(8):
        assert [n for n in sink.got if n % 8 == key] == list(range(key, 40, 8))


async def test_relay_starts_where_it_is_told(bus: Bus, conn: Any) -> None:
    """By default it sends everything there is; `start` limits it to new messages."""
    await create_log(bus)
    await publish_numbers(bus, [1])
    all_of_them, new_ones = OwnSink(), OwnSink()
    await bus.relay("t", all_of_them, name="relay-all")
    await bus.relay("t", new_ones, name="relay-new", start=Start.NOW, poll="10ms")
    await publish_numbers(bus, [2])
    async with running(bus):
        await has(all_of_them.got, 2)
        await has(new_ones.got, 1)
    assert (sorted(all_of_them.got), new_ones.got) == ([1, 2], [2])


async def test_short_retention_is_logged(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """The topic is relayed nevertheless."""
    await create_log(bus, retention="1 day")
    with caplog.at_level(logging.WARNING, "postbus"):
        await bus.relay("t", OwnSink(), name="relay-short", retention="1 day")
        assert "relay.retention" not in caplog.text
        await bus.relay("t", OwnSink(), name="relay-long")
    assert "keeps sent messages for 1 day, 0:00:00, and the relay wants 30 days" in caplog.text


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"topic": "nothing"}, TopicNotFound, "postbus topics create nothing --semantics PUB_SUB --retention 2592000s"),
        ({"sink": object()}, InvalidOption, "is no sink: it has no open"),
        ({"target": "{nothing}"}, InvalidOption, "has {nothing}, which is not known"),
        ({"target": "{"}, InvalidOption, "is not a template"),
        ({"form": "xml"}, InvalidOption, "form 'xml' is not known"),
        ({"source": "\n"}, InvalidOption, "source '\\n'"),
        ({"batch": 0}, InvalidOption, "batch 0"),
        ({"concurrency": 0}, InvalidOption, "concurrency 0"),
        ({"poll": 0}, InvalidOption, "poll 0.0"),
        ({"max_attempts": 0}, InvalidOption, "max_attempts goes from 1"),
        ({"retention": "soon"}, InvalidOption, "retention 'soon'"),
        ({"speed": 1}, InvalidOption, "a relay has no option 'speed'"),
    ],
)
async def test_bad_relays_are_refused(bus: Bus, options: dict[str, Any], error: type[Exception], why: str) -> None:
    """The error names the mistake when the relay is made."""
    await create_log(bus)
    given = {"topic": "t", "sink": OwnSink(), **options}
    with pytest.raises(error) as failed:
        await bus.relay(given.pop("topic"), given.pop("sink"), **given)
    assert why in str(failed.value)
